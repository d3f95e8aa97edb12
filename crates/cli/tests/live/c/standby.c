// What programs see while the manager stands by, and when the standby ends in their midst: the first
// argument says which part. `data` has DATA_PAGES pages, each full of its own number; `trigger` is
// mapped to write to it and to execute it, which ends the standby.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "unheard.h"

#define PAGE 4096UL
#define DATA_PAGES 4096UL
#define PART_FIRST 1000UL
#define PART_PAGES 500UL
#define READERS 3

// What is done with a page waits longer than a fast disk does to deliver it (and more than the 16 us from which a
// loop ends a standby): a loop that is as fast as memory, or computes, is not one that ends a standby. Of the call no
// library hears.
#define WORK(page)                                                                                 \
    if ((page) % 16 == 0)                                                                          \
        unheard(SYS_nanosleep, (long)&(struct timespec){0, 600000}, 0, 0);

static uint64_t *map(const char *path, int flags, int prot, int kind, off_t at, size_t bytes) {
    int fd = open(path, flags);
    CHECK(fd >= 0);
    void *addr = mmap(NULL, bytes, prot, kind, fd, at);
    CHECK(addr != MAP_FAILED);
    close(fd);
    return addr;
}

static uint64_t *map_data(void) {
    return map("data", O_RDONLY, PROT_READ, MAP_SHARED, 0, DATA_PAGES * PAGE);
}

// Whether the mapping at an address is of the kernel's page cache.
static int is_the_kernels(const void *addr) {
    FILE *maps = fopen("/proc/thread-self/maps", "r");
    char line[4096];
    int found = -1;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        CHECK(sscanf(line, "%lx-%lx", &start, &end) == 2);
        if (start <= (unsigned long)addr && (unsigned long)addr < end)
            found = strstr(line, "memfd:") == NULL;
    }
    fclose(maps);
    CHECK(found >= 0);
    return found;
}

// Ends the standby, and makes a call that notices.
static void end_standby(void) {
    map("trigger", O_RDWR, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED, 0, PAGE);
    void *volatile made = malloc(1);
    free(made);
}

static void check_is_one_file(volatile uint64_t *all);

static uint64_t next(uint64_t *seed) {
    *seed = *seed * 6364136223846793005UL + 1442695040888963407UL;
    return *seed >> 33;
}

struct reader {
    const volatile uint64_t *all, *part;
    uint64_t seed;
};
static atomic_int stop;
static atomic_long touches;

// Touches pages in any order, and makes no call.
static void *reads(void *of) {
    struct reader *reader = of;
    while (!stop) {
        uint64_t page = next(&reader->seed) % DATA_PAGES;
        uint64_t word = next(&reader->seed) % (PAGE / 8);
        CHECK(reader->all[page * PAGE / 8 + word] == page);
        page = next(&reader->seed) % PART_PAGES;
        CHECK(reader->part[page * PAGE / 8 + word] == PART_FIRST + page);
        touches++;
    }
    return NULL;
}

