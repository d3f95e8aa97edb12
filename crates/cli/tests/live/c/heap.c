/* Programs that keep what they have in the heap, and check it themselves. */
#define _GNU_SOURCE
#include <complex.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "check.h"
#include "unheard.h"

#define PAGE 4096ul
#define MIB (1ul << 20)

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint64_t digest(const void *data, size_t bytes) {
    uint64_t h = 0;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, (const char *)data + i, 8);
        h = mix(h ^ word);
    }
    return h;
}

/* Stockham's, radix 2: each pass goes through one array and writes the other. */
static void fft(size_t mib) {
    size_t n = mib * MIB / sizeof(double complex);
    double complex *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    CHECK(x && y);
    for (size_t i = 0; i < n; i++) x[i] = mix(i) * 0x1p-64;
    for (size_t length = n, stride = 1; length > 1; length /= 2, stride *= 2) {
        size_t half = length / 2;
        double complex turn = cexp(-2 * M_PI * I / length), w = 1;
        for (size_t p = 0; p < half; p++, w *= turn)
            for (size_t q = 0; q < stride; q++) {
                double complex a = x[q + stride * p], b = x[q + stride * (p + half)];
                y[q + stride * 2 * p] = a + b;
                y[q + stride * (2 * p + 1)] = (a - b) * w;
            }
        double complex *t = x;
        x = y, y = t;
    }
    printf("%016lx\n", digest(x, n * sizeof *x));
    free(x), free(y);
}

/* Rows of one with rows of the other. */
static void multiply_rows(size_t n, const double *a, const double *transposed, double *c) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t k = 0; k < n; k++) sum += a[i * n + k] * transposed[j * n + k];
            c[i * n + j] = sum;
        }
}

/* The second matrix is filled as its transpose. */
static void multiply(size_t n) {
    double *a = malloc(n * n * 8), *b = malloc(n * n * 8), *c = malloc(n * n * 8);
    CHECK(a && b && c);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            a[i * n + j] = mix(i * n + j) * 0x1p-64;
            b[i * n + j] = mix(~(j * n + i)) * 0x1p-64;
        }
    multiply_rows(n, a, b, c);
    printf("%016lx\n", digest(c, n * n * 8));
    free(a), free(b), free(c);
}

/* As `mm -r` does, which the paper on SM most likely ran: one matrix is transposed, rows are multiplied with
 * rows, and all is checked. The fifth is filled to clear the processor's cache. */
static void check_product(size_t n) {
    double *a = malloc(n * n * 8), *b = malloc(n * n * 8), *c = malloc(n * n * 8);
    double *transposed = malloc(n * n * 8), *unused = malloc(n * n * 8);
    CHECK(a && b && c && transposed && unused);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) a[i * n + j] = b[i * n + j] = i;
    for (size_t i = 0; i < n * n; i++) ((volatile double *)unused)[i] = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) transposed[j * n + i] = b[i * n + j];
    multiply_rows(n, a, transposed, c);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            size_t at = i * n + j;
            CHECK(c[at] == i * (n * (n - 1) / 2.0) && a[at] == i && b[at] == i);
        }
    printf("%zu rows\n", n);
    free(a), free(b), free(c), free(transposed), free(unused);
}

/* What users did last, in a table by the hash of who it was. Who comes is Zipf's law (0.99), drawn as
 * Gray et al. do (SIGMOD 1994); the frequent ones are all over the table. */
struct record {
    uint64_t key, count, last;
    char name[40];
};

static void update(size_t mib, size_t updates) {
    const double skew = 0.99;
    size_t records = mib * MIB / sizeof(struct record);
    struct record *table = calloc(records, sizeof *table);
    CHECK(table);
    double zeta = 0, two = 1 + pow(0.5, skew);
    for (size_t i = 0; i < records; i++) {
        table[i].key = mix(i);
        snprintf(table[i].name, sizeof table[i].name, "user%07zu@example.com", i);
        zeta += pow(i + 1, -skew);
    }
    double eta = (1 - pow(2.0 / records, 1 - skew)) / (1 - two / zeta);
    for (size_t i = 0; i < updates; i++) {
        double u = (mix(i) >> 11) * 0x1p-53, at = u * zeta;
        size_t user = at < 1 ? 0 : at < two ? 1 : records * pow(eta * u - eta + 1, 1 / (1 - skew));
        struct record *r = &table[mix(user) % records];
        r->count++, r->last = i;
    }
    printf("%016lx\n", digest(table, records * sizeof *table));
    free(table);
}

/* Loops over an array, and scans a file in as many pieces as there are passes. */
static void loop_and_scan(size_t mib, unsigned passes, const char *path) {
    uint64_t *array = malloc(mib * MIB), sum = 0;
    int fd = open(path, O_RDONLY);
    off_t bytes = lseek(fd, 0, SEEK_END);
    CHECK(array && fd >= 0);
    const uint64_t *file = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(file != MAP_FAILED);
    size_t piece = bytes / passes / 8, words = mib * MIB / 8;
    for (size_t i = 0; i < words; i++) array[i] = mix(i);
    for (unsigned pass = 0; pass < passes; pass++) {
        for (size_t i = 0; i < words; i++) sum = sum * 3 + array[i];
        for (size_t i = 0; i < piece; i++) sum = sum * 5 + file[pass * piece + i];
    }
    printf("%016lx\n", sum);
    free(array);
}

/* ---- random allocations ---------------------------------------------------------------------- */

enum { BLOCKS = 24 };
struct block {
    uint64_t *words;
    size_t bytes;
    uint64_t seed;
};

