// Programs that do to mapped memory what programs do, each on files of its own, checking what POSIX
// and Linux promise. Their output must be the same however the files are served.
//
//     programs PART DIRECTORY [ARGUMENT]...
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096 };
extern char **environ;
static const char *directory;
static char **rest;

#define FAILS(x, e) CHECK((errno = 0, (long)(x)) == -1 && errno == (e))

static const char *in(const char *name) {
    static char path[4][4096];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", directory, name);
    return path[next];
}

static uint64_t mixed(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

// What page `i` of a new file says at word `w`.
static uint64_t word_of(uint64_t page, int w) { return mixed(page * 512 + (uint64_t)w); }

// A file of so many pages, open for reading and writing.
static int make(const char *name, size_t pages) {
    int fd = open(in(name), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    uint64_t page[PAGE / 8];
    for (size_t i = 0; i < pages; i++) {
        for (int w = 0; w < PAGE / 8; w++) page[w] = word_of(i, w);
        CHECK(write(fd, page, PAGE) == PAGE);
    }
    return fd;
}

static void *map(int fd, size_t pages, int prot, int flags) {
    void *at = mmap(NULL, pages * PAGE, prot, flags, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static int ended(pid_t pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static sigjmp_buf landing;
static void jump(int number) { siglongjmp(landing, number); }

// Which signal a touch raises; 0 if none.
static int touch(volatile char *at, int write) {
    struct sigaction action = {.sa_handler = jump}, bus, segv;
    sigaction(SIGBUS, &action, &bus);
    sigaction(SIGSEGV, &action, &segv);
    int number = sigsetjmp(landing, 1);
    if (number == 0) {
        if (write) *at = 1;
        else (void)*at;
    }
    sigaction(SIGBUS, &bus, NULL);
    sigaction(SIGSEGV, &segv, NULL);
    return number;
}

// ---- fork ---------------------------------------------------------------------------------------

enum { FORK_PAGES = 600 };

// Writes every page of this process's share and reads all others', which were written before.
static void share(uint64_t *at, int mine, int of, uint64_t round) {
    for (uint64_t step = 0; step < FORK_PAGES; step++) {
        uint64_t page = mixed(round * 1000 + step) % FORK_PAGES;
        uint64_t *p = at + page * 512;
        if ((int)(page % (uint64_t)of) == mine) p[1 + mine] = round * 1000003 + page;
        CHECK(p[0] == word_of(page, 0) && p[511] == word_of(page, 511));
    }
    for (uint64_t page = (uint64_t)mine; page < FORK_PAGES; page += (uint64_t)of)
        at[page * 512 + 1 + (uint64_t)mine] = round * 1000003 + page;
}

// Parent and children write and read one shared mapping, all of them short of memory.
static void fork_shared(void) {
    int fd = make("shared", FORK_PAGES);
    uint64_t *at = map(fd, FORK_PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    share(at, 0, 1, 1);
    for (uint64_t round = 2; round < 6; round++) {
        pid_t child[3];
        for (int i = 0; i < 3; i++) {
            if ((child[i] = fork()) == 0) {
                if (i == 2) {
                    // A grandchild does the work of its parent.
                    pid_t pid = fork();
                    if (pid != 0) _exit(ended(pid));
                }
                share(at, i, 4, round);
                _exit(7 + i);
            }
        }
        share(at, 3, 4, round);
        for (int i = 0; i < 3; i++) CHECK(ended(child[i]) == 7 + i);
        for (uint64_t page = 0; page < FORK_PAGES; page++)
            CHECK(at[page * 512 + 1 + page % 4] == round * 1000003 + page);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < FORK_PAGES * 512; i++) sum = mixed(sum ^ at[i]);
    printf("fork %lx\n", sum);
}

static _Atomic int stop_faulting;
static uint64_t *faulting_at;
static void *keep_faulting(void *seed) {
    uint64_t x = (uint64_t)(uintptr_t)seed;
    while (!stop_faulting) {
        x = mixed(x + 1);
        uint64_t page = x % FORK_PAGES;
        uint64_t *p = faulting_at + page * 512;
        CHECK(p[0] == word_of(page, 0) && p[511] == word_of(page, 511));
        __atomic_fetch_add(p + 100, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

// Forks while other threads fault; every child looks at all pages.
static void fork_threads(void) {
    int fd = make("threads", FORK_PAGES);
    faulting_at = map(fd, FORK_PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, keep_faulting, (void *)i));
    for (int i = 0; i < 12; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            for (uint64_t page = 0; page < FORK_PAGES; page++) {
                uint64_t *p = faulting_at + page * 512;
                CHECK(p[0] == word_of(page, 0) && p[511] == word_of(page, 511));
                p[200 + i] = page;
            }
            _exit(3);
        }
        CHECK(ended(pid) == 3);
    }
    stop_faulting = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (uint64_t page = 0; page < FORK_PAGES; page++) {
        for (int i = 0; i < 12; i++) CHECK(faulting_at[page * 512 + 200 + (uint64_t)i] == page);
        faulting_at[page * 512 + 100] = 0;
    }
    puts("fork with threads");
}

// vfork and exec, and posix_spawn, with dirty pages that the new program reads by itself.
static pthread_barrier_t begun, stored;
static uint64_t *begin_words;
static int begin_file;
static const char *begin_opens; // none: they have it from their parent

static void *begin(void *number) {
    uint64_t mine = (uint64_t)number;
    pthread_barrier_wait(&begun);
    int fd = begin_opens ? open(begin_opens, O_RDWR) : begin_file;
    CHECK(fd >= 0);
    for (int page = 0; page < 64; page++) {
        uint64_t word = begin_words[mine] + (uint64_t)page, had;
        CHECK(pread(fd, &had, 8, page * PAGE + 64) == 8 && had == begin_words[4]);
        CHECK(pwrite(fd, &word, 8, page * PAGE + 128 + (off_t)mine * 8) == 8);
    }
    uint64_t *at = map(fd, 64, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (int page = 0; page < 64; page++) at[page * 512 + mine] = begin_words[mine] + (uint64_t)page;
    pthread_barrier_wait(&stored);
    for (uint64_t other = 0; other < 4; other++)
        for (int page = 0; page < 64; page++)
            CHECK(at[page * 512 + other] == begin_words[other] + (uint64_t)page &&
                  at[page * 512 + 16 + other] == begin_words[other] + (uint64_t)page);
    return NULL;
}

// The first that a forked child does is done by several of its threads at once.
static void fork_begin(void) {
    begin_file = make("begin", 64);
    CHECK(pthread_barrier_init(&begun, NULL, 4) == 0 && pthread_barrier_init(&stored, NULL, 4) == 0);
    uint64_t *dirty = map(begin_file, 64, PROT_READ | PROT_WRITE, MAP_SHARED);
    char path[4096];
    snprintf(path, sizeof path, "%s", in("begin"));
    for (uint64_t round = 1; round <= 30; round++) {
        for (int page = 0; page < 64; page++) dirty[page * 512 + 8] = round;
        pid_t pid = fork();
        if (pid == 0) {
            uint64_t words[] = {round * 1000, round * 2000, round * 3000, round * 4000, round};
            begin_words = words;
            begin_opens = round % 2 ? path : NULL;
            pthread_t threads[4];
            for (uint64_t i = 0; i < 4; i++)
                CHECK(pthread_create(&threads[i], NULL, begin, (void *)i) == 0);
            for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
            _exit(0);
        }
        CHECK(ended(pid) == 0);
        for (int page = 0; page < 64; page++) {
            uint64_t words[20];
            CHECK(pread(begin_file, words, sizeof words, page * PAGE) == sizeof words);
            for (uint64_t i = 0; i < 4; i++) {
                uint64_t word = round * 1000 * (i + 1) + (uint64_t)page;
                CHECK(words[i] == word && words[16 + i] == word);
            }
        }
    }
    puts("begun");
}

static void spawn_programs(void) {
    int fd = make("spawn", 100);
    unsigned char *at = map(fd, 100, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (int i = 0; i < 100; i++) at[i * PAGE + 17] = (unsigned char)i;
    const char *path = in("spawn");
    fflush(stdout);
    pid_t pid = vfork();
    if (pid == 0) {
        execlp("cksum", "cksum", path, NULL);
        _exit(127);
    }
    CHECK(ended(pid) == 0);
    // The parent's mapping works on, and so does one made after.
    for (int i = 0; i < 100; i++) at[i * PAGE + 18] = (unsigned char)(i + 1);
    // A shell reads from a descriptor that it inherits.
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, 9) == 9);
    char *argv[] = {"sh", "-c", "cksum <&9; exec 9<&-", NULL};
    CHECK(posix_spawnp(&pid, "sh", NULL, NULL, argv, environ) == 0 && ended(pid) == 0);
    pid = vfork();
    if (pid == 0) _exit(5);
    CHECK(ended(pid) == 5);
    for (int i = 0; i < 100; i++) CHECK(at[i * PAGE + 17] == i && at[i * PAGE + 18] == i + 1);
    puts("spawned");
}

// ---- threads ------------------------------------------------------------------------------------

enum { THREADS = 64, THREAD_PAGES = 150 };
static pthread_barrier_t barrier;
static _Atomic uint64_t *counters;

static void *count_pages(void *write) {
    for (uint64_t page = 0; page < THREAD_PAGES; page++) {
        pthread_barrier_wait(&barrier);
        if (write || page % 3) counters[page * 512]++;
        else CHECK(counters[page * 512 + 1] == word_of(page, 1));
    }
    return NULL;
}

// Sixty-four threads fault on the same page at the same moment, again and again.
static void one_page(void) {
    int fd = make("page", THREAD_PAGES);
    counters = map(fd, THREAD_PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    pthread_barrier_init(&barrier, NULL, THREADS);
    pthread_t threads[THREADS];
    for (int half = 0; half < 2; half++) {
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK(!pthread_create(&threads[i], NULL, count_pages, half ? &threads : NULL));
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    }
    for (uint64_t page = 0; page < THREAD_PAGES; page++) {
        uint64_t first = page % 3 ? THREADS : 0;
        CHECK(counters[page * 512] == word_of(page, 0) + first + THREADS);
        CHECK(counters[page * 512 + 1] == word_of(page, 1));
    }
    puts("64 threads");
}

// ---- private mappings ---------------------------------------------------------------------------

static void private_copies(void) {
    enum { PAGES = 300 };
    int fd = make("private", PAGES);
    uint64_t *p = map(fd, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    uint64_t *s = map(fd, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (uint64_t i = 0; i < PAGES; i += 3) p[i * 512 + 5] = i + 1;
    for (uint64_t i = 0; i < PAGES; i++) {
        CHECK(p[i * 512 + 5] == (i % 3 ? word_of(i, 5) : i + 1));
        CHECK(p[i * 512 + 6] == word_of(i, 6));
        CHECK(s[i * 512 + 5] == word_of(i, 5));
    }
    // What the file gets shows through where there is no copy.
    for (uint64_t i = 0; i < PAGES; i++) s[i * 512 + 7] = i + 2;
    for (uint64_t i = 0; i < PAGES; i++)
        CHECK(i % 3 == 0 || p[i * 512 + 7] == i + 2);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        for (uint64_t i = 0; i < PAGES; i++) {
            CHECK(p[i * 512 + 5] == (i % 3 ? word_of(i, 5) : i + 1));
            p[i * 512 + 5] = 99;
        }
        for (uint64_t i = 0; i < PAGES; i++) CHECK(p[i * 512 + 5] == 99);
        _exit(4);
    }
    for (uint64_t i = 0; i < PAGES; i += 2) p[i * 512 + 5] = i + 50;
    CHECK(ended(pid) == 4);
    for (uint64_t i = 0; i < PAGES; i++) {
        uint64_t want = i % 2 == 0 ? i + 50 : i % 3 ? word_of(i, 5) : i + 1;
        CHECK(p[i * 512 + 5] == want && s[i * 512 + 5] == word_of(i, 5));
    }
    // Dropping a private copy brings the file's page back.
    CHECK(madvise(p, PAGES * PAGE, MADV_DONTNEED) == 0);
    for (uint64_t i = 0; i < PAGES; i++)
        CHECK(p[i * 512 + 5] == word_of(i, 5) && p[i * 512 + 7] == i + 2);
    // A private mapping of a descriptor that may only read can be written.
    int ro = open(in("private"), O_RDONLY);
    uint64_t *q = map(ro, PAGES, PROT_READ, MAP_PRIVATE);
    CHECK(q[5] == word_of(0, 5));
    CHECK(mprotect(q, PAGES * PAGE, PROT_READ | PROT_WRITE) == 0);
    for (uint64_t i = 0; i < PAGES; i++) q[i * 512 + 5] = 1;
    for (uint64_t i = 0; i < PAGES; i++) CHECK(q[i * 512 + 5] == 1 && s[i * 512 + 5] == word_of(i, 5));
    uint64_t word;
    CHECK(pread(fd, &word, 8, 40) == 8 && word == word_of(0, 5));
    // The kernel fills a private page that was never touched by a system call.
    int pipes[2];
    CHECK(pipe(pipes) == 0 && write(pipes[1], "abcdefgh", 8) == 8);
    CHECK(munmap(q, PAGES * PAGE) == 0);
    q = map(ro, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    CHECK(read(pipes[0], q + 77 * 512 + 9, 8) == 8 && !memcmp(q + 77 * 512 + 9, "abcdefgh", 8));
    CHECK(q[77 * 512 + 10] == word_of(77, 10));
    puts("private");
}

// ---- shapes of mappings -------------------------------------------------------------------------

static void moves(void) {
    enum { PAGES = 200 };
    int fd = make("moves", PAGES);
    uint64_t *at = map(fd, 100, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (uint64_t i = 0; i < 100; i++) at[i * 512 + 3] = i;
    // In place or elsewhere, larger.
    uint64_t *now = mremap(at, 100 * PAGE, PAGES * PAGE, MREMAP_MAYMOVE);
    CHECK(now != MAP_FAILED);
    for (uint64_t i = 0; i < PAGES; i++)
        CHECK(now[i * 512 + 3] == (i < 100 ? i : word_of(i, 3)) && now[i * 512] == word_of(i, 0));
    for (uint64_t i = 0; i < PAGES; i++) now[i * 512 + 4] = i;
    // A part of it to a place of its own, over another mapping.
    uint64_t *place = map(fd, 60, PROT_READ | PROT_WRITE, MAP_SHARED);
    place[3] = 1234;
    uint64_t *moved = mremap(now + 50 * 512, 50 * PAGE, 50 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    CHECK(moved == place);
    CHECK(touch((char *)(now + 60 * 512), 0) == SIGSEGV);
    for (uint64_t i = 0; i < 50; i++) CHECK(moved[i * 512 + 4] == i + 50);
    for (uint64_t i = 50; i < 60; i++) CHECK(place[i * 512 + 4] == i);
    for (uint64_t i = 0; i < PAGES; i++)
        if (i < 50 || i >= 100) CHECK(now[i * 512 + 4] == i);
    CHECK(now[3] == 1234);
    // Smaller.
    CHECK(mremap(now + 100 * 512, 100 * PAGE, 30 * PAGE, 0) == now + 100 * 512);
    CHECK(touch((char *)(now + 131 * 512), 0) == SIGSEGV);
    for (uint64_t i = 100; i < 130; i++) now[i * 512 + 5] = i;
    // Twice the same: the old place stays.
    uint64_t *twin = mremap(moved, 0, 10 * PAGE, MREMAP_MAYMOVE);
    CHECK(twin != MAP_FAILED && twin != moved);
    for (uint64_t i = 0; i < 10; i++) {
        twin[i * 512 + 6] = i;
        CHECK(moved[i * 512 + 6] == i && twin[i * 512 + 4] == i + 50);
    }
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == PAGES * PAGE);
    uint64_t word, sum = 0;
    for (off_t i = 0; i < PAGES; i++)
        for (off_t w = 3; w < 7; w++) {
            CHECK(pread(fd, &word, 8, i * PAGE + w * 8) == 8);
            sum = mixed(sum ^ word);
        }
    printf("moves %lx\n", sum);
}

static void pieces(void) {
    enum { PAGES = 120 };
    int fd = make("pieces", PAGES);
    uint64_t *at = map(fd, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (uint64_t i = 0; i < PAGES; i++) at[i * 512 + 3] = i;
    // Holes.
    for (uint64_t i = 0; i < PAGES; i += 10) CHECK(munmap(at + i * 512, 3 * PAGE) == 0);
    for (uint64_t i = 0; i < PAGES; i++) {
        if (i % 10 < 3) CHECK(touch((char *)(at + i * 512), 1) == SIGSEGV);
        else {
            CHECK(at[i * 512 + 3] == i);
            at[i * 512 + 4] = i + 1;
        }
    }
    // Other pages of the file in the holes, and anonymous memory.
    for (uint64_t i = 0; i < PAGES; i += 10) {
        off_t other = (off_t)((i + 50) % PAGES) * PAGE;
        CHECK(mmap(at + i * 512, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, other) == at + i * 512);
        CHECK(mmap(at + (i + 1) * 512, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
        CHECK(at[(i + 1) * 512] == 0);
        at[(i + 1) * 512] = 7;
        CHECK(at[i * 512] == word_of((i + 50) % PAGES, 0) && at[i * 512 + 3] == (i + 50) % PAGES);
    }
    // Over a part of a mapping, without unmapping it first.
    CHECK(mmap(at + 5 * 512, 2 * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == at + 5 * 512);
    CHECK(at[5 * 512] == word_of(0, 0) && at[7 * 512] == word_of(7, 0));
    // Protections in pieces.
    CHECK(mprotect(at + 33 * 512, 2 * PAGE, PROT_READ) == 0);
    CHECK(touch((char *)(at + 33 * 512), 1) == SIGSEGV && at[33 * 512 + 3] == 33);
    CHECK(mprotect(at + 34 * 512, PAGE, PROT_NONE) == 0);
    CHECK(touch((char *)(at + 34 * 512), 0) == SIGSEGV);
    CHECK(mprotect(at + 33 * 512, 2 * PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(at[34 * 512 + 3] == 34);
    at[33 * 512 + 8] = 1;
    uint64_t word;
    CHECK(pread(fd, &word, 8, 33 * PAGE + 64) == 8 && word == 1);
    CHECK(munmap(at, PAGES * PAGE) == 0);
    for (uint64_t i = 0; i < PAGES; i++) {
        CHECK(pread(fd, &word, 8, (off_t)i * PAGE + 32) == 8);
        CHECK(word == (i % 10 < 3 ? word_of(i, 4) : i + 1));
    }
    puts("pieces");
}

static void advice(void) {
    enum { PAGES = 200 };
    int fd = make("advice", PAGES);
    uint64_t *at = map(fd, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    int all[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_COLD, MADV_PAGEOUT};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        for (uint64_t i = 0; i < PAGES; i++) at[i * 512 + 1] = i + k;
        CHECK(madvise(at, PAGES * PAGE, all[k]) == 0);
        for (uint64_t i = 0; i < PAGES; i++) CHECK(at[i * 512 + 1] == i + k && at[i * 512] == word_of(i, 0));
    }
    FAILS(madvise(at, PAGES * PAGE, MADV_FREE), EINVAL);
    FAILS(madvise(at, PAGE, 4242), EINVAL);
    FAILS(madvise((char *)at + 1, PAGE, MADV_WILLNEED), EINVAL);
    // Takes the pages out of the file too.
    CHECK(madvise(at + 10 * 512, 5 * PAGE, MADV_REMOVE) == 0);
    uint64_t word;
    for (uint64_t i = 8; i < 18; i++) {
        int gone = i >= 10 && i < 15;
        CHECK(at[i * 512] == (gone ? 0 : word_of(i, 0)));
        CHECK(pread(fd, &word, 8, (off_t)i * PAGE) == 8 && word == at[i * 512]);
        at[i * 512] = i;
    }
    for (uint64_t i = 8; i < 18; i++) CHECK(pread(fd, &word, 8, (off_t)i * PAGE) == 8 && word == i);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    CHECK(mlock(at, PAGES * PAGE) == 0 || errno == ENOMEM || errno == EPERM);
    for (uint64_t i = 20; i < PAGES; i++) CHECK(at[i * 512] == word_of(i, 0));
    CHECK(munlock(at, PAGES * PAGE) == 0);
    puts("advice");
}

static void rights(void) {
    int fd = make("rights", 50);
    const char *path = in("rights");
    int ro = open(path, O_RDONLY), wo = open(path, O_WRONLY);
    FAILS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0), EACCES);
    FAILS(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, wo, 0), EACCES);
    FAILS(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, wo, 0), EACCES);
    uint64_t *s = map(fd, 50, PROT_READ | PROT_WRITE, MAP_SHARED);
    uint64_t *r = map(ro, 50, PROT_READ, MAP_SHARED);
    for (uint64_t i = 0; i < 50; i++) CHECK(r[i * 512] == word_of(i, 0));
    FAILS(mprotect(r, 50 * PAGE, PROT_READ | PROT_WRITE), EACCES);
    FAILS(mprotect(r + 7 * 512, PAGE, PROT_WRITE), EACCES);
    CHECK(touch((char *)r, 1) == SIGSEGV);
    // The shared mapping of a descriptor that only reads shows what others write.
    for (uint64_t i = 0; i < 50; i++) s[i * 512] = i + 3;
    for (uint64_t i = 0; i < 50; i++) CHECK(r[i * 512] == i + 3);
    CHECK(pwrite(fd, "12345678", 8, 20 * PAGE) == 8 && !memcmp(r + 20 * 512, "12345678", 8));
    // The descriptor may be closed, and the mapping outlives a file's last name.
    CHECK(close(ro) == 0 && close(wo) == 0 && unlink(path) == 0);
    for (uint64_t i = 0; i < 50; i++) CHECK(i == 20 || r[i * 512] == i + 3);
    s[512] = 77;
    CHECK(r[512] == 77);
    close(fd);
    s[512 * 2] = 78;
    CHECK(r[512 * 2] == 78 && r[512 * 49] == 52);
    puts("rights");
}

static void ends(void) {
    int fd = make("ends", 20);
    CHECK(ftruncate(fd, 10 * PAGE + 100) == 0);
    char *at = map(fd, 20, PROT_READ | PROT_WRITE, MAP_SHARED);
    char *priv = map(fd, 20, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    CHECK(touch(at + 11 * PAGE, 0) == SIGBUS && touch(at + 11 * PAGE, 1) == SIGBUS);
    CHECK(touch(priv + 11 * PAGE, 0) == SIGBUS && touch(priv + 15 * PAGE, 1) == SIGBUS);
    for (int i = 100; i < PAGE; i++) CHECK(at[10 * PAGE + i] == 0);
    // Bytes behind the end are not the file's.
    at[10 * PAGE + 100] = 5;
    at[10 * PAGE + 99] = 6;
    CHECK(msync(at, 20 * PAGE, MS_SYNC) == 0);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == 10 * PAGE + 100);
    // A longer file shows in the mapping at once.
    CHECK(pwrite(fd, "x", 1, 15 * PAGE) == 1);
    CHECK(touch(at + 11 * PAGE, 0) == 0 && at[11 * PAGE] == 0 && at[15 * PAGE] == 'x');
    CHECK(priv[15 * PAGE] == 'x' && touch(at + 16 * PAGE, 0) == SIGBUS);
    at[15 * PAGE] = 'y';
    char c;
    CHECK(pread(fd, &c, 1, 15 * PAGE) == 1 && c == 'y');
    // A shorter one takes the pages away, the dirty ones too, and what comes back is zero.
    at[5 * PAGE] = 'd';
    CHECK(ftruncate(fd, 5 * PAGE) == 0);
    CHECK(touch(at + 5 * PAGE, 0) == SIGBUS && touch(at + 14 * PAGE, 1) == SIGBUS);
    CHECK(ftruncate(fd, 20 * PAGE) == 0);
    CHECK(at[5 * PAGE] == 0 && at[15 * PAGE] == 0 && at[19 * PAGE + PAGE - 1] == 0);
    CHECK(((uint64_t *)at)[4 * 512] == word_of(4, 0));
    // A system call on memory behind the end fails.
    CHECK(ftruncate(fd, PAGE) == 0);
    int pipes[2];
    CHECK(pipe(pipes) == 0 && write(pipes[1], "abcd", 4) == 4);
    FAILS(read(pipes[0], at + 3 * PAGE, 4), EFAULT);
    FAILS(write(pipes[1], at + 3 * PAGE, 4), EFAULT);
    FAILS(pwrite(fd, at + 3 * PAGE, 4, 0), EFAULT);
    CHECK(read(pipes[0], at, 4) == 4 && !memcmp(at, "abcd", 4));
    // Files of no length, and lengths that end inside a page.
    int empty = open(in("empty"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    char *e = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, empty, 0);
    CHECK(e != MAP_FAILED && touch(e, 0) == SIGBUS);
    CHECK(ftruncate(empty, 10) == 0 && touch(e, 0) == 0);
    e[3] = 'e';
    CHECK(pread(empty, &c, 1, 3) == 1 && c == 'e');
    FAILS(mmap(NULL, 0, PROT_READ, MAP_SHARED, empty, 0), EINVAL);
    FAILS(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, empty, 100), EINVAL);
    puts("ends");
}

// What is stored behind the end of a file, in its last page, is not the file's, and does not come
// to light when the file grows over it.
static void behind(void) {
    for (int how = 0; how < 5; how++)
        for (int sync = 0; sync < 2; sync++) {
            int fd = open(in("behind"), O_RDWR | O_CREAT | O_TRUNC, 0644);
            char bytes[100];
            memset(bytes, 'a', sizeof bytes);
            CHECK(fd >= 0 && pwrite(fd, bytes, 100, 0) == 100);
            char *at = map(fd, 3, PROT_READ | PROT_WRITE, MAP_SHARED);
            at[50] = 'b';
            memset(at + 100, 'x', PAGE - 100);
            if (sync) CHECK(msync(at, PAGE, MS_SYNC) == 0);
            int from = 100;
            if (how == 0) CHECK(ftruncate(fd, 6000) == 0);
            if (how == 1) CHECK(pwrite(fd, "z", 1, 5000) == 1);
            if (how == 2) CHECK(posix_fallocate(fd, 0, 6000) == 0);
            if (how == 3) CHECK(posix_fallocate(fd, 2 * PAGE, 100) == 0);
            if (how == 4) {
                CHECK(lseek(fd, 0, SEEK_END) == 100 && write(fd, "yyyyyyyyyy", 10) == 10);
                CHECK(ftruncate(fd, PAGE) == 0);
                from = 110;
            }
            char read[PAGE];
            CHECK(pread(fd, read, PAGE, 0) == PAGE && at[50] == 'b');
            for (int i = from; i < PAGE; i++) CHECK(at[i] == 0 && read[i] == 0);
            CHECK(munmap(at, 3 * PAGE) == 0 && close(fd) == 0);
        }
    puts("behind the end");
}

// A file that is mapped when it is empty, or small, and again when it has grown: both mappings show
// the same, and so does read.
static void grown(void) {
    int fd = open(in("grown"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    size_t first_pages = strtoul(rest[0], NULL, 0);
    CHECK(fd >= 0 && pwrite(fd, "abc", 3, 0) == 3 && ftruncate(fd, rest[1] ? 3 : 0) == 0);
    char *first = map(fd, first_pages, PROT_READ | PROT_WRITE, MAP_SHARED);
    CHECK(ftruncate(fd, 100 * PAGE) == 0);
    int again = open(in("grown"), O_RDWR);
    char *second = map(again, 100, PROT_READ | PROT_WRITE, MAP_SHARED), c;
    for (size_t page = 0; page < 100; page++) {
        second[page * PAGE + 1] = (char)page;
        if (page >= first_pages) continue;
        CHECK(first[page * PAGE + 1] == (char)page);
        first[page * PAGE + 2] = (char)(page + 1);
        CHECK(second[page * PAGE + 2] == (char)(page + 1));
        CHECK(pread(fd, &c, 1, (off_t)(page * PAGE + 2)) == 1 && c == (char)(page + 1));
        CHECK(pwrite(fd, "p", 1, (off_t)(page * PAGE + 3)) == 1);
        CHECK(first[page * PAGE + 3] == 'p' && second[page * PAGE + 3] == 'p');
    }
    puts("grown");
}

// A small file is mapped and deleted, and a large one is given its inode number: another file, and
// another name.
static void number_again(void) {
    int fd = open(in("small"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, "abc", 3) == 3);
    CHECK(munmap(map(fd, 1, PROT_READ, MAP_SHARED), PAGE) == 0);
    struct stat small, large;
    CHECK(fstat(fd, &small) == 0 && close(fd) == 0 && unlink(in("small")) == 0);
    fd = make("large", 100);
    CHECK(fstat(fd, &large) == 0);
    // What file systems that give numbers once only have no part in.
    if (small.st_ino != large.st_ino) fprintf(stderr, "another number\n");
    volatile uint64_t *at = map(fd, 100, PROT_READ, MAP_SHARED);
    for (size_t page = 0; page < 100; page++) CHECK(at[page * PAGE / 8] == word_of(page, 0));
    puts("read");
}

// Whether a mapping is one of the manager's memory.
static int is_managed(const void *at) {
    char line[4400];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        size_t start, end;
        if (sscanf(line, "%zx-%zx", &start, &end) == 2 && start <= (size_t)at && (size_t)at < end)
            found = strstr(line, "memfd:pagekeeper") != NULL;
    }
    fclose(maps);
    return found;
}

// A file that was mapped when it was small has grown, and nobody has it mapped any more: it is mapped
// anew by the descriptor of then, or by another. With "child", one has the first mapping still, for a
// while, and both see what is stored.
static void grown_later(void) {
    int child_has_it = rest[0] && strcmp(rest[0], "child") == 0, by_another = rest[0] != NULL;
    int fd = open(in("later"), O_RDWR | O_CREAT | O_TRUNC, 0644), go[2], back[2];
    CHECK(fd >= 0 && write(fd, "abc", 3) == 3 && pipe(go) == 0 && pipe(back) == 0);
    volatile char *small = map(fd, 1, PROT_READ | PROT_WRITE, MAP_SHARED);
    small[1] = 'B';
    pid_t child = 0;
    char c = 0;
    if (child_has_it && (child = fork()) == 0) {
        CHECK(read(go[0], &c, 1) == 1 && small[2] == 'C');
        small[0] = 'A';
        CHECK(write(back[1], "b", 1) == 1 && read(go[0], &c, 1) == 1);
        _exit(0);
    }
    CHECK(munmap((void *)small, PAGE) == 0);
    char page[PAGE];
    memset(page, 'g', PAGE);
    for (off_t at = 1; at < 100; at++) CHECK(pwrite(fd, page, PAGE, at * PAGE) == PAGE);
    int other = by_another ? open(in("later"), O_RDWR) : fd;
    volatile char *large = map(other, 100, PROT_READ | PROT_WRITE, MAP_SHARED);
    if (child_has_it) {
        CHECK(!is_managed((void *)large) && large[1] == 'B');
        large[2] = 'C';
        CHECK(write(go[1], "a", 1) == 1 && read(back[0], &c, 1) == 1 && large[0] == 'A');
        CHECK(munmap((void *)large, 100 * PAGE) == 0 && write(go[1], "c", 1) == 1);
        CHECK(ended(child) == 0);
        for (int tries = 0;; tries++) {
            large = map(fd, 100, PROT_READ | PROT_WRITE, MAP_SHARED);
            if (!getenv("PAGEKEEPER_SOCKET") || is_managed((void *)large)) break;
            CHECK(tries < 1000 && munmap((void *)large, 100 * PAGE) == 0 && usleep(10000) == 0);
        }
    }
    for (size_t i = 1; i < 100; i++) {
        CHECK(large[i * PAGE] == 'g' && (large[i * PAGE + 1] = (char)i) == (char)i);
        CHECK(pread(fd, &c, 1, (off_t)(i * PAGE + 1)) == 1 && c == (char)i);
        CHECK(pwrite(fd, "p", 1, (off_t)(i * PAGE + 2)) == 1 && large[i * PAGE + 2] == 'p');
    }
    CHECK(large[1] == 'B' && pread(fd, page, 3, 0) == 3 && page[1] == 'B');
    printf("later %.3s\n", page);
}

// Descriptors of a small file are open while more small files are used than the manager keeps slots
// for; then it grows, and is managed under another number than when they were opened.
static void many_small(void) {
    enum { FILES = 40000 };
    int fd = open(in("small"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, "abcdef", 6) == 6 && lseek(fd, 0, SEEK_SET) == 0);
    int reader = open(in("small"), O_RDONLY), copy = dup(reader), appender = dup(fd);
    char c = 0, name[64];
    CHECK(read(reader, &c, 1) == 1 && c == 'a' && read(copy, &c, 1) == 1 && c == 'b');
    // In another process: nothing here tells of them.
    pid_t child = fork();
    for (int i = 0; child == 0 && i < FILES; i++) {
        // Files that no disk has to make.
        int memory = memfd_create("small", 0);
        snprintf(name, sizeof name, "/proc/self/fd/%d", memory);
        int one = open(name, O_RDWR);
        CHECK(one >= 0 && write(one, "x", 1) == 1 && close(one) == 0 && close(memory) == 0);
    }
    if (child == 0) _exit(0);
    CHECK(ended(child) == 0 && pwrite(fd, "w", 1, 5) == 1);
    int other = open(in("small"), O_RDWR);
    CHECK(other >= 0 && ftruncate(other, 100 * PAGE) == 0);
    if ((child = fork()) == 0) {
        // The table of the parent's descriptors is this one's.
        volatile char *at = map(other, 100, PROT_READ | PROT_WRITE, MAP_SHARED);
        for (size_t i = 1; i < 100; i++) at[i * PAGE] = 'm';
        CHECK(pread(reader, &c, 1, 99 * PAGE) == 1 && c == 'm');
        CHECK(pwrite(fd, "n", 1, 98 * PAGE) == 1 && at[98 * PAGE] == 'n');
        _exit(0);
    }
    CHECK(ended(child) == 0);
    CHECK(read(reader, &c, 1) == 1 && c == 'c' && read(copy, &c, 1) == 1 && c == 'd');
    volatile char *at = map(other, 100, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (size_t i = 1; i < 98; i++) {
        CHECK(at[i * PAGE] == 'm' && (at[i * PAGE + 1] = (char)i) == (char)i);
        CHECK(pread(copy, &c, 1, (off_t)(i * PAGE + 1)) == 1 && c == (char)i);
        CHECK(pwrite(appender, "p", 1, (off_t)(i * PAGE + 2)) == 1 && at[i * PAGE + 2] == 'p');
    }
    CHECK(pread(fd, name, 6, 0) == 6);
    printf("small %.6s\n", name);
}

// Several processes append to a file whose last page is in memory: all lines are there, whole.
static void appends(void) {
    enum { PROCESSES = 4, LINES = 400, BYTES = 24 };
    for (int shared_offset = 0; shared_offset < 2; shared_offset++) {
        int append = shared_offset ? 0 : O_APPEND;
        int fd = open(in("appends"), O_RDWR | O_CREAT | O_TRUNC | append, 0644);
        char line[BYTES] = "first";
        CHECK(fd >= 0 && write(fd, line, BYTES) == BYTES);
        char *at = map(fd, 256, PROT_READ | PROT_WRITE, MAP_SHARED);
        for (int who = 0; who < PROCESSES; who++)
            if (fork() == 0) {
                for (int i = 0; i < LINES; i++) {
                    snprintf(line, BYTES, "%d %d", who, i);
                    CHECK(write(fd, line, BYTES) == BYTES);
                    at[i % 2 * 8] = 'f'; // the first page is dirty, and so is the last at first
                    // Of one shared offset another's place may be claimed and not written yet.
                    CHECK(shared_offset || at[BYTES * (i % 100)] != 0);
                }
                _exit(0);
            }
        int status;
        while (wait(&status) > 0) CHECK(status == 0);
        static char all[256 * PAGE], seen[PROCESSES][LINES];
        memset(seen, 0, sizeof seen);
        long got = pread(fd, all, sizeof all, 0);
        CHECK(got == BYTES + (long)PROCESSES * LINES * BYTES && !memcmp(all, at, (size_t)got));
        for (long place = BYTES; place < got; place += BYTES) {
            int who, i;
            CHECK(sscanf(all + place, "%d %d", &who, &i) == 2);
            CHECK(who >= 0 && who < PROCESSES && i >= 0 && i < LINES && !seen[who][i]++);
        }
        CHECK(munmap(at, 256 * PAGE) == 0 && close(fd) == 0);
    }
    // In which order is nobody's business.
    CHECK(unlink(in("appends")) == 0);
    puts("appended");
}

// ---- system calls on managed memory -------------------------------------------------------------

// The kernel reads and writes managed memory itself, evicted or not.
static void buffers(void) {
    enum { PAGES = 200 };
    int fd = make("buffers", PAGES), out = open(in("copy"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    char *at = map(fd, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    CHECK(write(out, at, PAGES * PAGE) == PAGES * PAGE);
    char *copy = map(out, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    CHECK(!memcmp(at, copy, PAGES * PAGE));
    memset(copy, 0, PAGES * PAGE);
    // From one managed file into the mapping of another, and of the same.
    CHECK(pread(fd, copy, PAGES * PAGE, 0) == PAGES * PAGE && !memcmp(at, copy, PAGES * PAGE));
    CHECK(pread(fd, at, 50 * PAGE, 100 * PAGE) == 50 * PAGE && !memcmp(at, at + 100 * PAGE, 50 * PAGE));
    CHECK(pwrite(fd, at + 100 * PAGE, 20 * PAGE, 60 * PAGE) == 20 * PAGE);
    CHECK(!memcmp(at + 60 * PAGE, at + 100 * PAGE, 20 * PAGE));
    CHECK(pwrite(fd, at, 40 * PAGE, 120 * PAGE + 8) == 40 * PAGE);
    CHECK(!memcmp(at + 120 * PAGE + 8, at, 40 * PAGE));
    // Through pipes and plain files.
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < PAGES; i += 4) {
        CHECK(write(pipes[1], at + i * PAGE, 4 * PAGE) == 4 * PAGE);
        for (int got = 0; got < 4 * PAGE;) {
            ssize_t n = read(pipes[0], copy + i * PAGE + got, (size_t)(4 * PAGE - got));
            CHECK(n > 0);
            got += (int)n;
        }
    }
    CHECK(!memcmp(at, copy, PAGES * PAGE));
    struct stat *st = (struct stat *)(copy + 150 * PAGE);
    CHECK(stat(in("copy"), st) == 0 && st->st_size == PAGES * PAGE);
    memset(st, 0, sizeof *st);
    puts("buffers");
}

// ---- many files, large files --------------------------------------------------------------------

static void many_files(void) {
    size_t count = strtoul(rest[0], NULL, 0);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    char **at = calloc(count, sizeof *at);
    for (size_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "f%zu", i);
        int fd = open(in(name), O_RDWR | O_CREAT | O_TRUNC, 0644);
        CHECK(fd >= 0);
        char text[64];
        int n = snprintf(text, sizeof text, "file %zu", i);
        CHECK(pwrite(fd, text, (size_t)n, 0) == n && ftruncate(fd, 6000) == 0);
        at[i] = mmap(NULL, 6000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(at[i] != MAP_FAILED && close(fd) == 0);
    }
    for (size_t k = 0; k < count; k++) {
        size_t i = mixed(k) % count;
        CHECK(strtoul(at[i] + 5, NULL, 10) == i);
        snprintf(at[i] + 4200, 64, "second page of %zu", i);
    }
    for (size_t i = 0; i < count; i++) {
        CHECK(strtoul(at[i] + 5, NULL, 10) == i);
        CHECK(!at[i][4200] || strtoul(at[i] + 4215, NULL, 10) == i);
        snprintf(at[i] + 4200, 64, "second page of %zu", i);
    }
    for (size_t i = 0; i < count; i++) CHECK(munmap(at[i], 6000) == 0);
    printf("%zu files\n", count);
}

static void terabyte(void) {
    enum { TOUCHED = 3000 };
    const uint64_t pages = 1ull << 28;
    int fd = open(in("sparse"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)(pages * PAGE)) == 0);
    uint64_t *at = map(fd, pages, PROT_READ | PROT_WRITE, MAP_SHARED);
    // Or the kernel, in the bare run, reads megabytes around each page.
    CHECK(madvise(at, pages * PAGE, MADV_RANDOM) == 0);
    for (uint64_t i = 0; i < TOUCHED; i++) {
        uint64_t page = mixed(i) % pages;
        if (i % 3 == 0) at[page * 512 + 9] = i + 1;
        else CHECK(at[page * 512 + 10] == 0);
    }
    uint64_t word;
    for (uint64_t i = 0; i < TOUCHED; i += 3) {
        uint64_t page = mixed(i) % pages;
        CHECK(at[page * 512 + 9] == i + 1);
        CHECK(pread(fd, &word, 8, (off_t)(page * PAGE + 72)) == 8 && word == i + 1);
    }
    at[(pages - 1) * 512 + 511] = 5;
    CHECK(msync(at, pages * PAGE, MS_SYNC) == 0);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == (off_t)(pages * PAGE));
    // As many blocks as were written, not as were touched.
    CHECK(st.st_blocks * 512 <= (TOUCHED / 3 + 2) * (PAGE + 1024));
    puts("terabyte");
}

// A few pages' memory: instructions that need several pages at once must still get through.
static void few_frames(void) {
    enum { PAGES = 100 };
    int fd = make("few", PAGES);
    char *at = map(fd, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (int i = 0; i + 1 < PAGES; i++) {
        uint64_t word;
        memcpy(&word, at + (i + 1) * PAGE - 4, 8);
        memcpy(at + (i + 1) * PAGE - 4, &word, 8);
    }
    memmove(at + 1, at, (PAGES - 1) * PAGE);
    memmove(at, at + 1, (PAGES - 1) * PAGE);
    for (uint64_t i = 0; i + 1 < PAGES; i++)
        CHECK(((uint64_t *)at)[i * 512 + 3] == word_of(i, 3));
    CHECK(write(fd, at, 0) == 0 && pwrite(fd, at, 30 * PAGE, 60 * PAGE) == 30 * PAGE);
    for (uint64_t i = 0; i < 30; i++) CHECK(((uint64_t *)at)[(i + 60) * 512 + 3] == word_of(i, 3));
    // Sixteen threads at once.
    faulting_at = map(make("few2", FORK_PAGES), FORK_PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    pthread_t threads[16];
    stop_faulting = 0;
    for (uintptr_t i = 0; i < 16; i++) CHECK(!pthread_create(&threads[i], NULL, keep_faulting, (void *)i));
    usleep(300000);
    stop_faulting = 1;
    for (int i = 0; i < 16; i++) pthread_join(threads[i], NULL);
    for (uint64_t page = 0; page < FORK_PAGES; page++) faulting_at[page * 512 + 100] = 0;
    puts("few frames");
}

// ---- everything at once -------------------------------------------------------------------------

enum { STRESS_PAGES = 400, STRESS_THREADS = 3, STRESS_PROCESSES = 3, TAIL_PAGES = 64 };
static const char *stress_path;

// One of many: owns every so-manieth page, and keeps to itself what they hold. It writes and reads
// them in every way, through mappings that come, go and move, while the others do the same.
static void *stress(void *number) {
    const uint64_t me = (uint64_t)(uintptr_t)number, all = STRESS_THREADS * STRESS_PROCESSES;
    static __thread uint64_t expected[STRESS_PAGES];
    for (uint64_t p = 0; p < STRESS_PAGES; p++) expected[p] = word_of(p, 9);
    uint64_t seed = mixed(me + 77);
    int fd = open(stress_path, O_RDWR);
    CHECK(fd >= 0);
    size_t pages = STRESS_PAGES;
    uint64_t *at = map(fd, pages, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (int step = 0; step < 2500; step++) {
        seed = mixed(seed + 1);
        uint64_t page = (seed >> 8) % (STRESS_PAGES / all) * all + me, word;
        off_t offset = (off_t)(page * PAGE + 72);
        uint64_t *here = at + page * 512 + 9;
        switch (seed % 20) {
        case 0: case 1: case 2: case 3: case 4: case 5:
            CHECK(*here == expected[page]);
            break;
        case 6: case 7: case 8: case 9:
            *here = expected[page] = seed;
            break;
        case 10: case 11: case 12:
            CHECK(pread(fd, &word, 8, offset) == 8 && word == expected[page]);
            break;
        case 13: case 14: case 15:
            expected[page] = seed;
            CHECK(pwrite(fd, &seed, 8, offset) == 8 && *here == seed);
            break;
        case 16: // another mapping in place of this one
            if (step % 4) break;
            CHECK(munmap(at, pages * PAGE) == 0);
            at = map(fd, pages, PROT_READ | PROT_WRITE, MAP_SHARED);
            break;
        case 17: { // elsewhere
            if (step % 4) break;
            uint64_t *to = mremap(at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
            CHECK(to != MAP_FAILED);
            uint64_t *room = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(room != MAP_FAILED);
            at = mremap(to, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
            CHECK(at == room);
            break;
        }
        case 18:
            if (seed & 256) CHECK(madvise(at + page * 512, PAGE, MADV_DONTNEED) == 0);
            else if (step % 8 == 0) CHECK(msync(at + page * 512, PAGE, MS_SYNC) == 0);
            else if (step % 8 == 1) CHECK(madvise(at, pages * PAGE, MADV_WILLNEED) == 0);
            break;
        case 19:
            // What is behind everybody's pages grows and shrinks.
            if (step % 8 == 0) CHECK(ftruncate(fd, (off_t)(STRESS_PAGES + seed % TAIL_PAGES) * PAGE) == 0);
            else if (step % 8 == 1) CHECK(pwrite(fd, &seed, 8, (off_t)(STRESS_PAGES + TAIL_PAGES) * PAGE) == 8);
            break;
        }
    }
    for (uint64_t p = me; p < STRESS_PAGES / all * all; p += all) {
        uint64_t word;
        CHECK(at[p * 512 + 9] == expected[p]);
        CHECK(pread(fd, &word, 8, (off_t)(p * PAGE + 72)) == 8 && word == expected[p]);
        at[p * 512 + 9] = word_of(p, 9) + me;
        CHECK(at[p * 512] == word_of(p, 0) && at[p * 512 + 511] == word_of(p, 511));
    }
    CHECK(munmap(at, pages * PAGE) == 0 && close(fd) == 0);
    return NULL;
}

static void everything(void) {
    int fd = make("everything", STRESS_PAGES);
    stress_path = in("everything");
    pid_t pids[STRESS_PROCESSES];
    for (uintptr_t i = 0; i < STRESS_PROCESSES; i++) {
        if ((pids[i] = fork()) == 0) {
            pthread_t threads[STRESS_THREADS];
            for (uintptr_t t = 0; t < STRESS_THREADS; t++)
                CHECK(!pthread_create(&threads[t], NULL, stress, (void *)(i * STRESS_THREADS + t)));
            // A child now and then, which goes at once.
            for (int n = 0; n < 5; n++) {
                usleep(20000);
                pid_t pid = fork();
                if (pid == 0) _exit(9);
                CHECK(ended(pid) == 9);
            }
            for (int t = 0; t < STRESS_THREADS; t++) pthread_join(threads[t], NULL);
            _exit(0);
        }
    }
    for (int i = 0; i < STRESS_PROCESSES; i++) CHECK(ended(pids[i]) == 0);
    CHECK(ftruncate(fd, STRESS_PAGES * PAGE) == 0);
    puts("everything");
}

// ---- programs that start together -----------------------------------------------------------------

// Processes open, map and write a file in the same moment, one file after another.
static void together(void) {
    enum { FILES = 200, PROCESSES = 3 };
    atomic_int *arrived = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(arrived != MAP_FAILED);
    pid_t pids[PROCESSES];
    for (int who = 0; who < PROCESSES; who++) {
        if ((pids[who] = fork()) == 0) {
            for (int i = 0; i < FILES; i++) {
                char name[32];
                snprintf(name, sizeof name, "t%d", i);
                atomic_fetch_add(arrived, 1);
                while (atomic_load(arrived) < (i + 1) * PROCESSES) sched_yield();
                int fd = open(in(name), O_RDWR);
                CHECK(fd >= 0);
                volatile uint64_t *at = map(fd, 1, PROT_READ | PROT_WRITE, MAP_SHARED);
                at[who] = (uint64_t)i + 1;
                CHECK(munmap((void *)at, PAGE) == 0 && close(fd) == 0);
            }
            _exit(0);
        }
    }
    for (int who = 0; who < PROCESSES; who++) CHECK(ended(pids[who]) == 0);
    for (int i = 0; i < FILES; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", i);
        int fd = open(in(name), O_RDONLY);
        uint64_t words[PROCESSES];
        CHECK(read(fd, words, sizeof words) == sizeof words && close(fd) == 0);
        for (int who = 0; who < PROCESSES; who++) CHECK(words[who] == (uint64_t)i + 1);
    }
    puts("together");
}

// ---- flushing and evicting ------------------------------------------------------------------------

static _Atomic int stop_flushing;
static int flushed_file;
static char *flushed_at;
enum { FLUSHED_PAGES = 120 };

static void *flush_always(void *how) {
    while (!stop_flushing) {
        switch ((uint64_t)how) {
        case 0: CHECK(msync(flushed_at, FLUSHED_PAGES * PAGE, MS_SYNC) == 0); break;
        case 1: CHECK(fdatasync(flushed_file) == 0); break;
        case 2: CHECK(msync(flushed_at + 7 * PAGE, 50 * PAGE, MS_ASYNC) == 0); break;
        }
        usleep(200);
    }
    return NULL;
}

static void *store_always(void *number) {
    uint64_t mine = (uint64_t)number, random = mine, last[FLUSHED_PAGES] = {0};
    for (uint64_t i = 1; i <= 200; i++) {
        uint64_t page = mixed(random++) % FLUSHED_PAGES;
        volatile uint64_t *at = (uint64_t *)(flushed_at + page * PAGE) + mine;
        CHECK(*at == last[page]);
        *at = last[page] = i;
    }
    for (int page = 0; page < FLUSHED_PAGES; page++)
        CHECK(((uint64_t *)(flushed_at + page * PAGE))[mine] == last[page]);
    return NULL;
}

static void flushes(void) {
    flushed_file = make("flushed", 0);
    CHECK(ftruncate(flushed_file, FLUSHED_PAGES * PAGE) == 0);
    flushed_at = map(flushed_file, FLUSHED_PAGES, PROT_READ | PROT_WRITE, MAP_SHARED);
    pthread_t flushing[3], storing[3];
    for (uint64_t i = 0; i < 3; i++) {
        CHECK(pthread_create(&flushing[i], NULL, flush_always, (void *)i) == 0);
        CHECK(pthread_create(&storing[i], NULL, store_always, (void *)i) == 0);
    }
    for (int i = 0; i < 3; i++) CHECK(pthread_join(storing[i], NULL) == 0);
    stop_flushing = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(flushing[i], NULL) == 0);
    puts("flushed");
}

// ---- programs that somebody kills ---------------------------------------------------------------

// Writes numbered records to random places of a shared mapping, and says on standard output how
// far it is after each.
static void progress(void) {
    size_t pages = strtoul(rest[0], NULL, 0);
    uint64_t who = strtoul(rest[1], NULL, 0);
    int fd = open(in("progress"), O_RDWR);
    CHECK(fd >= 0);
    volatile uint64_t *at = map(fd, pages, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (uint64_t i = 1;; i++) {
        uint64_t page = mixed(i) % pages;
        at[page * 512 + who] = i;
        // Of some, by the file's own call.
        if (i % 16 == 0) {
            uint64_t word = i;
            CHECK(pwrite(fd, &word, 8, (off_t)(page * PAGE + 2048 + who * 8)) == 8);
        }
        CHECK(write(1, &i, 8) == 8);
    }
}

// Writes numbered records as `progress` does, syncs now and then, and says how far it is only when
// that has succeeded.
static void synced(void) {
    size_t pages = strtoul(rest[0], NULL, 0);
    uint64_t who = strtoul(rest[1], NULL, 0);
    int fd = open(in("progress"), O_RDWR);
    CHECK(fd >= 0);
    char *at = map(fd, pages, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (uint64_t i = 1;; i++) {
        uint64_t page = mixed(i) % pages;
        *((volatile uint64_t *)(at + page * PAGE) + who) = i;
        if (mixed(i * 3) % 40) continue;
        CHECK((i % 2 ? msync(at, pages * PAGE, MS_SYNC) : fdatasync(fd)) == 0);
        CHECK(write(1, &i, 8) == 8);
    }
}

// Counts in a mapping on from where the one before it ended, and says how far it is in a file that is
// not managed.
static void counted(void) {
    int fd = open(in("progress"), O_RDWR), told = open(rest[0], O_RDWR);
    CHECK(fd >= 0 && told >= 0);
    volatile uint64_t *said = map(told, 1, PROT_READ | PROT_WRITE, MAP_SHARED), begun;
    CHECK(pread(fd, (void *)&begun, 8, PAGE) == 8);
    // One more may have been stored and not said.
    CHECK(begun == *said || begun == *said + 1);
    volatile uint64_t *at = map(fd, 2, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (at += 512;; usleep(20)) {
        uint64_t next = *at + 1;
        CHECK(next > *said);
        *at = next;
        *said = next;
    }
}

int main(int argc, char **argv) {
    struct { const char *name; void (*part)(void); } parts[] = {
        {"fork-shared", fork_shared}, {"fork-threads", fork_threads}, {"spawn", spawn_programs},
        {"one-page", one_page}, {"private", private_copies}, {"moves", moves}, {"pieces", pieces},
        {"advice", advice}, {"rights", rights}, {"ends", ends}, {"buffers", buffers},
        {"behind", behind}, {"grown", grown}, {"number-again", number_again},
        {"grown-later", grown_later}, {"many-small", many_small}, {"appends", appends},
        {"fork-begin", fork_begin},        {"many-files", many_files}, {"terabyte", terabyte}, {"few-frames", few_frames},
        {"together", together}, {"flushes", flushes},
        {"everything", everything}, {"progress", progress}, {"synced", synced},
        {"counted", counted},
    };
    CHECK(argc > 2);
    directory = argv[2];
    rest = argv + 3;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(argv[1], parts[i].name)) {
            parts[i].part();
            return 0;
        }
    fprintf(stderr, "no part %s\n", argv[1]);
    return 2;
}