static void take(void) {
    uint64_t *all = map_data();
    uint64_t *part = map("data", O_RDONLY, PROT_READ, MAP_PRIVATE, PART_FIRST * PAGE,
                         PART_PAGES * PAGE);
    int fd = open("data", O_RDONLY);
    CHECK(is_the_kernels(all) && is_the_kernels(part));
    struct reader readers[READERS];
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++) {
        readers[i] = (struct reader){all, part, i};
        CHECK(!pthread_create(&threads[i], NULL, reads, &readers[i]));
    }
    while (touches < 1000)
        usleep(100);
    end_standby();
    CHECK(!is_the_kernels(all) && !is_the_kernels(part));
    long before = touches;
    uint64_t seed = 99, words[PAGE / 8];
    while (touches < before + 20000) {
        uint64_t page = next(&seed) % DATA_PAGES;
        CHECK(pread(fd, words, PAGE, page * PAGE) == PAGE);
        CHECK(words[0] == page && words[PAGE / 8 - 1] == page);
    }
    stop = 1;
    for (int i = 0; i < READERS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    // Nobody may write to the one, and only for itself to the other.
    CHECK(mprotect(all, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    CHECK(!mprotect(part, PAGE, PROT_READ | PROT_WRITE));
    part[0] = 7;
    CHECK(all[PART_FIRST * PAGE / 8] == PART_FIRST && part[0] == 7);
    CHECK(!munmap(all + 100 * PAGE / 8, 100 * PAGE));
    CHECK(all[99 * PAGE / 8] == 99 && all[200 * PAGE / 8] == 200);
}

// Threads make and drop mappings all the time, of this file and of memory, where others were.
static void *changes(void *of) {
    uint64_t seed = (uint64_t)of;
    while (!stop) {
        uint64_t first = next(&seed) % (DATA_PAGES - 16);
        volatile uint64_t *part =
            map("data", O_RDONLY, PROT_READ, MAP_SHARED, first * PAGE, 16 * PAGE);
        CHECK(part[3 * PAGE / 8] == first + 3);
        if (next(&seed) % 4 == 0)
            CHECK(!mprotect((void *)part, 8 * PAGE, PROT_NONE));
        CHECK(part[9 * PAGE / 8] == first + 9);
        // The same addresses become memory, at once or, as far as nobody else has them, after a hole.
        int at_once = next(&seed) % 2;
        if (!at_once)
            CHECK(!munmap((void *)part, 16 * PAGE));
        uint64_t *memory = mmap((void *)part, 16 * PAGE, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | (at_once ? MAP_FIXED : 0), -1, 0);
        CHECK(memory != MAP_FAILED);
        for (int i = 0; i < 16; i++)
            CHECK(memory[i * PAGE / 8] == 0);
        memset(memory, 1, 16 * PAGE);
        for (int i = 0; i < 16; i++)
            CHECK(memory[i * PAGE / 8] == 0x0101010101010101UL);
        CHECK(!munmap(memory, 16 * PAGE));
        touches++;
    }
    return NULL;
}

static void change(void) {
    uint64_t *all = map_data();
    pthread_t threads[READERS];
    for (uintptr_t i = 0; i < READERS; i++)
        CHECK(!pthread_create(&threads[i], NULL, changes, (void *)i));
    while (touches < 300)
        usleep(100);
    end_standby();
    long before = touches;
    while (touches < before + 1000)
        usleep(100);
    CHECK(!is_the_kernels(all) && all[77 * PAGE / 8] == 77);
    stop = 1;
    for (int i = 0; i < READERS; i++)
        CHECK(!pthread_join(threads[i], NULL));
}

// A child is made: what it inherits is taken over first, and both find it.
static void forks(void) {
    uint64_t *all = map_data();
    CHECK(all[5 * PAGE / 8] == 5 && is_the_kernels(all));
    pid_t child = fork();
    CHECK(child >= 0);
    CHECK(!is_the_kernels(all));
    for (uint64_t page = 0; page < DATA_PAGES; page += 3)
        CHECK(all[page * PAGE / 8] == page);
    if (!child)
        _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// Two processes have the file mapped: it stays the kernel's, and what one stores the other sees.
static void two(void) {
    int ready[2], go[2];
    CHECK(!pipe(ready) && !pipe(go));
    char byte = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        close(go[1]);
        volatile uint64_t *mine = map_data();
        CHECK(mine[0] == 0);
        CHECK(write(ready[1], &byte, 1) == 1);
        CHECK(read(go[0], &byte, 1) == 1);
        CHECK(mine[3 * PAGE / 8] == 12345);
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    uint64_t *all = map_data();
    CHECK(all[3 * PAGE / 8] == 3);
    end_standby();
    CHECK(is_the_kernels(all));
    uint64_t *written = map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 8 * PAGE);
    written[3 * PAGE / 8] = 12345;
    CHECK(all[3 * PAGE / 8] == 12345);
    CHECK(write(go[1], &byte, 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// The process that has mapped a file to read maps it to write to it: one shows what the other stores.
static void writer(void) {
    volatile uint64_t *all = map_data();
    CHECK(all[3 * PAGE / 8] == 3);
    int fd = open("data", O_RDWR);
    CHECK(fd >= 0);
    uint64_t word = 54321;
    CHECK(pwrite(fd, &word, 8, 4 * PAGE) == 8);
    CHECK(all[4 * PAGE / 8] == 54321);
    uint64_t *written = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(written != MAP_FAILED);
    for (uint64_t i = 1; i < 1000; i++) {
        written[3 * PAGE / 8] = i;
        CHECK(all[3 * PAGE / 8] == i);
        word = i * i;
        CHECK(pwrite(fd, &word, 8, 5 * PAGE) == 8);
        CHECK(all[5 * PAGE / 8] == i * i && written[5 * PAGE / 8] == i * i);
    }
}

// Threads store to words of their own in all pages, each by a mapping of its own, and find it in another; one
// writes by calls.
struct storer {
    volatile uint64_t *mine;
    const volatile uint64_t *other;
    int fd, at;
    uint64_t stored[DATA_PAGES];
};
static struct storer storers[READERS];

static void *stores_to_all(void *of) {
    struct storer *storer = of;
    uint64_t seed = storer->at;
    for (uint64_t i = DATA_PAGES; !stop; i++) {
        uint64_t page = next(&seed) % DATA_PAGES, word = page * PAGE / 8 + storer->at;
        if (storer->mine)
            storer->mine[word] = i;
        else
            CHECK(pwrite(storer->fd, &i, 8, word * 8) == 8);
        storer->stored[page] = i;
        CHECK(storer->other[word] == i);
        page = next(&seed) % DATA_PAGES;
        uint64_t stored = storer->stored[page];
        CHECK(storer->other[page * PAGE / 8 + storer->at] == (stored ? stored : page));
        touches++;
    }
    return NULL;
}

// Everything that was stored before the standby ended, while it did and after it is there, and stays.
static void store(void) {
    int both = PROT_READ | PROT_WRITE, fd = open("data", O_RDWR);
    CHECK(fd >= 0);
    uint64_t *all = map("data", O_RDWR, both, MAP_SHARED, 0, DATA_PAGES * PAGE);
    const uint64_t *shown = map_data();
    uint64_t *second = map("data", O_RDWR, both, MAP_SHARED, 0, DATA_PAGES * PAGE);
    uint64_t *by_thread[READERS] = {all, second, NULL};
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++) {
        storers[i] = (struct storer){by_thread[i], i % 2 ? all : shown, fd, 5 + i, {0}};
        CHECK(!pthread_create(&threads[i], NULL, stores_to_all, &storers[i]));
    }
    while (touches < 2000)
        usleep(100);
    CHECK(is_the_kernels(all) && is_the_kernels(second) && is_the_kernels(shown));
    end_standby();
    CHECK(!is_the_kernels(all) && !is_the_kernels(second) && !is_the_kernels(shown));
    long before = touches;
    while (touches < before + 3000)
        usleep(100);
    stop = 1;
    for (int i = 0; i < READERS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    uint64_t words[PAGE / 8];
    for (uint64_t page = 0; page < DATA_PAGES; page++) {
        CHECK(pread(fd, words, PAGE, page * PAGE) == PAGE);
        for (int i = 0; i < PAGE / 8; i++) {
            uint64_t stored = i >= 5 && i < 5 + READERS ? storers[i - 5].stored[page] : 0;
            CHECK(words[i] == (stored ? stored : page));
        }
        // Left as it is for whoever reads the file afterwards.
        all[page * PAGE / 8 + 9] = page + 7;
    }
}

// What may arrive in memory behind the processors' back would arrive in the kernel's page.
static void direct(void) {
    uint64_t *all =
        map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 0, DATA_PAGES * PAGE);
    const uint64_t *log = map("log", O_RDONLY, PROT_READ, MAP_SHARED, 0, PAGE);
    int fd = open("log", O_RDONLY | O_DIRECT);
    if (fd < 0)
        fd = syscall(SYS_io_uring_setup, 4, (char[120]){0});
    CHECK(fd >= 0 && all[3 * PAGE / 8] == 3 && !log[0]);
    end_standby();
    CHECK(is_the_kernels(all) && !is_the_kernels(log));
    check_is_one_file(all);
}

// A file is written, made longer and read by calls across the end of the standby.
static void log_file(void) {
    int out = open("log", O_WRONLY | O_APPEND), in = open("log", O_RDONLY);
    CHECK(out >= 0 && in >= 0);
    struct stat stat;
    CHECK(!fstat(in, &stat));
    uint64_t record[64], back[64];
    off_t at = stat.st_size;
    for (uint64_t i = 0; i < 4000; i++) {
        for (int k = 0; k < 64; k++)
            record[k] = i;
        CHECK(write(out, record, sizeof record) == sizeof record);
        CHECK(pread(in, back, sizeof back, at) == sizeof back);
        CHECK(!memcmp(record, back, sizeof back));
        at += sizeof record;
        if (i == 2000)
            end_standby();
    }
    CHECK(!fstat(in, &stat) && stat.st_size == at);
}

// A stream that was opened before goes on where it was.
static void stream(void) {
    FILE *file = fopen("data", "r");
    CHECK(file);
    uint64_t words[PAGE / 8];
    for (uint64_t page = 0; page < DATA_PAGES; page++) {
        CHECK(fread(words, PAGE, 1, file) == 1);
        CHECK(words[0] == page && words[PAGE / 8 - 1] == page);
        if (page == 700)
            end_standby();
    }
    CHECK(fgetc(file) == EOF && feof(file) && !fclose(file));
    // And a page that is stored to by a mapping, and not written back, is not the file's old one.
    file = fopen("data", "r");
    uint64_t *written = map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 8 * PAGE);
    written[7 * PAGE / 8] = 777;
    CHECK(!fseek(file, 7 * PAGE, SEEK_SET) && fread(words, PAGE, 1, file) == 1 && words[0] == 777);
    fclose(file);
}

// Passes over the file until memory was short for long enough, or so many.
static void loop(void) {
    uint64_t *all = map_data();
    for (int pass = 0; pass < 12; pass++) {
        for (uint64_t page = 0; page < DATA_PAGES; page++) {
            CHECK(((volatile uint64_t *)all)[page * PAGE / 8] == page);
            WORK(page)
            if (page % 64 == 0)
                free(malloc(1));
        }
    }
    puts(is_the_kernels(all) ? "kernel" : "ours");
}

// Takes memory of its own beside frames that have filled theirs, and loops on.
static void grow(void) {
    uint64_t *all = map_data();
    end_standby();
    for (int step = 0; step < 64; step++) {
        for (uint64_t page = 0; page < DATA_PAGES; page++)
            CHECK(((volatile uint64_t *)all)[page * PAGE / 8] == page);
        char *own = mmap(NULL, 128 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(own != MAP_FAILED);
        memset(own, 1, 128 << 10);
    }
    puts(is_the_kernels(all) ? "kernel" : "ours");
}

// The limit of the cgroup is lowered while frames are nearly empty, as `docker update` does.
static void lowered(void) {
    const volatile uint64_t *all = map_data();
    CHECK(all[0] == 0);
    const char *files[] = {"memory.limit_in_bytes", "memory.max"};
    int lowered = 0;
    for (int i = 0; i < 2; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", getenv("CGROUP"), files[i]);
        int fd = open(path, O_WRONLY);
        if (fd >= 0)
            lowered += write(fd, "14680064", 8) == 8;
    }
    CHECK(lowered == 1);
    // It is looked at ten times a second at least.
    usleep(500 * 1000);
    for (int pass = 0; pass < 4; pass++)
        for (uint64_t page = 0; page < DATA_PAGES; page++)
            CHECK(all[page * PAGE / 8] == page);
}

struct copies {
    const volatile uint64_t *map;
    int fd;
};

// Stores by calls, and finds it in the mapping at once, whoever has mapped it.
static void *stores(void *of) {
    struct copies *copies = of;
    for (uint64_t i = 1; !stop; i++) {
        uint64_t page = i % 16;
        CHECK(pwrite(copies->fd, &i, 8, page * PAGE + 8) == 8);
        CHECK(copies->map[page * PAGE / 8 + 1] == i);
        touches++;
    }
    return NULL;
}

// A database: its file is open to write, mapped to read, and written by calls.
static void database(void) {
    int fd = open("data", O_RDWR);
    CHECK(fd >= 0);
    uint64_t *all = mmap(NULL, DATA_PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(all != MAP_FAILED && is_the_kernels(all));
    struct copies copies = {all, fd};
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, stores, &copies));
    for (int pass = 0; pass < 16; pass++) {
        for (uint64_t page = 16; page < DATA_PAGES; page++) {
            CHECK(((volatile uint64_t *)all)[page * PAGE / 8] == page);
            WORK(page)
        }
    }
    int kernels = is_the_kernels(all);
    end_standby();
    CHECK(!is_the_kernels(all));
    long before = touches;
    while (touches < before + 1000)
        usleep(100);
    stop = 1;
    CHECK(!pthread_join(thread, NULL));
    // What the descriptor may do the mapping may be made to do.
    CHECK(!mprotect(all, PAGE, PROT_READ | PROT_WRITE));
    uint64_t word;
    all[7] = 777;
    CHECK(pread(fd, &word, 8, 7 * 8) == 8 && word == 777);
    CHECK(!msync(all, PAGE, MS_SYNC) && !ftruncate(fd, DATA_PAGES / 2 * PAGE));
    CHECK(all[(DATA_PAGES / 2 - 1) * PAGE / 8] == DATA_PAGES / 2 - 1);
    puts(kernels ? "kernel" : "ours");
}

// Another process stores by calls; what it says that it stored, all mappings show, also while some of
// them are taken over and others are not.
enum { SHOWN = 5, WINDOWS = 400 };
struct visit {
    atomic_ulong stored;
    atomic_int stop;
    const volatile uint64_t *windows[WINDOWS];
};
static struct visit *visit;

static void *looks(void *none) {
    // What one mapping showed, another does not take back.
    uint64_t shown = 0;
    while (!stop) {
        uint64_t seed = touches;
        for (int i = 0; i < 64; i++) {
            const volatile uint64_t *window = visit->windows[next(&seed) % WINDOWS];
            uint64_t stored = visit->stored, now = *window;
            CHECK(now >= stored && now >= shown);
            shown = now;
        }
        touches++;
    }
    return none;
}

// Whether a process has a mapping of the file's that is managed.
static int has_managed(pid_t pid) {
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "r");
    CHECK(maps);
    int found = 0;
    while (!found && fgets(line, sizeof line, maps))
        found = strstr(line, "memfd:") && strstr(line, "/data");
    fclose(maps);
    return found;
}

// What another process's mappings show.
static void check_windows(pid_t pid, uint64_t stored) {
    for (int i = 0; i < WINDOWS; i++) {
        uint64_t shown;
        struct iovec here = {&shown, 8}, there = {(void *)visit->windows[i], 8};
        CHECK(process_vm_readv(pid, &here, 1, &there, 1, 0) == 8 && shown == stored);
    }
}

// Stores until it is told to stop: by calls, or by a mapping that it makes as soon as the file is managed.
static void visiting(pid_t parent, int by_mapping) {
    alarm(60);
    int fd = open("data", O_RDWR);
    CHECK(fd >= 0);
    uint64_t i = 1000;
    CHECK(pwrite(fd, &i, 8, SHOWN * PAGE) == 8);
    visit->stored = i;
    volatile uint64_t *word = NULL;
    if (by_mapping) {
        while (!has_managed(parent))
            usleep(10);
        void *addr = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, SHOWN * PAGE);
        CHECK(addr != MAP_FAILED);
        word = addr;
        *word = ++i;
        check_windows(parent, i);
    }
    while (!visit->stop) {
        i++;
        if (word)
            *word = i;
        else
            CHECK(pwrite(fd, &i, 8, SHOWN * PAGE) == 8);
        visit->stored = i;
    }
    _exit(0);
}

static void *ends(void *none) {
    end_standby();
    return none;
}

static void share_visit(void) {
    visit = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(visit != MAP_FAILED && sizeof *visit <= 2 * PAGE);
}

static void visits(int by_mapping) {
    share_visit();
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (!child)
        visiting(parent, by_mapping);
    while (!visit->stored)
        usleep(100);
    for (int i = 0; i < WINDOWS; i++)
        visit->windows[i] = map("data", O_RDONLY, PROT_READ, MAP_SHARED, SHOWN * PAGE, PAGE);
    CHECK(is_the_kernels((void *)visit->windows[0]));
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, looks, NULL));
    for (int round = 0; round < 3; round++) {
        uint64_t until = visit->stored + (by_mapping && round == 0 ? 0 : 500);
        long before = touches;
        while (visit->stored < until || touches < before + 100) {
            // Whoever stores has found something wrong.
            CHECK(!waitpid(child, NULL, WNOHANG));
            usleep(100);
        }
        if (round == 0)
            end_standby();
    }
    for (int i = 0; i < WINDOWS; i += WINDOWS - 1)
        CHECK(!is_the_kernels((void *)visit->windows[i]));
    stop = 1;
    CHECK(!pthread_join(thread, NULL));
    visit->stop = 1;
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void visitor(void) { visits(0); }