/* One word in each stretch of 512 bytes holds what its place says; the others are zero or stale. */
static void fill(struct block *b, size_t from) {
    for (size_t i = from < 8 ? 0 : ((from - 8) / 512 + 1) * 64; (i + 1) * 8 <= b->bytes; i += 64)
        b->words[i] = mix(b->seed ^ i);
}

static void check(struct block *b, size_t bytes) {
    for (size_t i = 0; (i + 1) * 8 <= bytes; i += 64) CHECK(b->words[i] == mix(b->seed ^ i));
}

struct work {
    unsigned thread;
    unsigned rounds;
    size_t bytes_max;
    int forks;
};

static void *allocate_at_random(void *argument) {
    struct work *work = argument;
    struct block blocks[BLOCKS] = {0};
    uint64_t state = work->thread * 77 + 1;
    for (unsigned round = 0; round < work->rounds; round++) {
        uint64_t r = mix(state++);
        struct block *b = &blocks[r % BLOCKS];
        size_t bytes = 1 + mix(state++) % work->bytes_max;
        /* Most are large. */
        if (r >> 8 & 1) bytes = bytes / 2 + work->bytes_max / 2;
        switch (r >> 16 & 7) {
        case 0:
        case 1:
            check(b, b->bytes);
            free(b->words);
            b->words = malloc(bytes);
            break;
        case 2: {
            check(b, b->bytes);
            free(b->words);
            b->words = calloc(1, bytes);
            for (size_t i = 0; (i + 1) * 8 <= bytes; i += 512) CHECK(b->words[i] == 0);
            break;
        }
        case 3:
        case 4: {
            size_t kept = bytes < b->bytes ? bytes : b->bytes;
            check(b, b->bytes);
            b->words = realloc(b->words, bytes);
            CHECK(b->words);
            size_t old = b->bytes;
            b->bytes = bytes;
            check(b, kept);
            fill(b, old);
            continue;
        }
        case 5: {
            check(b, b->bytes);
            free(b->words);
            size_t alignment = 64ul << (r >> 24) % 10;
            void *p;
            CHECK(!posix_memalign(&p, alignment, bytes));
            CHECK((uintptr_t)p % alignment == 0);
            b->words = p;
            break;
        }
        case 6:
            check(b, b->bytes);
            CHECK(!b->words || malloc_usable_size(b->words) >= b->bytes);
            if (b->words) b->seed = mix(b->seed), fill(b, 0);
            continue;
        default:
            if (work->forks && r >> 32 & 1) {
                fflush(stdout);
                pid_t child = fork();
                CHECK(child >= 0);
                for (int i = 0; i < BLOCKS; i++) check(&blocks[i], blocks[i].bytes);
                if (child == 0) {
                    for (int i = 0; i < BLOCKS; i++) {
                        blocks[i].seed = mix(blocks[i].seed + 1);
                        if (blocks[i].words) fill(&blocks[i], 0);
                    }
                    for (int i = 0; i < BLOCKS; i++) {
                        check(&blocks[i], blocks[i].bytes);
                        if (i % 2) free(blocks[i].words), blocks[i].words = NULL;
                    }
                    _exit(0);
                }
                /* What the parent writes meanwhile is not the child's. */
                for (int i = 0; i < BLOCKS; i += 3) {
                    blocks[i].seed = mix(blocks[i].seed + 2);
                    if (blocks[i].words) fill(&blocks[i], 0);
                }
                int status;
                CHECK(waitpid(child, &status, 0) == child && status == 0);
                for (int i = 0; i < BLOCKS; i++) check(&blocks[i], blocks[i].bytes);
            }
            continue;
        }
        CHECK(b->words);
        b->bytes = bytes;
        b->seed = mix(state++);
        fill(b, 0);
    }
    for (int i = 0; i < BLOCKS; i++) {
        check(&blocks[i], blocks[i].bytes);
        free(blocks[i].words);
    }
    return NULL;
}