// Another process finds by calls what is stored by mappings, also while some of them are taken over and others
// are not.
static void visited_by(int open_flags) {
    share_visit();
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        alarm(60);
        int fd = open("data", open_flags);
        CHECK(fd >= 0);
        while (!visit->stop) {
            uint64_t stored = visit->stored, now;
            CHECK(pread(fd, &now, 8, SHOWN * PAGE) == 8 && now >= stored);
            touches++;
        }
        _exit(0);
    }
    volatile uint64_t *windows[WINDOWS];
    for (int i = 0; i < WINDOWS; i++)
        windows[i] =
            map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, SHOWN * PAGE, PAGE);
    CHECK(is_the_kernels((void *)windows[0]));
    pthread_t thread;
    for (uint64_t i = 1000; i < 40000; i++) {
        *windows[i % WINDOWS] = i;
        visit->stored = i;
        CHECK(*windows[i * 7 % WINDOWS] == i);
        if (i == 5000)
            CHECK(!pthread_create(&thread, NULL, ends, NULL));
        CHECK(i % 100 || !waitpid(child, NULL, WNOHANG));
    }
    CHECK(!pthread_join(thread, NULL));
    for (int i = 0; i < WINDOWS; i++)
        CHECK(!is_the_kernels((void *)windows[i]) && *windows[i] == 39999);
    visit->stop = 1;
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void mapping_visitor(void) { visits(1); }

// What is stored by one mapping shows in the other.
static void check_is_one_file(volatile uint64_t *all) {
    volatile uint64_t *written = map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 8 * PAGE);
    written[3 * PAGE / 8] = 12345;
    CHECK(all[3 * PAGE / 8] == 12345);
}

// The file has another name, which nobody manages, when the standby ends, and its own again later.
static void renamed(void) {
    volatile uint64_t *all = map_data();
    CHECK(all[3 * PAGE / 8] == 3 && !rename("data", "other"));
    end_standby();
    CHECK(!rename("other", "data"));
    check_is_one_file(all);
}

static void visited(void) { visited_by(O_RDWR); }

// Of whom the manager hears first when the standby is over.
static void visited_to_read(void) { visited_by(O_RDONLY); }

// Nobody has the file any more, not even by a descriptor, but who has mapped it.
static void nameless(void) {
    uint64_t *all =
        map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 0, DATA_PAGES * PAGE);
    CHECK(!unlink("data"));
    all[3 * PAGE / 8] = 12345;
    end_standby();
    CHECK(!is_the_kernels(all) || geteuid());
    CHECK(all[3 * PAGE / 8] == 12345);
    for (uint64_t page = 0; page < DATA_PAGES; page++)
        all[page * PAGE / 8 + 1] = page + 7;
    for (uint64_t page = 4; page < DATA_PAGES; page++)
        CHECK(all[page * PAGE / 8 + 1] == page + 7 && all[page * PAGE / 8] == page);
}

// A mapping that nobody may change any more.
static void sealed(void) {
    volatile uint64_t *all = map_data();
    if (syscall(462, all, DATA_PAGES * PAGE, 0)) {
        CHECK(errno == ENOSYS || errno == EPERM);
        return;
    }
    end_standby();
    CHECK(is_the_kernels((void *)all));
    check_is_one_file(all);
}

// There is room for the smaller mappings elsewhere, and not for the large one.
static void roomless(void) {
    volatile uint64_t *few[3], *all;
    // What the library needs itself it maps before.
    CHECK(open("log", O_RDWR) >= 0);
    few[0] = map("data", O_RDONLY, PROT_READ, MAP_SHARED, 0, 4 * PAGE);
    all = map_data();
    few[1] = map("data", O_RDONLY, PROT_READ, MAP_SHARED, 2 * PAGE, 4 * PAGE);
    few[2] = map("trigger", O_RDONLY, PROT_READ, MAP_SHARED, 0, 2 * PAGE);
    CHECK(few[0][0] == 0 && few[1][0] == 2 && few[2][0] == 0x0101010101010101UL);
    FILE *status = fopen("/proc/self/statm", "r");
    unsigned long pages;
    CHECK(fscanf(status, "%lu", &pages) == 1 && !fclose(status));
    struct rlimit limit = {(pages + 1024) * PAGE, RLIM_INFINITY};
    CHECK(!setrlimit(RLIMIT_AS, &limit));
    end_standby();
    limit.rlim_cur = RLIM_INFINITY;
    CHECK(!setrlimit(RLIMIT_AS, &limit));
    check_is_one_file(all);
    CHECK(few[0][3 * PAGE / 8] == 12345 && few[1][PAGE / 8] == 12345);
}