static void stress(unsigned threads, unsigned rounds, size_t kib, int forks) {
    pthread_t ids[16];
    struct work work[16];
    for (unsigned i = 0; i < threads; i++) {
        work[i] = (struct work){i, rounds, kib << 10, forks};
        CHECK(!pthread_create(&ids[i], NULL, allocate_at_random, &work[i]));
    }
    for (unsigned i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    puts("done");
}

/* ---- what the kernel promises of anonymous memory -------------------------------------------- */

static char *map(size_t bytes, int prot) {
    char *p = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static void put(char *p, size_t pages, unsigned seed) {
    for (size_t i = 0; i < pages; i++) memset(p + i * PAGE, 1 + (seed + i) % 250, PAGE);
}

static void wrong(int line, const char *p, size_t page, char want) {
    printf("line %d: page %zu of %p is %d and %d, not %d\n", line, page, p, p[page * PAGE],
        p[page * PAGE + PAGE - 1], want);
    fflush(stdout);
    _exit(1);
}

static void has_at(int line, const char *p, size_t pages, unsigned seed) {
    for (size_t i = 0; i < pages; i++) {
        char want = 1 + (seed + i) % 250;
        if (p[i * PAGE] != want || p[i * PAGE + PAGE - 1] != want)
            wrong(line, p, i, want);
    }
}

#define has(p, pages, seed) has_at(__LINE__, p, pages, seed)

static void zeros_at(int line, const char *p, size_t pages) {
    for (size_t i = 0; i < pages; i++)
        if (p[i * PAGE] || p[i * PAGE + PAGE - 1]) wrong(line, p, i, 0);
}
#define zeros(p, pages) zeros_at(__LINE__, p, pages)

/* Evicts what came before. */
static void press(void) {
    char *p = map(8 * MIB, PROT_READ | PROT_WRITE);
    put(p, 2048, 3);
    has(p, 2048, 3);
    munmap(p, 8 * MIB);
}

static sigjmp_buf back;
static void jump(int signal) { siglongjmp(back, signal); }
static int faults(volatile char *p, int write) {
    signal(SIGSEGV, jump), signal(SIGBUS, jump);
    int got = sigsetjmp(back, 1);
    if (!got) {
        if (write) *p = 1;
        else (void)*p;
    }
    signal(SIGSEGV, SIG_DFL), signal(SIGBUS, SIG_DFL);
    return got;
}

static void semantics(void) {
    int rw = PROT_READ | PROT_WRITE;
    char *p = map(4 * MIB, rw);
    zeros(p, 1024);
    put(p, 1024, 7);
    press();
    has(p, 1024, 7);

    CHECK(!madvise(p + 10 * PAGE, 20 * PAGE, MADV_DONTNEED));
    zeros(p + 10 * PAGE, 20);
    has(p, 10, 7), has(p + 30 * PAGE, 994, 37);
    put(p + 10 * PAGE, 20, 17);
    CHECK(!madvise(p + 100 * PAGE, 100 * PAGE, MADV_FREE));
    p[150 * PAGE] = 99;
    press();
    CHECK(p[150 * PAGE] == 99);
    put(p, 1024, 7);
    CHECK(madvise(p, PAGE, MADV_REMOVE) == -1 && errno == EINVAL);
    CHECK(!madvise(p, 4 * MIB, MADV_WILLNEED) && !madvise(p, 4 * MIB, MADV_HUGEPAGE));
    CHECK(!msync(p, 4 * MIB, MS_SYNC));
    CHECK(!mlock(p, 64 * PAGE) && !munlock(p, 64 * PAGE));
    has(p, 1024, 7);

    /* Protection. */
    CHECK(!mprotect(p + 8 * PAGE, 8 * PAGE, PROT_READ));
    CHECK(faults(p + 9 * PAGE, 1) == SIGSEGV && !faults(p + 9 * PAGE, 0));
    CHECK(!mprotect(p + 8 * PAGE, 8 * PAGE, PROT_NONE));
    CHECK(faults(p + 9 * PAGE, 0) == SIGSEGV);
    press();
    CHECK(!mprotect(p + 8 * PAGE, 8 * PAGE, rw));
    has(p, 1024, 7);

    /* Shrinks, grows over zeros, moves. */
    p = mremap(p, 4 * MIB, 2 * MIB, 0);
    CHECK(p != MAP_FAILED);
    p = mremap(p, 2 * MIB, 6 * MIB, MREMAP_MAYMOVE);
    CHECK(p != MAP_FAILED);
    has(p, 512, 7), zeros(p + 2 * MIB, 1024);
    put(p, 1536, 5);
    char *to = map(6 * MIB, PROT_NONE);
    CHECK(mremap(p, 6 * MIB, 6 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    press();
    has(to, 1536, 5);
    CHECK(faults(p, 0) == SIGSEGV);
    /* Far beyond what an allocation has room for. */
    p = map(MIB, rw);
    put(p, 256, 1);
    for (size_t mib = 1; mib < 32; mib *= 2) {
        char *other = map(MIB, rw);
        other[0] = 1;
        p = mremap(p, mib * MIB, 2 * mib * MIB, MREMAP_MAYMOVE);
        CHECK(p != MAP_FAILED);
        has(p, 256, 1), zeros(p + mib * MIB, 256 * mib);
        CHECK(!munmap(other, MIB));
    }
    munmap(p, 32 * MIB);

    /* What was moved away from behind it is in the way: grown memory keeps its protection, also where
     * nobody may read it. */
    for (int prot = PROT_NONE; prot <= PROT_READ; prot++) {
        p = map(2 * MIB, rw);
        put(p, 512, 3);
        char *away = mremap(p + MIB, MIB, 2 * MIB, MREMAP_MAYMOVE);
        CHECK(away != MAP_FAILED && !mprotect(p, MIB, prot));
        p = mremap(p, MIB, 16 * MIB, MREMAP_MAYMOVE);
        CHECK(p != MAP_FAILED);
        CHECK(faults(p, 1) == SIGSEGV && faults(p + 9 * MIB, 1) == SIGSEGV);
        CHECK(!faults(p, 0) == (prot == PROT_READ));
        CHECK(!mprotect(p, 16 * MIB, rw));
        has(p, 256, 3), zeros(p + MIB, 256 * 15), has(away, 256, 259);
        CHECK(!munmap(p, 16 * MIB) && !munmap(away, 2 * MIB));
    }

    /* With two kinds of access in it, it grows nowhere. */
    p = map(2 * MIB, rw);
    put(p, 512, 3);
    char *moved = mremap(p + MIB, MIB, 2 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && !mprotect(p + MIB - PAGE, PAGE, PROT_NONE));
    CHECK(mremap(p, MIB, 16 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    CHECK(!mprotect(p + MIB - PAGE, PAGE, rw));
    has(p, 256, 3);
    CHECK(!munmap(p, MIB) && !munmap(moved, 2 * MIB));

    /* Freed lazily, and dropped although it may be locked; also where some of it is the kernel's. */
    p = map(4 * MIB, PROT_NONE);
    CHECK(mmap(p, 8 * PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
    CHECK(!mprotect(p, 4 * MIB, rw));
    put(p, 1024, 4);
    CHECK(!madvise(p, 4 * MIB, MADV_FREE));
    put(p, 1024, 6);
    press();
    has(p, 1024, 6);
    if (!madvise(p, 4 * MIB, 24 /* MADV_DONTNEED_LOCKED */))
        zeros(p, 1024);
    CHECK(!munmap(p, 4 * MIB));

    /* Unmapped in the middle, mapped anew: nothing old shows. */
    CHECK(!munmap(to + 2 * MIB, MIB));
    CHECK(faults(to + 2 * MIB, 0) == SIGSEGV);
    char *again = mmap(to + 2 * MIB, MIB, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(again == to + 2 * MIB);
    zeros(again, 256);
    has(to, 512, 5), has(to + 3 * MIB, 768, 5 + 768);
    CHECK(mmap(to, 6 * MIB, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == to);
    zeros(to, 1536);
    for (int i = 0; i < 50; i++) {
        char *q = map(MIB + i % 3 * MIB, rw);
        zeros(q, 256);
        put(q, 256, i);
        munmap(q, MIB + i % 3 * MIB);
    }

    /* Reserved, then opened in pieces. */
    char *room = mmap(NULL, 8ul << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    char *piece = room + (5ul << 30);
    CHECK(!mprotect(piece, 2 * MIB, rw));
    zeros(piece, 512);
    put(piece, 512, 9);
    press();
    has(piece, 512, 9);
    CHECK(!munmap(room, 8ul << 30));

    /* System calls fill and read evicted memory. */
    char *buffer = malloc(4 * MIB);
    put(buffer, 1024, 11);
    press();
    int fd = memfd_create("x", 0);
    CHECK(write(fd, buffer, 4 * MIB) == 4 * MIB);
    memset(buffer, 0, 4 * MIB);
    press();
    CHECK(pread(fd, buffer, 4 * MIB, 0) == 4 * MIB);
    press();
    has(buffer, 1024, 11);
    int pipes[2];
    CHECK(!pipe(pipes));
    press();
    CHECK(write(pipes[1], buffer + 100 * PAGE, PAGE) == PAGE);
    CHECK(read(pipes[0], buffer, PAGE) == PAGE);
    has(buffer, 1, 111);
    free(buffer);
    puts("done");
}

/* ---- forks ------------------------------------------------------------------------------------ */

static size_t cloned_pages;
static pid_t *told;

static int clone_child(void *at) {
    char here;
    has(at, cloned_pages, 1);
    put(at, cloned_pages, 78);
    char *more = malloc(MIB);
    put(more, 200, 79);
    has(more, 200, 79);
    CHECK((uintptr_t)&here % PAGE && told[500000] == getpid());
    return 37;
}

static void forks(void) {
    size_t pages = 1024;
    char *p = malloc(pages * PAGE + PAGE);
    p += PAGE - (uintptr_t)p % PAGE;
    put(p, pages, 1);
    int pipes[2][2];
    CHECK(!pipe(pipes[0]) && !pipe(pipes[1]));
    pid_t child = fork();
    CHECK(child >= 0);
    char c;
    if (child == 0) {
        has(p, pages, 1);
        put(p, pages / 2, 50);
        CHECK(write(pipes[0][1], "x", 1) == 1 && read(pipes[1][0], &c, 1) == 1);
        has(p, pages / 2, 50), has(p + pages / 2 * PAGE, pages / 2, 1 + pages / 2);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            has(p, pages / 2, 50);
            put(p, pages, 150);
            press();
            has(p, pages, 150);
            _exit(0);
        }
        put(p, pages, 90);
        int status;
        CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
        has(p, pages, 90);
        char *q = malloc(3 * MIB);
        put(q, 700, 5);
        press();
        has(q, 700, 5);
        free(q);
        _exit(0);
    }
    put(p + pages / 4 * PAGE, pages / 2, 100);
    press();
    CHECK(write(pipes[1][1], "x", 1) == 1 && read(pipes[0][0], &c, 1) == 1);
    has(p, pages / 4, 1), has(p + pages / 4 * PAGE, pages / 2, 100);
    has(p + pages / 4 * 3 * PAGE, pages / 4, 1 + pages / 4 * 3);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* A child without handlers, one by number, one that executes. */
    if ((child = _Fork()) == 0) {
        has(p, pages / 4, 1);
        put(p, pages / 4, 77);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if ((child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) == 0) {
        has(p, pages / 4, 1);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* One with a function and a stack, which is heap memory, too. */
    char *stack = malloc(MIB);
    told = malloc(4 * MIB);
    cloned_pages = pages / 4;
    int flags = CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | SIGCHLD;
    child = clone(clone_child, stack + MIB - 8, flags, p, told, NULL, told + 500000);
    CHECK(child > 0 && told[0] == child && told[500000] == 0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 37);
    has(p, pages / 4, 1);
    free(stack), free(told);
    fflush(stdout);
    if ((child = fork()) == 0) {
        execlp("true", "true", NULL);
        _exit(9);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if ((child = vfork()) == 0) {
        execlp("true", "true", NULL);
        _exit(9);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(system("true") == 0);
    has(p, pages / 4, 1), has(p + pages / 4 * PAGE, pages / 2, 100);
    puts("done");
}

/* Threads write while one forks: each child finds all that was written before. */
static volatile uint64_t *counters;
static volatile int stop;
static void *count_up(void *argument) {
    size_t at = (size_t)argument * 128 * 512;
    for (uint64_t n = 1; !stop; n++)
        for (size_t page = 0; page < 128 && !stop; page++) counters[at + page * 512] = n;
    return NULL;
}

/* A stream that is flushed with all others (fflush(NULL)) stores to the heap for a while. */
static _Atomic int storing;
static ssize_t store_a_while(void *p, const char *from, size_t bytes) {
    (void)from;
    storing = 1;
    for (int i = 0; i < 10; i++, usleep(1000)) put(p, 256, i);
    storing = 0;
    return bytes;
}
static void *flush_all(void *p) {
    FILE *f = fopencookie(p, "w", (cookie_io_functions_t){.write = store_a_while});
    CHECK(f);
    for (; !stop; usleep(5000)) CHECK(fputc('x', f) == 'x' && fflush(NULL) == 0);
    CHECK(fclose(f) == 0);
    return NULL;
}
static void *use_streams(void *none) {
    FILE *f = fopen("/dev/null", "w");
    CHECK(f && fputs("x", f) >= 0 && fflush(NULL) == 0 && fclose(f) == 0);
    return none;
}
static void in_a_thread(void *(*function)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, function, NULL) == 0 && pthread_join(thread, NULL) == 0);
}
/* A child finds the list of streams nobody's, whether it was made by one thread of several or by the
   only one, and so do threads of its own, children of these and its parent. */
static void fork_streams_once(void) {
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    int status;
    if (child == 0) {
        use_streams(NULL);
        if ((child = fork()) == 0) {
            in_a_thread(use_streams);
            if ((child = fork()) == 0) {
                in_a_thread(use_streams);
                _exit(0);
            }
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void fork_streams(long count) {
    alarm(60);
    char *p = malloc(256 * PAGE + PAGE);
    p += PAGE - (uintptr_t)p % PAGE;
    put(p, 256, 1);
    fork_streams_once();
    in_a_thread(use_streams);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, flush_all, p) == 0);
    for (long i = 0; i < count; i++) {
        while (!storing) usleep(100);
        if (i % 4 != 3) {
            fork_streams_once();
            continue;
        }
        /* Without handlers, the list of streams is left alone. */
        pid_t child = _Fork();
        if (child == 0) {
            put(p, 256, 9);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    in_a_thread(use_streams);
    puts("done");
}

static void fork_threads(void) {
    counters = malloc(4 * 128 * PAGE);
    memset((void *)counters, 0, 4 * 128 * PAGE);
    pthread_t ids[3];
    for (size_t i = 0; i < 3; i++) pthread_create(&ids[i], NULL, count_up, (void *)i);
    uint64_t *mine = (uint64_t *)counters + 3 * 128 * 512;
    for (uint64_t round = 1; round < 30; round++) {
        for (size_t page = 0; page < 128; page++) mine[page * 512] = round;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (size_t page = 0; page < 128; page++) CHECK(mine[page * 512] == round);
            /* Within a thread's part no page is more than one step ahead of the next. */
            for (size_t i = 0; i < 3; i++)
                for (size_t page = 0; page + 1 < 128; page++) {
                    uint64_t a = counters[(i * 128 + page) * 512];
                    uint64_t b = counters[(i * 128 + page + 1) * 512];
                    CHECK(a == b || a == b + 1);
                }
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    stop = 1;
    for (size_t i = 0; i < 3; i++) pthread_join(ids[i], NULL);
    puts("done");
}

/* One child after the other, each begun as the one before it ends. */
static void generations(long count) {
    char *p = malloc(MIB);
    p += PAGE - (uintptr_t)p % PAGE;
    put(p, 200, 7);
    for (long i = 0; i < count; i++) {
        pid_t child = i % 2 ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            has(p, 200, 7);
            put(p, 20, 9);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    has(p, 200, 7);
    puts("done");
}

/* Children whose parents end at once, as daemons are begun. */
static void daemons(long count) {
    char *p = malloc(MIB);
    p += PAGE - (uintptr_t)p % PAGE;
    put(p, 200, 7);
    for (long i = 0; i < count; i++) {
        int pipes[2], status;
        char c;
        CHECK(!pipe(pipes));
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            pid_t grandchild = i % 2 ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
            if (grandchild) _exit(grandchild < 0);
            has(p, 200, 7);
            put(p, 20, 9);
            CHECK(write(pipes[1], "k", 1) == 1);
            _exit(0);
        }
        CHECK(!close(pipes[1]) && waitpid(child, &status, 0) == child && status == 0);
        CHECK(read(pipes[0], &c, 1) == 1);
        CHECK(!close(pipes[0]));
    }
    puts("done");
}

/* Threads allocate, clear and free memory while another forks: what children allocate is zeros, and so
 * is for them what was cleared. */
enum { FILLED = 48, CLEARED = 16 };
static char *volatile cleared[CLEARED];
static atomic_int is_clear[CLEARED];

static void *clear(void *argument) {
    for (int i = 0; !stop; i = (i + 1) % CLEARED) {
        is_clear[i] = 0;
        put(cleared[i], 16, i);
        CHECK(!madvise(cleared[i], 16 * PAGE, MADV_DONTNEED));
        is_clear[i] = 1;
    }
    return NULL;
}

static void *allocate_and_free(void *argument) {
    while (!stop) {
        char *filled[FILLED];
        for (int i = 0; i < FILLED; i++) put(filled[i] = map(MIB / 4, PROT_READ | PROT_WRITE), 2, i);
        for (int i = 0; i < FILLED; i++) {
            CHECK(!munmap(filled[i], MIB / 4));
            filled[i] = i % 4 ? NULL : map(MIB / 4, PROT_READ | PROT_WRITE);
        }
        for (int i = 0; i < FILLED; i++) if (filled[i]) CHECK(!munmap(filled[i], MIB / 4));
    }
    return NULL;
}

static void fresh(long count) {
    char *memory = map(CLEARED * 16 * PAGE, PROT_READ | PROT_WRITE);
    for (int i = 0; i < CLEARED; i++) cleared[i] = memory + i * 16 * PAGE;
    pthread_t ids[2];
    pthread_create(&ids[0], NULL, clear, NULL);
    pthread_create(&ids[1], NULL, allocate_and_free, NULL);
    for (long i = 0; i < count; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int j = 0; j < CLEARED; j++) if (is_clear[j]) zeros(cleared[j], 16);
            for (int j = 0; j < FILLED; j++) zeros(map(MIB / 4, PROT_READ | PROT_WRITE), 64);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    puts("done");
}

/* Memory shrinks and grows again, and its beginning goes: what is left is nobody else's. */
static void shrink_and_grow(long count) {
    enum { TAILS = 16 };
    char *tails[TAILS] = {0};
    for (long i = 0; i < count; i++) {
        char *p = map(64 * PAGE, PROT_READ | PROT_WRITE);
        zeros(p, 64), put(p, 64, i);
        CHECK(mremap(p, 64 * PAGE, 32 * PAGE, 0) == p);
        p = mremap(p, 32 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
        CHECK(p != MAP_FAILED);
        char *tail = p + 32 * PAGE;
        has(p, 32, i), zeros(tail, 32), put(tail, 32, i + 100);
        CHECK(!munmap(p, 32 * PAGE));
        if (tails[i % TAILS]) CHECK(!munmap(tails[i % TAILS], 32 * PAGE));
        tails[i % TAILS] = tail;
        for (long j = i; j >= 0 && j > i - TAILS; j--) has(tails[j % TAILS], 32, j + 100);
    }
    puts("done");
}

/* Memory is to grow in place, and something is in its way. */
static void grow_in_vain(long count) {
    int rw = PROT_READ | PROT_WRITE;
    for (long i = 0; i < count; i++) {
        char *p = map(64 * PAGE, rw);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        char *behind = mmap(p + 64 * PAGE, PAGE, rw, flags, -1, 0);
        CHECK(mremap(p, 64 * PAGE, 128 * PAGE, 0) == MAP_FAILED && errno == ENOMEM);
        put(p, 1, i);
        CHECK(!munmap(p, 64 * PAGE));
        if (behind != MAP_FAILED) CHECK(!munmap(behind, PAGE));
    }
    puts("done");
}

/* Where in its file, if it is of one, memory is mapped. */
static unsigned long offset_of(const char *p) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    unsigned long start, end, offset, found = 0;
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && start <= (unsigned long)p
            && (unsigned long)p < end)
            found = offset + ((unsigned long)p - start);
    CHECK(!fclose(maps));
    return found;
}

/* So many mappings as a process may have: what the manager gives for an allocation finds no place. In the
 * end its place in the heap is the first one again. */
static void mapped_in_vain(long count) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    long most = 0, pages = 0;
    FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
    CHECK(limit && fscanf(limit, "%ld", &most) == 1 && !fclose(limit));
    char *first = map(8 * MIB, PROT_READ | PROT_WRITE);
    put(first, 8, 1);
    /* The kernel's. */
    char *all = mmap(NULL, 2 * most * PAGE, PROT_NONE, flags | MAP_STACK, -1, 0);
    CHECK(all != MAP_FAILED);
    while (!mprotect(all + 2 * pages * PAGE, PAGE, PROT_READ)) pages++;
    CHECK(errno == ENOMEM);
    for (long room = 0; room < 4; room++) {
        for (long i = 0; i < count; i++) {
            char *p = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, flags, -1, 0);
            if (p == MAP_FAILED) continue;
            put(p, 4, i), has(p, 4, i);
            CHECK(!munmap(p, 4 * MIB));
        }
        CHECK(!mprotect(all + 2 * --pages * PAGE, PAGE, PROT_NONE));
    }
    has(first, 8, 1);
    CHECK(!munmap(all, 2 * most * PAGE));
    unsigned long before = offset_of(first), offset = -1UL;
    /* The manager is told at once, and gives it to others a little later. */
    for (int i = 0; i < 1000 && offset > before + 16 * MIB; i++) {
        char *p = map(4 * MIB, PROT_READ | PROT_WRITE);
        offset = offset_of(p);
        zeros(p, 4), put(p, 4, i), has(p, 4, i);
        CHECK(!munmap(p, 4 * MIB));
        usleep(10000);
    }
    CHECK(offset <= before + 16 * MIB);
    puts("done");
}

/* libaio's, where somebody has brought it. */
extern int io_setup(int events, aio_context_t *context) __attribute__((weak));

/* Direct reads into the heap, eight under way at a time if that is to be had, while more memory is
 * used than there is: pages leave that a read is under way for. What was read has to be there. */
static void asynchronous(long mib) {
    enum { EACH = 1024 * 1024, DEPTH = 8 };
    long pages = mib * 256;
    char *page = map(PAGE, PROT_READ | PROT_WRITE);
    int fd = open("read", O_CREAT | O_RDWR | O_TRUNC, 0644);
    for (long i = 0; i < pages; i++) {
        memset(page, 1 + i % 250, PAGE);
        CHECK(write(fd, page, PAGE) == PAGE);
    }
    CHECK(fsync(fd) == 0 && close(fd) == 0);
    fd = open("read", O_RDONLY | O_DIRECT);
    if (fd < 0) fd = open("read", O_RDONLY);
    aio_context_t context = 0;
    int gone = syscall(SYS_io_setup, DEPTH, &context) != 0;
    CHECK(!gone || errno == ENOSYS);
    if (io_setup) {
        aio_context_t other = 0;
        CHECK(io_setup(DEPTH, &other) == (gone ? -ENOSYS : 0));
    }
    char *to = map(mib * MIB, PROT_READ | PROT_WRITE);
    char *beside = map(mib * MIB, PROT_READ | PROT_WRITE);
    long reads = mib * MIB / EACH;
    for (long first = 0; first < reads; first += DEPTH) {
        struct iocb calls[DEPTH], *list[DEPTH];
        struct io_event ends[DEPTH];
        for (long i = 0; i < DEPTH; i++) {
            size_t at = (first + i) * EACH;
            calls[i] = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd,
                                     .aio_buf = (uintptr_t)(to + at), .aio_nbytes = EACH,
                                     .aio_offset = at};
            list[i] = &calls[i];
            if (gone) CHECK(pread(fd, to + at, EACH, at) == EACH);
        }
        if (!gone) CHECK(syscall(SYS_io_submit, context, DEPTH, list) == DEPTH);
        for (long i = 0; i < 64; i++) beside[(first * 64 + i) % pages * PAGE] = 1;
        if (!gone) CHECK(syscall(SYS_io_getevents, context, DEPTH, DEPTH, ends, NULL) == DEPTH);
    }
    for (long i = 0; i < pages; i++)
        for (long j = 0; j < PAGE; j += 512) CHECK(to[i * PAGE + j] == (char)(1 + i % 250));
    CHECK(close(fd) == 0);
    puts("done");
}

/* Forks of all kinds on a stack that is memory of this kind, which nobody may store to meanwhile. */
static ucontext_t first_stack, large_stack;

static void forks_here(void) {
    int fd, status;
    pid_t child = fork();
    CHECK(child >= 0 || errno == ENOMEM);
    if (!child) _exit(0);
    if (child > 0) CHECK(waitpid(child, &status, 0) == child && status == 0);
    child = forkpty(&fd, NULL, NULL, NULL);
    CHECK(child >= 0 || errno == ENOMEM);
    if (!child) _exit(0);
    if (child > 0) CHECK(waitpid(child, &status, 0) == child && status == 0);
    if (daemon(1, 1)) CHECK(errno == ENOMEM);
}

/* A fork, and one straight after it that fails before it has begun. */
static void forks_without_a_terminal(void) {
    enum { BLOCKS = 40 };
    char *blocks[BLOCKS];
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(blocks[i] = malloc(MIB));
        memset(blocks[i], 1 + i, 2 * PAGE);
    }
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            for (int i = 0; i < BLOCKS; i++) CHECK(blocks[i][PAGE] == 1 + i);
            _exit(0);
        }
        struct rlimit none = {.rlim_cur = 3, .rlim_max = limit.rlim_max};
        int terminal, status;
        CHECK(!setrlimit(RLIMIT_NOFILE, &none) && forkpty(&terminal, NULL, NULL, NULL) < 0);
        CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    puts("done");
}

static void forks_on_a_large_stack(void) {
    int status;
    char *stack = map(32 * MIB, PROT_READ | PROT_WRITE);
    alarm(60);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        CHECK(!getcontext(&large_stack));
        large_stack.uc_stack.ss_sp = stack;
        large_stack.uc_stack.ss_size = 32 * MIB;
        large_stack.uc_link = &first_stack;
        makecontext(&large_stack, forks_here, 0);
        alarm(30);
        CHECK(!swapcontext(&first_stack, &large_stack));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("done");
}

/* What is discarded is not found again: guard regions (Linux 6.13), or an error that changes nothing. */
static void guards(void) {
    enum { INSTALL = 102, REMOVE = 103 };
    unsigned char *p = map(32 * MIB, PROT_READ | PROT_WRITE), *there = p + MIB;
    memset(p, 7, 32 * MIB);
    if (madvise(there, MIB, INSTALL)) CHECK(errno == EINVAL && there[5] == 7);
    else CHECK(!madvise(there, MIB, REMOVE) && there[5] == 0);
    CHECK(there[MIB] == 7);
    /* By another name, of which older kernels allow less. */
    static const int kinds[] = {MADV_DONTNEED, MADV_REMOVE, INSTALL};
    int own = syscall(SYS_pidfd_open, getpid(), 0);
    for (int way = 0; way < 6; way++) {
        int kind = kinds[way / 2];
        struct iovec part = {there, MIB};
        memset(p, 7, 32 * MIB);
        long done = syscall(SYS_process_madvise, way % 2 ? own : -10000 /* PIDFD_SELF */, &part, 1, kind, 0);
        CHECK(done == (long)MIB || done == -1);
        if (done == (long)MIB && kind == INSTALL) CHECK(!madvise(there, MIB, REMOVE));
        CHECK(there[5] == (done < 0 ? 7 : 0) && there[MIB] == 7 && there[-1] == 7);
    }
    munmap(p, 32 * MIB);
    puts("done");
}

/* Moves that the kernel refuses change nothing. */
static void refused_moves(void) {
    unsigned char *p = map(64 * MIB, PROT_READ | PROT_WRITE), *q = p + 32 * MIB;
    memset(p, 7, 64 * MIB);
    CHECK(mremap(p, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, p + 4 * MIB) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(q, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, q - 4 * MIB) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(p, 8 * MIB, 16 * MIB, MREMAP_FIXED, q) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(p, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, q + 1) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(p, 8 * MIB, 16 * MIB, 64) == MAP_FAILED && errno == EINVAL);
    for (size_t i = 0; i < 64 * MIB; i += PAGE) CHECK(p[i] == 7);
    puts("done");
}

static void *gives_back_behind_libc(void *seeded) {
    enum { PAGES = 512 };
    uint64_t seed = (uintptr_t)seeded, has[PAGES] = {0};
    char *p = map(PAGES * PAGE, PROT_READ | PROT_WRITE);
    for (uint64_t i = 1; i <= 20000; i++) {
        seed = mix(seed);
        unsigned long page = seed % PAGES, pages = 1 + (seed >> 20) % 40;
        if (pages > PAGES - page) pages = PAGES - page;
        volatile uint64_t *word = (uint64_t *)(p + page * PAGE) + (seed >> 40) % (PAGE / 8);
        if (seed >> 60 == 0) {
            CHECK(unheard(SYS_madvise, (long)(p + page * PAGE), pages * PAGE, MADV_DONTNEED) == 0);
            memset(has + page, 0, pages * sizeof *has);
        } else if (seed >> 63) {
            for (unsigned long at = 0; at < PAGE / 8; at++) ((uint64_t *)(p + page * PAGE))[at] = i;
            has[page] = i;
        } else CHECK(*word == has[page]);
    }
    for (unsigned long page = 0; page < PAGES; page++)
        for (unsigned long at = 0; at < PAGE / 8; at++) CHECK(((uint64_t *)(p + page * PAGE))[at] == has[page]);
    munmap(p, PAGES * PAGE);
    return NULL;
}

static void behind_libc(void) {
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, gives_back_behind_libc, (void *)(i + 1)) == 0);
    for (long i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    puts("done");
}

enum { SIDES = 4, GROUPS = 128, GROUP = 8 };
static char *side_by_side_begin;

/* Groups of pages lie side by side, each of another thread. */
static volatile uint64_t *side(long who, long group, long page) {
    return (uint64_t *)(side_by_side_begin + ((group * SIDES + who) * GROUP + page) * PAGE);
}

static void *gives_back_its_side(void *argument) {
    long who = (long)argument;
    uint64_t seed = who + 1;
    for (long group = 0; group < GROUPS; group++)
        for (long page = 0; page < GROUP; page++) *side(who, group, page) = 1;
    for (uint64_t i = 2; i < 1200; i++) {
        seed = mix(seed);
        long group = seed % GROUPS;
        (void)*side(who, group, (seed >> 20) % GROUP);
        CHECK(unheard(SYS_madvise, (long)side(who, group, 0), GROUP * PAGE, MADV_DONTNEED) == 0);
        if (seed >> 63)
            for (long page = 0; page < GROUP; page++) CHECK(*side(who, group, page) == 0);
        for (long page = 0; page < GROUP; page++) *side(who, group, page) = i;
        if (seed >> 61 == 0) usleep(1000);
        for (long page = 0; page < GROUP; page++) CHECK(*side(who, group, page) == i);
    }
    return NULL;
}

static void side_by_side(void) {
    pthread_t threads[SIDES];
    side_by_side_begin = map(SIDES * GROUPS * GROUP * PAGE, PROT_READ | PROT_WRITE);
    for (long i = 0; i < SIDES; i++) CHECK(pthread_create(&threads[i], NULL, gives_back_its_side, (void *)i) == 0);
    for (long i = 0; i < SIDES; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    puts("done");
}

int main(int argc, char **argv) {
    const char *what = argv[1];
    long n[4] = {0};
    for (int i = 2; i < argc && i < 6; i++) n[i - 2] = atol(argv[i]);
    if (!strcmp(what, "fft")) fft(n[0]);
    else if (!strcmp(what, "multiply")) multiply(n[0]);
    else if (!strcmp(what, "check-product")) check_product(n[0]);
    else if (!strcmp(what, "update")) update(n[0], n[1]);
    else if (!strcmp(what, "loop-and-scan")) loop_and_scan(n[0], n[1], argv[4]);
    else if (!strcmp(what, "stress")) stress(n[0], n[1], n[2], n[3]);
    else if (!strcmp(what, "semantics")) semantics();
    else if (!strcmp(what, "large-stack")) forks_on_a_large_stack();
    else if (!strcmp(what, "no-terminal")) forks_without_a_terminal();
    else if (!strcmp(what, "guards")) guards();
    else if (!strcmp(what, "refused-moves")) refused_moves();
    else if (!strcmp(what, "forks")) forks();
    else if (!strcmp(what, "fork-threads")) fork_threads();
    else if (!strcmp(what, "fork-streams")) fork_streams(n[0]);
    else if (!strcmp(what, "generations")) generations(n[0]);
    else if (!strcmp(what, "daemons")) daemons(n[0]);
    else if (!strcmp(what, "behind-libc")) behind_libc();
    else if (!strcmp(what, "side-by-side")) side_by_side();
    else if (!strcmp(what, "fresh")) fresh(n[0]);
    else if (!strcmp(what, "shrink-and-grow")) shrink_and_grow(n[0]);
    else if (!strcmp(what, "grow-in-vain")) grow_in_vain(n[0]);
    else if (!strcmp(what, "mapped-in-vain")) mapped_in_vain(n[0]);
    else if (!strcmp(what, "asynchronous")) asynchronous(n[0]);
    else if (!strcmp(what, "zeros")) {
        /* Read and never written. */
        char *p = malloc(n[0] * MIB);
        zeros(p + PAGE - (uintptr_t)p % PAGE, n[0] * 256 - 1);
        puts("done");
    } else if (!strcmp(what, "fill")) {
        char *p = map(n[0] * MIB, PROT_READ | PROT_WRITE);
        put(p, n[0] * 256, 1);
        has(p, n[0] * 256, 1);
        puts("filled");
        fflush(stdout);
        if (n[1]) sleep(n[1]);
        for (int i = 0; i < n[2]; i++) has(p, n[0] * 256, 1);
        munmap(p, n[0] * MIB);
    } else return 2;
    return 0;
}