// Says when a process has its first mapping taken over. By another process, since whoever makes a call
// has its own mappings taken over in it, or waits until others are through with that.
static void say_when_managed(pid_t pid) {
    while (!kill(pid, 0) && !has_managed(pid))
        ;
    visit->stop = 1;
}

// What does not change the bytes of a file does not matter to its mappings either: while some are taken
// over and others are not, it gets other names, and parts of them are advised and locked.
static const volatile uint64_t *pairs[WINDOWS];

static void *renames(void *none) {
    while (!visit->stop)
        ;
    while (!stop)
        CHECK(!rename("data", "data2") && !rename("data2", "data"));
    return none;
}

static void *advises(void *none) {
    while (!visit->stop)
        ;
    for (int i = 0; i < WINDOWS; i++) {
        void *second = (char *)pairs[i] + PAGE;
        CHECK(!madvise(second, PAGE, i % 2 ? MADV_RANDOM : MADV_DONTDUMP) && !mlock(second, PAGE));
    }
    return none;
}

static void meddled(void) {
    share_visit();
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (!child) {
        say_when_managed(parent);
        _exit(0);
    }
    for (int i = 0; i < WINDOWS; i++)
        pairs[i] = map("data", O_RDONLY, PROT_READ, MAP_SHARED, SHOWN * PAGE, 2 * PAGE);
    CHECK(is_the_kernels((void *)pairs[0]));
    pthread_t threads[2];
    CHECK(!pthread_create(&threads[0], NULL, renames, NULL));
    CHECK(!pthread_create(&threads[1], NULL, advises, NULL));
    end_standby();
    stop = 1;
    CHECK(!pthread_join(threads[0], NULL) && !pthread_join(threads[1], NULL));
    CHECK(waitpid(child, NULL, 0) == child);
    check_is_one_file(map_data());
    for (int i = 0; i < WINDOWS; i++)
        CHECK(!is_the_kernels((void *)pairs[i]) && pairs[i][PAGE / 8] == SHOWN + 1);
}

// The first thread has ended, and others go on: of such a process `/proc/PID` shows no mappings.
static void *goes_on(void *of) {
    pthread_t first = *(pthread_t *)of;
    CHECK(!pthread_join(first, NULL));
    volatile uint64_t *all = map_data();
    CHECK(all[3 * PAGE / 8] == 3);
    end_standby();
    CHECK(!is_the_kernels((void *)all));
    check_is_one_file(all);
    puts("leaderless ok");
    exit(0);
}

static void leaderless(void) {
    static pthread_t first, other;
    first = pthread_self();
    CHECK(!pthread_create(&other, NULL, goes_on, &first));
    pthread_exit(NULL);
}

static uint32_t *word_of_futex;

static void *waits(void *none) {
    while (*(volatile uint32_t *)word_of_futex == SHOWN) {
        long waited = syscall(SYS_futex, word_of_futex, FUTEX_WAIT, SHOWN, NULL, NULL, 0);
        CHECK(!waited || errno == EAGAIN || errno == EINTR);
    }
    return none;
}

// A thread waits for a word of a mapping to change, and is woken by that word's address, which stands for
// another file by then.
static void futex_in_a_mapping(void) {
    alarm(10);
    int fd = open("data", O_RDWR);
    CHECK(fd >= 0);
    word_of_futex = (uint32_t *)map("data", O_RDONLY, PROT_READ, MAP_SHARED, SHOWN * PAGE, PAGE);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, waits, NULL));
    usleep(20000);
    CHECK(is_the_kernels(word_of_futex));
    end_standby();
    CHECK(!is_the_kernels(word_of_futex));
    usleep(20000);
    uint32_t stored = 77;
    CHECK(pwrite(fd, &stored, 4, SHOWN * PAGE) == 4 && *(volatile uint32_t *)word_of_futex == 77);
    CHECK(syscall(SYS_futex, word_of_futex, FUTEX_WAKE, 1, NULL, NULL, 0) >= 0);
    CHECK(!pthread_join(thread, NULL));
}

// No more system calls of this number: `set` is prctl(2).
static void refuse(int (*set)(int, ...), long number, unsigned how) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, how),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!set(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

// A program has taken a call away from itself that a take-over needs.
static void refused(int (*set)(int, ...), unsigned how) {
    volatile uint64_t *all = map_data();
    volatile uint64_t *few = map("data", O_RDONLY, PROT_READ, MAP_SHARED, 2 * PAGE, 4 * PAGE);
    CHECK(all[3 * PAGE / 8] == 3 && few[0] == 2);
    refuse(set, SYS_mremap, how);
    end_standby();
    CHECK(is_the_kernels((void *)all) && is_the_kernels((void *)few));
    check_is_one_file(all);
    CHECK(few[PAGE / 8] == 12345);
}

static void filtered(void) { refused(prctl, SECCOMP_RET_KILL_PROCESS); }

// Without a word to anybody.
static void filtered_unseen(void) {
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    CHECK(libc);
    refused((int (*)(int, ...))dlsym(libc, "prctl"), SECCOMP_RET_ERRNO | EPERM);
}

// A process that may make no calls any more, and makes none.
static void sandboxed(void) {
    atomic_int *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        volatile uint64_t *all = map_data();
        CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
        *shared = 1;
        uint64_t wrong = 0;
        while (*shared == 1)
            for (uint64_t page = 0; page < DATA_PAGES; page++)
                wrong |= page == 3 ? 0 : all[page * PAGE / 8] ^ page;
        wrong |= all[3 * PAGE / 8] ^ 12345;
        syscall(SYS_exit, wrong != 0);
    }
    while (!*shared)
        usleep(100);
    end_standby();
    usleep(100000);
    volatile uint64_t *written = map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 8 * PAGE);
    written[3 * PAGE / 8] = 12345;
    *shared = 2;
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// Whoever changes the file, in whatever way, finds that in all mappings as soon as the call is over.
static void changes_file(pid_t whose) {
    int modes[] = {0, O_SYNC, O_DIRECT, O_APPEND}, fds[4];
    for (int i = 0; i < 4; i++) {
        fds[i] = open("data", O_RDWR | modes[i]);
        CHECK(fds[i] >= 0);
    }
    off_t at = SHOWN * PAGE, end = DATA_PAGES * PAGE;
    uint64_t *page = aligned_alloc(PAGE, PAGE), now = SHOWN, after = SHOWN + 1;
    CHECK(page);
    for (uint64_t i = 1; i <= 900; i++) {
        switch (i % 9) {
        case 0:
        case 1:
        case 2:
            for (uint64_t k = 0; k < PAGE / 8; k++)
                page[k] = i;
            CHECK(pwrite(fds[i % 9], page, i % 9 == 2 ? PAGE : 8, at) == (i % 9 == 2 ? PAGE : 8));
            now = i;
            break;
        case 3:
            CHECK(write(fds[3], page, 100) == 100 && !ftruncate(fds[0], end));
            break;
        case 4:
            CHECK(!fallocate(fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, PAGE));
            now = 0;
            break;
        case 5:
            CHECK(pwrite(fds[0], &i, 8, at) == 8);
            now = i;
            CHECK(!ftruncate(fds[0], at + 8) && !ftruncate(fds[0], end));
            after = 0;
            break;
        case 6:
            CHECK(!fallocate(fds[0], FALLOC_FL_ZERO_RANGE, at, PAGE));
            now = 0;
            break;
        case 7:
            CHECK(pwrite(fds[0], &i, 8, at + PAGE) == 8);
            after = i;
            break;
        case 8:
            if (!fallocate(fds[0], FALLOC_FL_COLLAPSE_RANGE, at, PAGE)) {
                now = after;
                after = i / 9 < 2 ? SHOWN + 1 + i / 9 : 0;
                CHECK(!ftruncate(fds[0], end) && pwrite(fds[0], &after, 8, at + PAGE) == 8);
            } else
                CHECK(errno == EOPNOTSUPP);
        }
        for (int k = 0; k < 16; k++) {
            const volatile uint64_t *window = visit->windows[(i + 25 * k) % WINDOWS];
            uint64_t shown = 0;
            struct iovec here = {&shown, 8}, there = {(void *)window, 8};
            if (whose)
                CHECK(process_vm_readv(whose, &here, 1, &there, 1, 0) == 8);
            else
                shown = *window;
            if (shown != now)
                fprintf(stderr, "change %lu (%lu): %lu, not %lu\n", i, i % 9, shown, now);
            CHECK(shown == now);
        }
        visit->stored = i;
    }
}

static void *changes_own(void *none) {
    changes_file(0);
    return none;
}

static void changed(int by_another) {
    alarm(50);
    share_visit();
    atomic_int *go = &visit->stop;
    pid_t parent = getpid(), child = by_another ? fork() : 0;
    CHECK(child >= 0);
    if (by_another && !child) {
        while (!*go)
            usleep(100);
        changes_file(parent);
        _exit(0);
    }
    for (int i = 0; i < WINDOWS; i++)
        visit->windows[i] = map("data", O_RDONLY, PROT_READ, MAP_SHARED, SHOWN * PAGE, PAGE);
    *go = 1;
    pthread_t thread;
    if (!by_another)
        CHECK(!pthread_create(&thread, NULL, changes_own, NULL));
    while (visit->stored < 100)
        CHECK(!by_another || !waitpid(child, NULL, WNOHANG));
    CHECK(is_the_kernels((void *)visit->windows[0]));
    end_standby();
    for (int i = 0; i < WINDOWS; i += WINDOWS - 1)
        CHECK(!is_the_kernels((void *)visit->windows[i]));
    int status = 0;
    if (by_another)
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    else
        CHECK(!pthread_join(thread, NULL));
}

static void changed_by_another(void) { changed(1); }
static void changed_by_itself(void) { changed(0); }

// A child of vfork(2) has the same mappings, and not others of the same file.
static void *has_child(void *none) {
    pid_t child = vfork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (!stop)
            ;
        _exit(0);
    }
    CHECK(child > 0);
    return none;
}

static void vforked(void) {
    volatile uint64_t *all = map_data();
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, has_child, NULL));
    usleep(20000);
    CHECK(is_the_kernels((void *)all));
    end_standby();
    CHECK(!is_the_kernels((void *)all));
    stop = 1;
    CHECK(!pthread_join(thread, NULL));
    check_is_one_file(all);
}

// A process executes another program while its mappings are taken over, by one of its threads: whoever
// writes to the file does not wait for the rest.
static void *executes_soon(void *none) {
    while (!visit->stop)
        ;
    for (volatile int i = 0; i < visit->stored; i++)
        ;
    execl("/proc/self/exe", "standby", "executed", NULL);
    return none;
}

static void executes(void) {
    alarm(60);
    int ready[2];
    CHECK(!pipe(ready));
    share_visit();
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    visit->stored = now.tv_nsec / 1000 % 1000 * 10000;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        CHECK(dup2(ready[1], 3) == 3);
        for (int i = 0; i < WINDOWS; i++)
            visit->windows[i] = map("data", O_RDONLY, PROT_READ, MAP_SHARED, SHOWN * PAGE, PAGE);
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, executes_soon, NULL));
        end_standby();
        pthread_join(thread, NULL);
        _exit(1);
    }
    say_when_managed(child);
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    int fd = open("data", O_RDWR);
    CHECK(fd >= 0);
    time_t begun = time(NULL);
    for (uint64_t i = 0; i < 16; i++)
        CHECK(pwrite(fd, &i, 8, SHOWN * PAGE) == 8);
    CHECK(time(NULL) - begun < 5);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// The other program: lives for a while.
static void executed(void) {
    volatile uint64_t *all = map_data();
    CHECK(all[4 * PAGE / 8] == 4 && write(3, "", 1) == 1);
    usleep(100000);
    exit(0);
}

// Executes itself time and again, by a thread that is not the first.
static void *executes_again(void *none) {
    execl("/proc/self/exe", "standby", "executes-always", NULL);
    return none;
}

static void executes_always(void) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, executes_again, NULL) && !pthread_join(thread, NULL));
}

// Stores for ever, by calls in word 1 and by a mapping in word 2 of the first pages, and says what it
// stored, while mappings are taken over and threads look at them. Somebody is killed meanwhile.
enum { STORED_PAGES = 64 };

static void *stores_and_says(void *of) {
    volatile uint64_t *written = of;
    int said = open(written ? "said2" : "said1", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int fd = open("data", O_RDWR);
    CHECK(said >= 0 && fd >= 0);
    for (uint64_t i = 1;; i++) {
        uint64_t page = i % STORED_PAGES;
        if (written)
            written[page * PAGE / 8 + 2] = i;
        else
            CHECK(pwrite(fd, &i, 8, page * PAGE + 8) == 8);
        CHECK(write(said, &i, 8) == 8);
        touches++;
    }
}

static void *looks_on(void *none) {
    uint64_t seed = 5, last[STORED_PAGES] = {0};
    for (;;) {
        uint64_t page = next(&seed) % STORED_PAGES;
        const volatile uint64_t *window = pairs[page * (WINDOWS / STORED_PAGES)];
        CHECK(window[0] == page && window[PAGE / 8 - 1] == page);
        uint64_t now = window[1];
        CHECK(now == page || now >= last[page]);
        last[page] = now == page ? last[page] : now;
    }
}

static void maps_pairs(void) {
    for (int i = 0; i < WINDOWS; i++) {
        uint64_t page = i / (WINDOWS / STORED_PAGES);
        pairs[i] = map("data", O_RDONLY, PROT_READ, MAP_SHARED, page * PAGE, PAGE);
    }
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, stores_and_says, NULL));
    CHECK(!pthread_create(&thread, NULL, looks_on, NULL));
}

static uint64_t *maps_stored(void) {
    return map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 0, STORED_PAGES * PAGE);
}

static void killed(void) {
    maps_pairs();
    while (touches < 100)
        usleep(100);
    CHECK(is_the_kernels((void *)pairs[0]));
    CHECK(write(1, "ready\n", 6) == 6);
    end_standby();
    stores_and_says(maps_stored());
}

// And who stores by a mapping all the time.
static void killed_storing(void) {
    uint64_t *stored = maps_stored();
    maps_pairs();
    pthread_t thread;
    CHECK(is_the_kernels(stored));
    CHECK(write(1, "ready\n", 6) == 6);
    CHECK(!pthread_create(&thread, NULL, ends, NULL));
    stores_and_says(stored);
}

static volatile sig_atomic_t alarms;

static char *stack_of_main;
static volatile sig_atomic_t elsewhere;

// On the program's own stack, and with as much of it as there is.
static void alarmed(int number) {
    volatile char much[128 << 10];
    for (size_t i = 0; i < sizeof much; i += PAGE)
        much[i] = (char)number;
    elsewhere |= stack_of_main - (char *)much > (1 << 20) || stack_of_main < (char *)much;
    alarms++;
}

// Sums go on in the vector registers, as wide as they are: a thread that is sent elsewhere between two
// touches must not notice.
typedef double wide __attribute__((vector_size(32)));
#define SUM                                                                                        \
    wide sums[8] = {0};                                                                            \
    uint64_t wrong = 0;                                                                            \
    for (uint64_t pass = 0; pass < passes; pass++) {                                               \
        for (uint64_t page = 0; page < DATA_PAGES; page++) {                                       \
            uint64_t value = words[page * PAGE / 8];                                               \
            wrong |= value ^ page;                                                                 \
            for (int i = 0; i < 8; i++)                                                            \
                sums[i] += (double)value * (i + 1);                                                \
            WORK(page)                                                                             \
        }                                                                                          \
    }                                                                                              \
    for (int i = 0; i < 32; i++)                                                                   \
        total[i] = sums[i / 4][i % 4];                                                             \
    return wrong;

static uint64_t sum_narrow(const volatile uint64_t *words, uint64_t passes, double *total) { SUM }

#if defined __x86_64__
__attribute__((target("avx2"), noinline))
#endif
static uint64_t sum_wide(const volatile uint64_t *words, uint64_t passes, double *total) { SUM }

// A loop that makes no calls, while signals come in.
static void untouched(void) {
    uint64_t *all = map_data(), passes = 24;
    stack_of_main = __builtin_frame_address(0);
    struct sigaction action = {.sa_handler = alarmed, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 700}, {0, 700}};
    CHECK(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &often, NULL));
    double total[32];
#if defined __x86_64__
    int is_wide = __builtin_cpu_supports("avx2");
#else
    int is_wide = 0;
#endif
    CHECK(!(is_wide ? sum_wide : sum_narrow)(all, passes, total));
    for (int i = 0; i < 32; i++)
        CHECK(total[i] == (double)passes * (DATA_PAGES * (DATA_PAGES - 1) / 2) * (i / 4 + 1));
    puts(is_the_kernels(all) ? "kernel" : "ours");
    CHECK(alarms > 0 && !elsewhere);
}

// Ends the standby and calls one function of the malloc family, after which nothing of the file is the
// kernel's any more. Only then is anything else called.
static void allocates(const char *name) {
    static char maps[1 << 20];
    void *kept = malloc(100), *gone = malloc(100), *volatile made = NULL;
    uint64_t *all = map_data();
    int trigger = open("trigger", O_RDWR);
    CHECK(is_the_kernels(all));
    int what = -1;
    const char *names[] = {"reallocarray", "free", "memalign", "aligned_alloc", "valloc", "pvalloc", "usable"};
    for (int i = 0; i < 7; i++)
        if (!strcmp(names[i], name)) what = i;
    int all_of_it = PROT_READ | PROT_WRITE | PROT_EXEC;
    CHECK(mmap(NULL, PAGE, all_of_it, MAP_SHARED, trigger, 0) != MAP_FAILED);
    switch (what) {
    case 0: made = reallocarray(gone, 20, 20); break;
    case 1: free(gone); break;
    case 2: made = memalign(64, 100); break;
    case 3: made = aligned_alloc(64, 128); break;
    case 4: made = valloc(100); break;
    case 5: made = pvalloc(100); break;
    default: made = (void *)malloc_usable_size(kept);
    }
    long list = unheard(SYS_openat, AT_FDCWD, (long)"/proc/self/maps", O_RDONLY), bytes = 0, got;
    while ((got = unheard(SYS_read, list, (long)maps + bytes, sizeof maps - 1 - bytes)) > 0) bytes += got;
    CHECK(list >= 0 && got == 0 && (what == 1 || made));
    int found = 0;
    for (char *line = strtok(maps, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long start, end;
        CHECK(sscanf(line, "%lx-%lx", &start, &end) == 2);
        if (start <= (unsigned long)all && (unsigned long)all < end) {
            CHECK(strstr(line, "memfd:"));
            found = 1;
        }
    }
    CHECK(found);
}

// Single pages in no order, as the program says: nothing to win.
static void single(void) {
    uint64_t *all = map_data(), seed = 1;
    CHECK(!madvise(all, DATA_PAGES * PAGE, MADV_RANDOM));
    for (int i = 0; i < 20000; i++) {
        uint64_t page = next(&seed) % DATA_PAGES;
        CHECK(((volatile uint64_t *)all)[page * PAGE / 8] == page);
        if (i % 64 == 0)
            free(malloc(1));
    }
    puts(is_the_kernels(all) ? "kernel" : "ours");
}

// Several processes have the file mapped, of which one makes no calls: all take it over, in the midst of what they do,
// or none. What each stores to words of its own is there for all.
enum { TOGETHER = 3 };
static struct {
    atomic_int ready, stop, left, ours, checked;
    uint64_t stored[TOGETHER][DATA_PAGES];
} *together;

static uint64_t *word_of(uint64_t *all, int who, uint64_t page) { return &all[page * PAGE / 8 + 16 + who]; }

static void one_of_several(int who, int stores) {
    alarm(60);
    uint64_t seed = who, *stored = together->stored[who];
    uint64_t *all = stores ? map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, 0, DATA_PAGES * PAGE)
                           : map_data();
    const volatile uint64_t *part =
        map("data", O_RDONLY, PROT_READ, MAP_SHARED, PART_FIRST * PAGE, PART_PAGES * PAGE);
    CHECK(is_the_kernels(all) && is_the_kernels((void *)part));
    for (uint64_t page = 0; stores && page < DATA_PAGES; page++)
        *word_of(all, who, page) = stored[page] = 1;
    together->ready++;
    while (!together->stop) {
        uint64_t page = next(&seed) % DATA_PAGES;
        volatile uint64_t *word = word_of(all, who, page);
        CHECK(((volatile uint64_t *)all)[page * PAGE / 8] == page);
        if (stores) {
            CHECK(*word == stored[page]);
            *word = ++stored[page];
        }
        page = next(&seed) % PART_PAGES;
        CHECK(part[page * PAGE / 8] == PART_FIRST + page);
        if (who)
            free(malloc(1));
    }
    together->ours += !is_the_kernels(all) && !is_the_kernels((void *)part);
    together->ready--;
    // What the others stored.
    while (together->ready)
        usleep(100);
    for (int other = 0; stores && other < together->left; other++)
        for (uint64_t page = 0; page < DATA_PAGES; page++)
            CHECK(*word_of(all, other, page) == together->stored[other][page]);
    // What one stores from now on shows to all.
    if (!who)
        *map("data", O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED, PART_FIRST * PAGE, PAGE) = 12345;
    together->checked++;
    while (together->checked < together->left)
        usleep(100);
    CHECK(part[0] == 12345 && all[PART_FIRST * PAGE / 8] == 12345);
    _exit(0);
}

// To one of them something happens at about the end of the standby.
static void several(int stores, int signal) {
    together = mmap(NULL, sizeof *together, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(together != MAP_FAILED);
    pid_t children[TOGETHER];
    for (int who = 0; who < TOGETHER; who++) {
        children[who] = fork();
        CHECK(children[who] >= 0);
        if (!children[who])
            one_of_several(who, stores);
    }
    while (together->ready < TOGETHER) {
        CHECK(!waitpid(-1, NULL, WNOHANG));
        usleep(100);
    }
    together->left = TOGETHER;
    struct timespec now;
    CHECK(!clock_gettime(CLOCK_MONOTONIC, &now));
    useconds_t before = now.tv_nsec / 1000 % 20000;
    pid_t last = children[TOGETHER - 1];
    if (signal && before % 4 == 0)
        CHECK(!kill(last, signal));
    end_standby();
    if (signal && before % 4) {
        usleep(before);
        CHECK(!kill(last, signal));
    }
    usleep(1500000);
    if (signal == SIGKILL) {
        together->left--;
        together->ready--;
        CHECK(waitpid(last, NULL, 0) == last);
    } else if (signal) {
        CHECK(!kill(last, SIGCONT));
        usleep(500000);
    }
    together->stop = 1;
    for (int who = 0; who < together->left; who++) {
        int status;
        CHECK(waitpid(children[who], &status, 0) == children[who] && status == 0);
    }
    CHECK(together->ours == 0 || together->ours == together->left);
    puts(together->ours ? "ours" : "kernel");
}

static void several_read(void) { several(0, 0); }

static void several_store(void) { several(1, 0); }

static void several_killed(void) { several(1, SIGKILL); }

static void several_stopped(void) { several(1, SIGSTOP); }

int main(int count, char **arguments) {
    CHECK(count == 2);
    if (!strncmp(arguments[1], "allocates-", 10)) {
        allocates(arguments[1] + 10);
        printf("%s ok\n", arguments[1]);
        return 0;
    }
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"take", take},     {"change", change}, {"fork", forks}, {"two", two},       {"writer", writer},
                 {"log", log_file},  {"stream", stream}, {"loop", loop}, {"single", single}, {"untouched", untouched},
                 {"database", database},
                 {"several-read", several_read},
                 {"several-store", several_store},
                 {"several-killed", several_killed},
                 {"several-stopped", several_stopped},
                 {"visitor", visitor},
                 {"mapping-visitor", mapping_visitor},
                 {"renamed", renamed},
                 {"nameless", nameless},
                 {"sealed", sealed},
                 {"roomless", roomless},
                 {"meddled", meddled},
                 {"leaderless", leaderless},
                 {"futex", futex_in_a_mapping},
                 {"filtered", filtered},
                 {"filtered-unseen", filtered_unseen},
                 {"vforked", vforked},
                 {"executes", executes},
                 {"executed", executed},
                 {"executes-always", executes_always},
                 {"killed", killed},
                 {"killed-storing", killed_storing},
                 {"store", store},
                 {"direct", direct},
                 {"visited", visited},
                 {"visited-to-read", visited_to_read},
                 {"changed", changed_by_another},
                 {"changes", changed_by_itself},
                 {"sandboxed", sandboxed},
                 {"grow", grow},
                 {"lowered", lowered}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strcmp(parts[i].name, arguments[1])) {
            parts[i].run();
            printf("%s ok\n", arguments[1]);
            return 0;
        }
    }
    return 2;
}
