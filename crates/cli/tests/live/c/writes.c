// Writes to managed files, as programs may rely on them. What must hold it checks itself.
//
//     writes grow FILE           one process makes a file longer, others read and map what is new
//     writes append FILE         processes append records to one file
//     writes mixed FILE SEED     writes, appends, truncations and mappings beside a model
//     writes count FILE TIMES    a counter that is read and written under a lock
//     writes behind FILE         what a process outside wrote before one's own write is seen
//     writes untold FILE         what a process outside wrote of which nobody is told is seen
//     writes beside FILE HOW     what a process outside wrote beside one's own writes is seen
//     writes stamp FILE          writes each byte that it is given into the file, and gives it back
//     writes gives FILE          locks are given up in all ways; what was stored is there outside
//     writes guards FILE BYTES   the same of locks on another file of so many bytes, and what is written outside is seen
//     writes waits FILE          what a child stored is there outside when it was waited for
//     writes hands FILE          locks are given up by a program that is executed with them
//     writes given FILE          prints a byte of the file, under a lock
//     writes bare FILE           prints a byte of the file, read without libc
//     writes holes FILE          stores into holes are data; what an ended process stored is there
//     writes through FILE SEED   a file is written from its beginning to its end, over and over
//     writes flags FILE          O_APPEND comes and goes
//     writes reused FILE         a descriptor becomes another file's, and libc does not know
//     writes locks FILE          locks of a file that nobody changes ask nobody
//     writes short FILE          files that are too short to be managed ask nobody
//     writes seen FILE           what was synced, unlocked or closed is seen by a process outside
//     writes cells FILE          threads and a child overwrite cells of their own; what remains is known
//     writes counter FILE        counts in a place of the file without end, and says how far it is
//     writes becomes FILE        a process writes to a short file that others find long, and map
//     writes lines FILE HOW      records are appended beside a process outside that appends, too
//     writes adds FILE TIMES     appends so many records, and no more
//     writes offset FILE         one whose writes fail shares an offset with one whose writes do not
//     writes image FILE          another program is executed in the midst of writes
//     writes after FILE          appends once: what is executed there
//     writes killed FILE         what a killed process was writing is there when it was waited for, or never
//     writes overtaken FILE      appends overtake each other in the file's last page, and ask nobody
//     writes owned FILE          what is stored over what was appended stays, beside readers of the end
//     writes again FILE          threads read a mapping that another maps anew (MAP_FIXED)
//     writes over FILE           threads map a file over each other's mappings, and others store there
//     writes places FILE         threads map, move and unmap each its own, at places that another just left
//     writes peek FILE OFFSET    prints a number of the file
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "unheard.h"

enum { PAGE = 4096 };
static uint64_t state;
static uint64_t any(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state * 0x2545f4914f6cdd1dull >> 33) % below;
}
static unsigned char pattern(uint64_t i) { return (unsigned char)(1 + (i * 31 + (i >> 9) * 7) % 255); }

static void fill(unsigned char *to, uint64_t from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) to[i] = pattern(from + i);
}

static void must_be(const unsigned char *at, uint64_t from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != pattern(from + i)) {
            fprintf(stderr, "byte %lu is %u, not %u\n", from + i, at[i], pattern(from + i));
            _exit(1);
        }
}

static int fresh(const char *path, size_t bytes) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    unsigned char *data = malloc(bytes);
    fill(data, 0, bytes);
    CHECK(fd > 2 && write(fd, data, bytes) == (ssize_t)bytes);
    free(data);
    CHECK(close(fd) == 0 && (fd = open(path, O_RDWR)) > 2);
    return fd;
}

// ---- grow ---------------------------------------------------------------------------------------

// A byte goes to the other process when something is there to be seen, and comes back when it was.
static int turns[2][2];
static void tell(int who) { CHECK(write(turns[who][1], "x", 1) == 1); }
static void hear(int who) {
    char c;
    CHECK(read(turns[who][0], &c, 1) == 1);
}

static void grow(const char *path) {
    enum { FIRST = 10 * PAGE + 100, ROUNDS = 900 };
    int fd = fresh(path, FIRST);
    CHECK(pipe(turns[0]) == 0 && pipe(turns[1]) == 0);
    unsigned char *piece = malloc(3 * PAGE);
    pid_t child = fork();
    uint64_t size = FIRST;
    unsigned char *map = NULL;
    if (child == 0) {
        int own = open(path, O_RDWR);
        CHECK(own > 2);
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t before = size;
            hear(0);
            CHECK(read(turns[0][0], &size, sizeof size) == sizeof size);
            struct stat stat;
            CHECK(fstat(own, &stat) == 0 && (uint64_t)stat.st_size == size);
            uint64_t from = before > 200 ? before - 200 : 0;
            CHECK(pread(own, piece, size - from, (off_t)from) == (ssize_t)(size - from));
            must_be(piece, from, size - from);
            CHECK(pread(own, piece, 1, (off_t)size) == 0);
            if (round % 3 == 0) {
                // To its end, by the descriptor's own offset.
                uint64_t at = (uint64_t)lseek(own, (off_t)before, SEEK_SET);
                ssize_t got;
                while ((got = read(own, piece, 777)) > 0) must_be(piece, at, (size_t)got), at += (uint64_t)got;
                CHECK(got == 0 && at == size);
            }
            if (round == ROUNDS / 2) {
                map = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
                CHECK(map != MAP_FAILED);
            }
            if (map) must_be(map + from, from, size - from);
            // Behind the end, in the page that it ends in: nobody is to see that.
            if (map && size % PAGE && size % PAGE < PAGE - 40) map[size + any(40)] ^= 85;
            tell(1);
        }
        _exit(0);
    }
    state = 77;
    for (int round = 0; round < ROUNDS; round++) {
        // Most in the page that the file ends in, which mappings reach already.
        size_t bytes = 1 + any(round % 5 ? 200 : 2 * PAGE);
        fill(piece, size, bytes);
        if (round % 2)
            CHECK(pwrite(fd, piece, bytes, (off_t)size) == (ssize_t)bytes);
        else
            CHECK(lseek(fd, 0, SEEK_END) == (off_t)size && write(fd, piece, bytes) == (ssize_t)bytes);
        size += bytes;
        // Its own view.
        CHECK(pread(fd, piece, bytes, (off_t)(size - bytes)) == (ssize_t)bytes);
        must_be(piece, size - bytes, bytes);
        tell(0);
        CHECK(write(turns[0][1], &size, sizeof size) == sizeof size);
        hear(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// ---- append -------------------------------------------------------------------------------------

struct record { uint32_t who, number, mixed, length; };

static void append(const char *path) {
    enum { WRITERS = 4, RECORDS = 2000, FIRST = 5 * PAGE + 16 };
    close(fresh(path, FIRST));
    for (uint32_t who = 0; who < WRITERS; who++)
        if (fork() == 0) {
            int fd = open(path, O_RDWR | O_APPEND);
            CHECK(fd > 2);
            for (uint32_t i = 0; i < RECORDS; i++) {
                struct record r = {who, i, who * 31 + i * 17, sizeof r};
                CHECK(write(fd, &r, sizeof r) == sizeof r);
                struct record back;
                CHECK(pread(fd, &back, sizeof back, lseek(fd, 0, SEEK_CUR) - (off_t)sizeof back) == sizeof back);
                CHECK(!memcmp(&r, &back, sizeof r));
            }
            _exit(0);
        }
    for (int i = 0, status; i < WRITERS; i++) CHECK(wait(&status) > 0 && status == 0);
    int fd = open(path, O_RDONLY);
    CHECK(fd > 2);
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && stat.st_size == FIRST + WRITERS * RECORDS * (off_t)sizeof(struct record));
    unsigned char *map = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    must_be(map, 0, FIRST);
    uint32_t next[WRITERS] = {0};
    for (off_t at = FIRST; at < stat.st_size; at += (off_t)sizeof(struct record)) {
        struct record r;
        memcpy(&r, map + at, sizeof r);
        CHECK(r.who < WRITERS && r.number == next[r.who] && r.mixed == r.who * 31 + r.number * 17);
        next[r.who]++;
    }
}

// ---- mixed --------------------------------------------------------------------------------------

static void mixed(const char *path, uint64_t seed) {
    enum { MOST = 120 * PAGE, STEPS = 6000 };
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    unsigned char *model = calloc(1, MOST), *piece = malloc(MOST);
    uint64_t size = 40 * PAGE + 7;
    int fd = fresh(path, size), log = open(path, O_WRONLY | O_APPEND);
    CHECK(log > 2);
    fill(model, 0, size);
    unsigned char *map = NULL;
    for (int step = 0; step < STEPS; step++) {
        uint64_t kind = any(100), at = any(MOST), bytes = 1 + any(any(8) ? 3000 : 20000);
        if (kind < 55) {
            // Somewhere, perhaps behind the end.
            if (kind < 45 && size) at %= size;
            if (at + bytes > MOST) bytes = MOST - at;
            for (uint64_t i = 0; i < bytes; i++) piece[i] = (unsigned char)any(256);
            CHECK(pwrite(fd, piece, bytes, (off_t)at) == (ssize_t)bytes);
            memcpy(model + at, piece, bytes);
            if (at + bytes > size) size = at + bytes;
        } else if (kind < 65) {
            if (size + bytes > MOST) continue;
            memset(piece, step, bytes);
            CHECK(write(log, piece, bytes) == (ssize_t)bytes);
            memcpy(model + size, piece, bytes);
            size += bytes;
        } else if (kind < 90) {
            ssize_t want = at >= size ? 0 : (ssize_t)(at + bytes > size ? size - at : bytes);
            CHECK(pread(fd, piece, bytes, (off_t)at) == want && !memcmp(piece, model + at, (size_t)want));
        } else if (kind < 94) {
            CHECK(ftruncate(fd, (off_t)at) == 0);
            if (at < size) memset(model + at, 0, size - at);
            size = at;
        } else if (step > STEPS / 2) {
            // The second half with a mapping.
            if (!map) map = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            CHECK(map != MAP_FAILED);
            if (at >= size) continue;
            if (at + bytes > size) bytes = size - at;
            CHECK(!memcmp(map + at, model + at, bytes));
            if (kind < 97) memset(map + at, step, bytes), memset(model + at, step, bytes);
        }
    }
    CHECK(fsync(fd) == 0 && pread(fd, piece, MOST, 0) == (ssize_t)size && !memcmp(piece, model, size));
}

// ---- count --------------------------------------------------------------------------------------

static void count(const char *path, int times) {
    int fd = open(path, O_RDWR);
    CHECK(fd > 2);
    for (int i = 0; i < times; i++) {
        struct flock whole = {.l_type = F_WRLCK};
        CHECK(fcntl(fd, F_SETLKW, &whole) == 0);
        uint64_t now[2];
        CHECK(pread(fd, now, sizeof now, 5 * PAGE - 8) == sizeof now && now[0] == now[1]);
        now[0]++, now[1]++;
        CHECK(pwrite(fd, now, sizeof now, 5 * PAGE - 8) == sizeof now);
        whole.l_type = F_UNLCK;
        CHECK(fcntl(fd, F_SETLK, &whole) == 0);
    }
}

// ---- behind -------------------------------------------------------------------------------------

enum { STAMP_AT = 7 * PAGE + 5 };

static void stamp_lock(int fd, short type) {
    struct flock page = {.l_type = type, .l_start = STAMP_AT, .l_len = 1};
    CHECK(fcntl(fd, F_SETLKW, &page) == 0);
}

static void stamp(const char *path) {
    int fd = open(path, O_RDWR);
    CHECK(fd > 2);
    for (char c; read(0, &c, 1) == 1;) {
        stamp_lock(fd, F_WRLCK);
        CHECK(pwrite(fd, &c, 1, STAMP_AT) == 1);
        stamp_lock(fd, F_UNLCK);
        CHECK(write(1, &c, 1) == 1);
    }
}

// A process outside that does something at each byte that it is given: its standard input and output are theirs.
static pid_t outsider(const char *what, const char *path, int *input, int *output) {
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t other = fork();
    if (other == 0) {
        CHECK(dup2(there[0], 0) == 0 && dup2(back[1], 1) == 1 && close(there[1]) == 0);
        CHECK(setenv("PAGEKEEPER_DISABLE", "1", 1) == 0);
        execl("/proc/self/exe", "writes", what, path, NULL);
        _exit(1);
    }
    CHECK(other > 0 && close(there[0]) == 0 && close(back[1]) == 0);
    *input = there[1], *output = back[0];
    return other;
}

static char stamped(int fd) {
    char found;
    stamp_lock(fd, F_RDLCK);
    CHECK(pread(fd, &found, 1, STAMP_AT) == 1);
    stamp_lock(fd, F_UNLCK);
    return found;
}

// The other has a lock of its own page, and this one takes that when it has written elsewhere.
static void behind(const char *path) {
    int fd = fresh(path, 16 * PAGE), input, output, status;
    pid_t other = outsider("stamp", path, &input, &output);
    for (int round = 0; round < 500; round++) {
        char mine = 'a' + round % 26, found;
        CHECK(pwrite(fd, &mine, 1, PAGE) == 1);
        CHECK(write(input, &mine, 1) == 1 && read(output, &found, 1) == 1);
        CHECK(pwrite(fd, &mine, 1, PAGE) == 1);
        CHECK(stamped(fd) == mine);
    }
    CHECK(close(input) == 0 && waitpid(other, &status, 0) == other && status == 0);
}

// ---- untold -------------------------------------------------------------------------------------

// Writes so that the kernel tells nobody of it.
static void writes_untold(const char *path) {
    static char bytes[16 * PAGE] __attribute__((aligned(PAGE)));
    int fd = open(path, O_RDWR);
    aio_context_t context = 0;
    CHECK(fd > 2 && syscall(SYS_io_setup, 1, &context) == 0);
    for (char c; read(0, &c, 1) == 1;) {
        memset(bytes, c, sizeof bytes);
        struct iocb request = {0}, *requests = &request;
        request.aio_fildes = (uint32_t)fd;
        request.aio_lio_opcode = IOCB_CMD_PWRITE;
        request.aio_buf = (uintptr_t)bytes;
        request.aio_nbytes = sizeof bytes;
        struct io_event event;
        CHECK(syscall(SYS_io_submit, context, 1, &requests) == 1);
        CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1 && event.res == sizeof bytes);
        CHECK(write(1, &c, 1) == 1);
    }
}

// What is in memory becomes what the other wrote, a little later, and what is stored then undoes nothing.
static void untold(const char *path) {
    int fd = fresh(path, 16 * PAGE), input, output, status;
    volatile char *map = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pid_t other = outsider("writes-untold", path, &input, &output);
    CHECK(map != MAP_FAILED);
    for (int round = 0; round < 5; round++) {
        char theirs = 'a' + round, found;
        for (long page = 0; page < 16; page++) (void)map[page * PAGE];
        CHECK(write(input, &theirs, 1) == 1 && read(output, &found, 1) == 1);
        for (int waits = 0; map[5 * PAGE] != theirs; waits++) CHECK(waits < 1000 && usleep(10000) == 0);
        for (long page = 0; page < 16; page++) map[page * PAGE] = '!';
        for (long page = 0; page < 16; page++) CHECK(map[page * PAGE + 1] == theirs);
        CHECK(fsync(fd) == 0);
    }
    CHECK(close(input) == 0 && waitpid(other, &status, 0) == other && status == 0);
}

// ---- beside -------------------------------------------------------------------------------------

enum { BESIDE_PAGES = 2048, BESIDE_ROUNDS = 4000 };
static atomic_int beside_ends;
static int beside_fd;

// Stores to one page after the other, in no order; few fit in memory, so that they are written back.
static void *storing(void *map) {
    for (uint64_t x = 88172645463325252ull; !beside_ends;) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t at = (16 + x % (BESIDE_PAGES - 16)) * PAGE + 8 * (x >> 40 & 255);
        if (map)
            *(volatile uint64_t *)((char *)map + at) = x;
        else
            CHECK(pwrite(beside_fd, &x, sizeof x, (off_t)at) == sizeof x);
    }
    return NULL;
}

// While a thread changes other pages all the time, the other process changes one under a lock; and in
// the end, when nobody does so any more.
static void beside(const char *path, int by_mapping) {
    int fd = beside_fd = fresh(path, BESIDE_PAGES * PAGE), input, output, status, old = 0;
    pid_t other = outsider("stamp", path, &input, &output);
    void *map = NULL;
    if (by_mapping) {
        map = mmap(NULL, BESIDE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(map != MAP_FAILED);
    }
    // From here on it is known that the other writes.
    char first = '-';
    CHECK(write(input, &first, 1) == 1 && read(output, &first, 1) == 1 && usleep(200000) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, storing, map) == 0);
    for (int round = 0; round < BESIDE_ROUNDS; round++) {
        char mine = 'a' + round % 26, found;
        // It is in memory.
        CHECK(pread(fd, &found, 1, STAMP_AT) == 1);
        if (round % 50 == 49) usleep(any(50000));
        CHECK(write(input, &mine, 1) == 1 && read(output, &found, 1) == 1);
        old += stamped(fd) != mine;
        if (round == BESIDE_ROUNDS - 100) {
            beside_ends = 1;
            CHECK(pthread_join(thread, NULL) == 0);
        }
    }
    CHECK(close(input) == 0 && waitpid(other, &status, 0) == other && status == 0);
    if (old) fprintf(stderr, "%d of %d times it was old\n", old, BESIDE_ROUNDS), _exit(1);
}

// ---- gives --------------------------------------------------------------------------------------

// A lock that is given up by something else than its release, or taken by lockf: what was stored under
// it is there for who takes it next, outside.
enum { GIVE_AT = 3 * PAGE + 11 };

// The other is there from the beginning: before a program outside is begun, all is written back.
static int given_input, given_output;

static char ask(void) {
    char c = '?';
    CHECK(write(given_input, &c, 1) == 1 && read(given_output, &c, 1) == 1);
    return c;
}

static void given(const char *path) {
    for (char c; read(0, &c, 1) == 1;) {
        int fd = open(path, O_RDONLY);
        struct flock whole = {.l_type = F_RDLCK};
        CHECK(fd > 2 && fcntl(fd, F_SETLKW, &whole) == 0 && pread(fd, &c, 1, GIVE_AT) == 1);
        CHECK(close(fd) == 0 && write(1, &c, 1) == 1);
    }
}

static void gives(const char *path) {
    int status;
    close(fresh(path, 8 * PAGE));
    pid_t other = outsider("given", path, &given_input, &given_output);
    for (int way = 0; way < 8; way++) {
        int fd = open(path, O_RDWR), same = open(path, O_RDONLY);
        CHECK(fd > 2 && same > 2);
        char *map = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(map != MAP_FAILED);
        struct flock whole = {.l_type = F_WRLCK};
        pid_t child = way == 6 || way == 7 ? fork() : 0;
        if (child == 0) {
            if (way == 1) CHECK(lockf(fd, F_LOCK, 0) == 0);
            else if (way == 2) CHECK(syscall(SYS_fcntl, fd, F_SETLKW, &whole) == 0);
            else CHECK(fcntl(fd, F_SETLKW, &whole) == 0);
            map[GIVE_AT] = 'a' + way;
            whole.l_type = way == 0 ? F_RDLCK : F_UNLCK;
            if (way == 0) CHECK(fcntl(fd, F_SETLK, &whole) == 0);
            if (way == 1) CHECK(lseek(fd, 0, SEEK_SET) == 0 && lockf(fd, F_ULOCK, 0) == 0);
            if (way == 2) CHECK(syscall(SYS_fcntl, fd, F_SETLK, &whole) == 0);
            if (way == 3) CHECK(close(same) == 0);
            if (way == 4) CHECK(dup2(1, same) == same);
            if (way == 5) CHECK(close_range((unsigned)same, (unsigned)same, 0) == 0);
            if (way == 6) _exit(0);
            if (way == 7) exit(0);
        }
        CHECK(child == 0 || (waitpid(child, &status, 0) == child && status == 0));
        char found = ask();
        if (found != 'a' + way) {
            fprintf(stderr, "way %d: %c\n", way, found);
            _exit(1);
        }
        munmap(map, 8 * PAGE), close(fd), close(same);
    }
    CHECK(close(given_input) == 0 && waitpid(other, &status, 0) == other && status == 0);
}

// ---- guards -------------------------------------------------------------------------------------

enum { GUARDS = 13 };

// A lock on another file, which is empty, or large enough to be managed: what is stored under it is there when
// it is given up in whatever way, and what the other wrote under it is seen by who takes it.
static void guarded(const char *path) {
    int fd = open(path, O_RDWR), lock = open("guard.lock", O_RDWR);
    CHECK(fd >= 0 && lock >= 0);
    for (char c; read(0, &c, 1) == 1;) {
        struct flock whole = {.l_type = F_WRLCK};
        CHECK(flock(lock, LOCK_EX) == 0 && fcntl(lock, F_SETLKW, &whole) == 0);
        CHECK(pread(fd, &c, 1, GIVE_AT) == 1);
        char mine = c - 'a' + 'A';
        CHECK(pwrite(fd, &mine, 1, GIVE_AT + 1) == 1);
        whole.l_type = F_UNLCK;
        CHECK(fcntl(lock, F_SETLK, &whole) == 0 && flock(lock, LOCK_UN) == 0 && write(1, &c, 1) == 1);
    }
}

// Whoever has a descriptor, too, may lock it for both.
static void locked_by_a_child(int lock) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(flock(lock, LOCK_EX) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// More than any list of them has room for.
static void lock_others(void) {
    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "other.%d", i);
        int other = open(name, O_RDWR | O_CREAT, 0644);
        CHECK(other >= 0 && flock(other, LOCK_EX) == 0 && close(other) == 0);
    }
}

static void store_guarded(const char *path, int way, int closes) {
    int fd = open(path, O_RDWR), lock = open("guard.lock", O_RDWR), same = open("guard.lock", O_RDWR);
    CHECK(fd > 2 && lock > 2 && same > 2);
    char *map = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && (!closes || close(fd) == 0));
    struct flock whole = {.l_type = F_WRLCK};
    int copy = way == 8 || way == 11 ? dup(lock) : way == 9 ? fcntl(lock, F_DUPFD, 300) : -1;
    if (way == 12) locked_by_a_child(lock);
    else if (way == 1 || way == 3 || way > 7) CHECK(flock(lock, LOCK_EX) == 0);
    else if (way == 2) CHECK(lockf(lock, F_LOCK, 0) == 0);
    else CHECK(fcntl(lock, F_SETLKW, &whole) == 0);
    // A child without an image of its own closes what it has; the lock is not given up with that.
    if (way == 10) {
        pid_t child = vfork();
        if (child == 0) close(lock), execl("/bin/true", "true", NULL), _exit(1);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    char before = 'A' + (way + GUARDS - 1) % GUARDS, found;
    CHECK(way + closes == 0 || map[GIVE_AT + 1] == before);
    if (!closes && way) CHECK(pread(fd, &found, 1, GIVE_AT + 1) == 1 && found == before);
    map[GIVE_AT] = 'a' + way;
    whole.l_type = F_UNLCK;
    switch (way) {
    case 0: CHECK(fcntl(lock, F_SETLK, &whole) == 0); break;
    case 1: CHECK(flock(lock, LOCK_UN) == 0); break;
    case 2: CHECK(lockf(lock, F_ULOCK, 0) == 0); break;
    case 3: CHECK(close(lock) == 0); break;
    case 4: CHECK(close(same) == 0); break;
    case 5: CHECK(dup2(1, lock) == lock); break;
    case 6: CHECK(close_range((unsigned)lock, (unsigned)lock, 0) == 0); break;
    case 7: _exit(0);
    // With its last descriptor.
    case 8:
    case 9: CHECK(close(lock) == 0 && close(copy) == 0); break;
    case 11:
        CHECK(close(lock) == 0);
        lock_others(), map[GIVE_AT] = 'a' + way;
        CHECK(close(copy) == 0);
        break;
    default: CHECK(close(lock) == 0);
    }
    if (ask() != 'a' + way) fprintf(stderr, "way %d: not there\n", way), _exit(1);
    munmap(map, 8 * PAGE), close(fd), close(same), close(lock);
}

static void guards(const char *path, int lock_bytes) {
    int status;
    close(fresh(path, 8 * PAGE));
    int lock = open("guard.lock", O_RDWR | O_CREAT, 0644);
    CHECK(lock > 2 && ftruncate(lock, lock_bytes) == 0 && close(lock) == 0);
    pid_t other = outsider("guarded", path, &given_input, &given_output);
    for (int closes = 0; closes < 2; closes++)
        for (int way = 0; way < GUARDS; way++) {
            pid_t child = way == 7 ? fork() : 0;
            if (child == 0) store_guarded(path, way, closes);
            if (way != 7) continue;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            if (ask() != 'a' + way) fprintf(stderr, "way %d: not there\n", way), _exit(1);
        }
    CHECK(close(given_input) == 0 && waitpid(other, &status, 0) == other && status == 0);
}

// ---- hands --------------------------------------------------------------------------------------

// A lock that came with a descriptor from who executed the program, and goes with the descriptor or with the
// program; what it stores, it stores by the same descriptor, or by one of its own.
enum { KINDS = 3, POSIX = 1, OFD = 2, BY_CLOSE = 0, BY_END = 1 };

static void handed(const char *path, int way, int fd, int told) {
    int how = way / KINDS, by = how == BY_CLOSE || how == BY_END ? fd : open(path, O_RDWR);
    char *map = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, by, 0);
    CHECK(map != MAP_FAILED);
    // A process's own lock goes with any descriptor.
    if (by != fd && way % KINDS != POSIX) CHECK(close(by) == 0);
    map[GIVE_AT] = 'a' + way;
    if (how != BY_END) {
        // The mapping has the description, too.
        if (by == fd) CHECK(munmap(map, 8 * PAGE) == 0);
        CHECK(close(fd) == 0 && write(told, "!", 1) == 1);
        // Until the other has looked.
        pause();
    }
    _exit(0);
}

static void hands(const char *path) {
    int status;
    close(fresh(path, 8 * PAGE));
    pid_t other = outsider("given", path, &given_input, &given_output);
    for (int way = 0; way < 3 * KINDS; way++) {
        int ends[2];
        char numbers[3][20], byte;
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0) {
            int fd = open(path, O_RDWR);
            struct flock whole = {.l_type = F_WRLCK};
            if (way % KINDS == 0) CHECK(flock(fd, LOCK_EX) == 0);
            else CHECK(fcntl(fd, way % KINDS == OFD ? F_OFD_SETLK : F_SETLK, &whole) == 0);
            int own[3] = {way, fd, ends[1]};
            for (int i = 0; i < 3; i++) snprintf(numbers[i], sizeof numbers[i], "%d", own[i]);
            close(ends[0]);
            execl("/proc/self/exe", "writes", "handed", path, numbers[0], numbers[1], numbers[2], NULL);
            _exit(1);
        }
        CHECK(child > 0 && close(ends[1]) == 0);
        // It says that it has closed it, or ends.
        CHECK(read(ends[0], &byte, 1) == (way / KINDS != BY_END) && close(ends[0]) == 0);
        char found = ask();
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        if (found != 'a' + way) {
            fprintf(stderr, "way %d: %c\n", way, found);
            _exit(1);
        }
    }
    CHECK(close(given_input) == 0 && waitpid(other, &status, 0) == other && status == 0);
}

// ---- waits --------------------------------------------------------------------------------------

// One process holds the lock, and its children store: it gives the lock up when it has waited for them.
static void waits(const char *path) {
    int status;
    close(fresh(path, 8 * PAGE));
    pid_t other = outsider("given", path, &given_input, &given_output);
    ask();
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) {
            int fd = open(path, O_RDWR);
            char *map = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            CHECK(map != MAP_FAILED);
            map[GIVE_AT] = 'a' + round % 26;
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        char found = ask();
        if (found != 'a' + round % 26) {
            fprintf(stderr, "round %d: %c\n", round, found);
            _exit(1);
        }
    }
    CHECK(close(given_input) == 0 && waitpid(other, &status, 0) == other && status == 0);
}

// ---- holes --------------------------------------------------------------------------------------

// What is stored in a hole is data, whoever asks; and what a process stored that has ended is in the
// file for one that is begun then, and reads it without libc's functions.
static long by_number(long number, long a, long b, long c, long d) {
#ifdef __x86_64__
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
#else
    return syscall(number, a, b, c, d);
#endif
}

static void bare(const char *path) {
    char c;
    long fd = by_number(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0);
    CHECK(fd > 2 && by_number(SYS_pread64, fd, (long)&c, 1, GIVE_AT) == 1 && write(1, &c, 1) == 1);
}

static char begun(const char *how, const char *path) {
    int back[2];
    CHECK(pipe(back) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(dup2(back[1], 1) == 1);
        execl("/proc/self/exe", "writes", how, path, NULL);
        _exit(1);
    }
    char c = 0;
    int status;
    close(back[1]);
    CHECK(read(back[0], &c, 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    close(back[0]);
    return c;
}

static void holes(const char *path) {
    enum { BYTES = 64 * PAGE };
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd > 2 && ftruncate(fd, BYTES) == 0);
    char *map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int page = 40; page > 0; page -= 4) {
        map[page * PAGE] = 7;
        CHECK(lseek(fd, 0, SEEK_DATA) == page * PAGE);
    }
    CHECK(syscall(SYS_lseek, fd, 0, SEEK_HOLE) == 0);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) {
            map[GIVE_AT] = 'A' + round;
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0 && begun("bare", path) == 'A' + round);
    }
}

// ---- through ------------------------------------------------------------------------------------

// Blocks of all sizes behind each other, by all calls, while others read here and there, so that
// pages come and go.
static void through(const char *path, uint64_t seed) {
    enum { PAGES = 300, BYTES = PAGES * PAGE, READERS = 2 };
    int fd = fresh(path, BYTES);
    pid_t readers[READERS];
    for (int i = 0; i < READERS; i++)
        if ((readers[i] = fork()) == 0) {
            int own = open(path, O_RDONLY);
            CHECK(own > 2);
            state = seed * 77 + (uint64_t)i + 1;
            unsigned char byte;
            for (;;) CHECK(pread(own, &byte, 1, (off_t)any(BYTES)) == 1);
        }
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    unsigned char *model = malloc(BYTES), *piece = malloc(BYTES);
    fill(model, 0, BYTES);
    FILE *stream = fopen(path, "r+");
    CHECK(stream);
    for (int pass = 0; pass < 12; pass++) {
        uint64_t sizes[] = {700, 5000, 20000, 100000}, most = sizes[any(4)], way = any(3);
        CHECK(lseek(fd, 0, SEEK_SET) == 0 && fseek(stream, 0, SEEK_SET) == 0);
        for (uint64_t at = 0; at < BYTES;) {
            uint64_t bytes = 1 + any(most);
            if (at + bytes > BYTES) bytes = BYTES - at;
            for (uint64_t i = 0; i < bytes; i++) model[at + i] = (unsigned char)(1 + any(255));
            if (way == 0) CHECK(pwrite(fd, model + at, bytes, (off_t)at) == (ssize_t)bytes);
            if (way == 1) CHECK(write(fd, model + at, bytes) == (ssize_t)bytes);
            if (way == 2) CHECK(fwrite(model + at, 1, bytes, stream) == bytes);
            at += bytes;
            if (way == 2 && any(4)) continue;
            CHECK(fflush(stream) == 0);
            // What was written just now, and something else.
            uint64_t from = any(2) && at > 3000 ? at - 3000 : any(BYTES - 3000);
            CHECK(pread(fd, piece, 3000, (off_t)from) == (from + 3000 > BYTES ? (ssize_t)(BYTES - from) : 3000));
            CHECK(!memcmp(piece, model + from, from + 3000 > BYTES ? BYTES - from : 3000));
        }
        CHECK(fflush(stream) == 0 && pread(fd, piece, BYTES, 0) == BYTES && !memcmp(piece, model, BYTES));
    }
    for (int i = 0, status; i < READERS; i++) CHECK(kill(readers[i], SIGKILL) == 0 && wait(&status) > 0);
    CHECK(fsync(fd) == 0 && pread(fd, piece, BYTES, 0) == BYTES && !memcmp(piece, model, BYTES));
}

// ---- flags --------------------------------------------------------------------------------------

static void flags(const char *path) {
    enum { BYTES = 20 * PAGE };
    int fd = fresh(path, BYTES), own = open(path, O_RDONLY);
    uint64_t size = BYTES;
    unsigned char c[2], model[BYTES];
    fill(model, 0, BYTES);
    CHECK(own > 2);
    for (int round = 0; round < 40; round++) {
        // Set by this process, or by a child for both.
        int flags = round % 2 ? O_APPEND : 0, status;
        if (round % 4 < 2) {
            CHECK(fcntl(fd, F_SETFL, flags) == 0);
        } else {
            if (fork() == 0) _exit(fcntl(fd, F_SETFL, flags) != 0);
            CHECK(wait(&status) > 0 && status == 0);
        }
        for (int i = 0; i < 3; i++) {
            // pwrite(2) appends, too.
            uint64_t at = (uint64_t)(round * 97 + i) * 31 % BYTES;
            c[0] = (unsigned char)(round + 100);
            CHECK(pwrite(fd, c, 1, (off_t)at) == 1);
            if (flags) size++; else model[at] = c[0];
            CHECK(pread(own, c + 1, 1, (off_t)(flags ? size - 1 : at)) == 1 && c[1] == c[0]);
            CHECK(pread(own, c, 1, (off_t)at) == 1 && c[0] == model[at]);
            CHECK(pread(own, c, 1, (off_t)size) == 0);
        }
    }
}

// ---- reused -------------------------------------------------------------------------------------

static void reused(const char *path) {
    enum { BYTES = 20 * PAGE };
    char second[4096];
    snprintf(second, sizeof second, "%s.second", path);
    int a = fresh(path, BYTES), b = fresh(second, BYTES);
    unsigned char byte, got[3];
    for (int round = 0; round < 20; round++) {
        uint64_t at = (uint64_t)round * 1111 + 5;
        // Both are in memory, and written to without a message.
        for (int i = 0; i < 3; i++) {
            byte = (unsigned char)(round + i);
            CHECK(pwrite(a, &byte, 1, (off_t)at) == 1 && pwrite(b, &byte, 1, (off_t)at + 1) == 1);
            CHECK(pread(a, got, 2, (off_t)at) == 2 && got[0] == byte && got[1] == pattern(at + 1));
            CHECK(pread(b, got, 2, (off_t)at) == 2 && got[0] == pattern(at) && got[1] == byte);
        }
        // What was the first file's is the second's now.
        CHECK(unheard(SYS_dup3, b, a, 0) == a);
        byte = 200;
        if (round % 2) CHECK(pwrite(a, &byte, 1, (off_t)at + 2) == 1);
        else CHECK(lseek(a, (off_t)at + 2, SEEK_SET) >= 0 && write(a, &byte, 1) == 1);
        CHECK(pread(b, got, 3, (off_t)at) == 3 && got[0] == pattern(at) && got[2] == 200);
        int first = open(path, O_RDWR);
        CHECK(first > 2 && pread(first, got, 3, (off_t)at) == 3);
        CHECK(got[0] == (unsigned char)(round + 2) && got[1] == pattern(at + 1) && got[2] == pattern(at + 2));
        CHECK(dup2(first, a) == a && close(first) == 0);
    }
}

// ---- seen ---------------------------------------------------------------------------------------

// A number of the file as a process sees it that nobody manages.
static uint64_t outside(const char *path, uint64_t offset) {
    int ends[2], status;
    char at[32], text[32] = "";
    snprintf(at, sizeof at, "%lu", (unsigned long)offset);
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        char *arguments[] = {"writes", "peek", (char *)path, at, NULL}, *nothing[] = {NULL};
        CHECK(dup2(ends[1], 1) == 1);
        execve("/proc/self/exe", arguments, nothing);
        _exit(1);
    }
    CHECK(close(ends[1]) == 0);
    for (ssize_t done = 0, got; (got = read(ends[0], text + done, sizeof text - 1 - (size_t)done)) > 0;) done += got;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && close(ends[0]) == 0);
    return strtoull(text, NULL, 10);
}

static void peek(const char *path, uint64_t offset) {
    uint64_t value;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, &value, sizeof value, (off_t)offset) == sizeof value);
    printf("%lu\n", (unsigned long)value);
}

static void put(int fd, uint64_t value, int how, uint64_t at) {
    struct iovec parts[2] = {{&value, 3}, {(char *)&value + 3, 5}};
    if (how == 0) CHECK(pwrite(fd, &value, 8, (off_t)at) == 8);
    if (how == 1) CHECK(pwritev(fd, parts, 2, (off_t)at) == 8);
    if (how == 2) CHECK(lseek(fd, (off_t)at, SEEK_SET) == (off_t)at && write(fd, &value, 8) == 8);
    CHECK(how != 2 || lseek(fd, 0, SEEK_CUR) == (off_t)at + 8);
}

static void locked(int fd, short kind) {
    struct flock whole = {.l_type = kind};
    CHECK(fcntl(fd, F_SETLK, &whole) == 0);
}

static void locks(const char *path) {
    enum { TIMES = 2000 };
    int fd = fresh(path, 20 * PAGE);
    unsigned char byte;
    struct rusage before, after;
    for (int i = 0; i < 2 * TIMES; i++) {
        // The file's time is doubted at first, until a question that comes 20 ms later.
        if (i == TIMES / 2) CHECK(usleep(50000) == 0);
        if (i == TIMES) CHECK(getrusage(RUSAGE_SELF, &before) == 0);
        locked(fd, i % 2 ? F_WRLCK : F_RDLCK);
        CHECK(pread(fd, &byte, 1, i) == 1 && byte == pattern((uint64_t)i));
        locked(fd, F_UNLCK);
    }
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    // Each message has the process wait.
    long waits = after.ru_nvcsw - before.ru_nvcsw;
    if (waits > TIMES / 10) fprintf(stderr, "waited %ld times\n", waits), _exit(1);
}

static void short_ones(const char *path) {
    enum { FILES = 500, BYTES = 3000 };
    struct rusage before, after;
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    for (int i = 0; i < FILES; i++) {
        char name[200];
        snprintf(name, sizeof name, "%s.%d", path, i);
        unsigned char bytes[BYTES];
        fill(bytes, (uint64_t)i, sizeof bytes);
        int fd = open(name, O_CREAT | O_WRONLY | (i % 2 ? O_TRUNC : O_EXCL), 0600);
        CHECK(fd >= 0);
        CHECK(write(fd, bytes, 1000) == 1000 && write(fd, bytes + 1000, 1500) == 1500);
        CHECK(pwrite(fd, bytes + 2500, 500, 2500) == 500 && close(fd) == 0);
        CHECK((fd = open(name, O_RDONLY)) >= 0);
        memset(bytes, 0, sizeof bytes);
        CHECK(read(fd, bytes, 1000) == 1000 && read(fd, bytes + 1000, BYTES) == 2000);
        must_be(bytes, (uint64_t)i, sizeof bytes);
        CHECK(close(fd) == 0);
    }
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    long waits = after.ru_nvcsw - before.ru_nvcsw;
    if (waits > FILES / 5) fprintf(stderr, "waited %ld times\n", waits), _exit(1);
}

static void seen(const char *path) {
    enum { AT = 7 * PAGE - 3, MAPPED = 11 * PAGE + 8 };
    int fd = fresh(path, 20 * PAGE);
    int other = open(path, O_RDWR);
    unsigned char *map = mmap(NULL, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
    CHECK(map != MAP_FAILED && close(other) == 0);
    uint64_t value = 0, got;
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < 50; i++) {
            put(fd, ++value, i % 3, AT);
            CHECK(pread(fd, &got, 8, AT) == 8 && got == value);
        }
        if (round % 3 == 0) CHECK(fsync(fd) == 0);
        if (round % 3 == 1) {
            // Once with nothing to be written, and once with a store, too.
            locked(fd, F_WRLCK), locked(fd, F_UNLCK), locked(fd, F_WRLCK);
            put(fd, ++value, 0, AT);
            memcpy(map + MAPPED, &value, 8);
            locked(fd, F_UNLCK);
            CHECK(outside(path, MAPPED) == value);
        }
        if (round % 3 == 2) CHECK(close(fd) == 0);
        CHECK(outside(path, AT) == value);
        if (round % 3 == 2) CHECK((fd = open(path, O_RDWR)) > 2);
    }
}

// ---- counter ------------------------------------------------------------------------------------

static void counter(const char *path) {
    int fd = open(path, O_RDWR);
    CHECK(fd > 2);
    for (uint64_t value = 1;; value++) {
        // In two pages.
        CHECK(pwrite(fd, &value, 8, 7 * PAGE - 3) == 8);
        if (value % 64 == 0) CHECK(write(1, &value, 8) == 8);
    }
}

// ---- cells --------------------------------------------------------------------------------------

enum { CELL_PAGES = 200, WRITERS = 4, TURNS = 20000 };

static void overwrite(const char *path, uint64_t who, uint64_t turns) {
    int fd = open(path, O_RDWR);
    uint64_t random = who * 0x9e3779b97f4a7c15ull + 1, values[CELL_PAGES] = {0}, got;
    CHECK(fd > 2);
    for (uint64_t turn = 1; turn <= turns; turn++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        // Mostly some that are written to again and again. Cells lie across words of memory.
        uint64_t page = random % (random >> 40 & 7 ? 20 : CELL_PAGES), at = page * PAGE + who * 8 + 3;
        if (values[page]) CHECK(pread(fd, &got, 8, (off_t)at) == 8 && got == values[page]);
        put(fd, values[page] = turn, (int)(random >> 50) % 3, at);
    }
    for (uint64_t page = 0; page < CELL_PAGES; page++) put(fd, page * WRITERS + who, 0, page * PAGE + who * 8 + 3);
}

static void *overwriter(void *argument) {
    void **arguments = argument;
    overwrite(arguments[0], (uint64_t)arguments[1], TURNS);
    return NULL;
}

static void cells(const char *path) {
    CHECK(close(fresh(path, CELL_PAGES * PAGE)) == 0);
    pthread_t threads[WRITERS - 1];
    void *arguments[WRITERS - 1][2];
    for (uint64_t who = 1; who < WRITERS; who++) {
        arguments[who - 1][0] = (void *)path, arguments[who - 1][1] = (void *)who;
        CHECK(pthread_create(&threads[who - 1], NULL, overwriter, arguments[who - 1]) == 0);
    }
    pid_t child = fork();
    if (child == 0) {
        overwrite(path, 0, TURNS);
        _exit(0);
    }
    int status;
    for (int i = 0; i < WRITERS - 1; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// ---- what is written while a file becomes a managed one ----

enum { BECOMES_PAGES = 8192, BECOMES_ROUNDS = 40, BECOMES_STORES = 64 };

// Writes all of a file that was short when it was opened, in one call that takes a while.
static void becomes_write(int fd, const unsigned char *all, int round) {
    ssize_t bytes = (ssize_t)BECOMES_PAGES * PAGE;
    // At an offset, and by the descriptor's own.
    if (round % 4 < 2) CHECK(pwrite(fd, all, bytes, 0) == bytes);
    else CHECK(lseek(fd, 0, SEEK_SET) == 0 && write(fd, all, bytes) == bytes);
}

// Stores to the last bytes of pages that the other has not come to, perhaps.
static void becomes_store(const char *path, int round) {
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    unsigned char *map = mmap(NULL, BECOMES_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int i = 0; i < BECOMES_STORES; i++)
        map[(BECOMES_PAGES - 1 - i * 64L) * PAGE + PAGE - 1] = 1 + round;
    munmap(map, BECOMES_PAGES * PAGE);
    close(fd);
}

static void becomes(const char *path) {
    static unsigned char all[BECOMES_PAGES * PAGE], found[BECOMES_PAGES * PAGE];
    for (int round = 0; round < BECOMES_ROUNDS; round++) {
        unlink(path);
        // One that may read, and one that may not.
        int fd = open(path, O_CREAT | O_EXCL | (round % 2 ? O_WRONLY : O_RDWR), 0600);
        CHECK(fd >= 0);
        memset(all, 200, sizeof all);
        // All of it is in the kernel's memory.
        CHECK(pwrite(fd, all, sizeof all, 0) == sizeof all);
        memset(all, 100 + round, sizeof all);
        pid_t writer = fork();
        CHECK(writer >= 0);
        if (writer == 0) becomes_write(fd, all, round), _exit(0);
        usleep(round * 97 % 4000);
        becomes_store(path, round);
        int status;
        CHECK(waitpid(writer, &status, 0) == writer && status == 0);
        close(fd);
        // All that was written is there, but for the bytes that were stored to: who was first there
        // nobody knows.
        fd = open(path, O_RDWR);
        CHECK(pread(fd, found, sizeof found, 0) == sizeof found);
        for (long page = 0; page < BECOMES_PAGES; page++)
            if (memcmp(found + page * PAGE, all, PAGE - 1)) {
                fprintf(stderr, "round %d, page %ld: %u\n", round, page, found[page * PAGE]);
                _exit(1);
            }
        close(fd);
    }
}

// ---- lines --------------------------------------------------------------------------------------

// Lines without a NUL: who, which, and dots.
enum { LINE = 64, LINES = 3000, LINES_FIRST = 5 * PAGE + LINE };

static void line_of(char *to, char who, int number) {
    memset(to, '.', LINE);
    char head[16];
    memcpy(to, head, (size_t)sprintf(head, "%c%06d", who, number));
    to[LINE - 1] = '\n';
}

static void adds(const char *path, int times) {
    int fd = open(path, O_WRONLY | O_APPEND);
    CHECK(fd > 2);
    char line[LINE];
    for (int i = 0; i < times; i++) {
        line_of(line, 'o', i);
        CHECK(write(fd, line, LINE) == LINE);
        // As long as the other may take for a message.
        for (int j = 0; j < 100; j++) getppid();
    }
}

// No byte that is below the end is one that nobody wrote.
static void tail_is_whole(int fd) {
    static char tail[2 * PAGE];
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0 && stat.st_size >= LINES_FIRST);
    off_t from = stat.st_size - PAGE;
    ssize_t got = pread(fd, tail, sizeof tail, from);
    CHECK(got >= 0);
    const char *hole = memchr(tail, 0, (size_t)got);
    if (hole) {
        fprintf(stderr, "nothing at %ld, and the end is at %ld\n", (long)(from + (hole - tail)), (long)stat.st_size);
        _exit(1);
    }
}

// How: "mapped" (by message), "stored" (and what was written is dirty), "plain" (no message).
static void lines(const char *path, const char *how) {
    int fd = fresh(path, LINES_FIRST), log = open(path, O_RDWR | O_APPEND), status;
    CHECK(log > 2);
    char *map = NULL, line[LINE];
    if (strcmp(how, "plain")) {
        map = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(map != MAP_FAILED && map[LINES_FIRST - 1]);
    }
    pid_t other = fork();
    if (other == 0) {
        char times[16];
        sprintf(times, "%d", LINES);
        CHECK(setenv("PAGEKEEPER_DISABLE", "1", 1) == 0);
        execl("/proc/self/exe", "writes", "adds", path, times, NULL);
        _exit(1);
    }
    pid_t reader = fork();
    if (reader == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int own = open(path, O_RDONLY);
        CHECK(own > 2);
        for (;;) tail_is_whole(own);
    }
    int stores = !strcmp(how, "stored");
    for (int i = 0; i < LINES; i++) {
        line_of(line, 'i', i);
        CHECK(write(log, line, LINE) == LINE);
        off_t end = lseek(log, 0, SEEK_CUR);
        char back[LINE];
        CHECK(pread(fd, back, LINE, end - LINE) == LINE && !memcmp(back, line, LINE));
        if (stores) map[end - 2] = '.';
        tail_is_whole(fd);
    }
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    CHECK(waitpid(reader, &status, WNOHANG) == 0 && kill(reader, SIGKILL) == 0 && waitpid(reader, &status, 0) == reader);
    CHECK(!map || msync(map, LINES_FIRST + 2 * LINES * LINE, MS_SYNC) == 0);
    static char found[2 * LINES * LINE];
    CHECK(pread(fd, found, sizeof found + 1, LINES_FIRST) == sizeof found);
    int next[2] = {0};
    for (char *at = found; at < found + sizeof found; at += LINE) {
        int inside = *at == 'i';
        line_of(line, inside ? 'i' : 'o', next[inside]++);
        if (memcmp(at, line, LINE)) {
            fprintf(stderr, "line %ld is %.64s, not %.64s", (at - found) / LINE, at, line);
            _exit(1);
        }
    }
}

// ---- offset -------------------------------------------------------------------------------------

static void offset(const char *path) {
    enum { RECORD = 10, RECORDS = 20000, START = 1 << 20 };
    int fd = fresh(path, 2 << 20), status;
    CHECK(lseek(fd, START, SEEK_SET) == START);
    char record[RECORD + 1];
    volatile int *ends = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ends != MAP_FAILED);
    pid_t other = fork();
    if (other == 0) {
        struct rlimit least = {PAGE, PAGE};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &least) == 0);
        while (!*ends) CHECK(write(fd, "##########", RECORD) == -1 && errno == EFBIG);
        _exit(0);
    }
    for (int i = 0; i < RECORDS; i++) {
        sprintf(record, "%09d\n", i);
        CHECK(write(fd, record, RECORD) == RECORD);
    }
    *ends = 1;
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == START + RECORDS * RECORD);
    for (int i = 0; i < RECORDS; i++) {
        char found[RECORD];
        sprintf(record, "%09d\n", i);
        CHECK(pread(fd, found, RECORD, START + i * RECORD) == RECORD);
        if (memcmp(found, record, RECORD)) {
            fprintf(stderr, "record %d is %.10s\n", i, found);
            _exit(1);
        }
    }
}

// ---- image --------------------------------------------------------------------------------------

static void *appender(void *argument) {
    int fd = *(int *)argument;
    char line[LINE];
    line_of(line, 'a', 0);
    for (;;) CHECK(write(fd, line, LINE) == LINE);
}

static void image(const char *path) {
    enum { ROUNDS = 40, SECONDS = 10 };
    close(fresh(path, LINES_FIRST));
    for (int round = 0; round < ROUNDS; round++) {
        pid_t program = fork();
        if (program == 0) {
            int fd = open(path, O_RDWR | O_APPEND);
            CHECK(fd > 2);
            // So that each write that follows is a message.
            char *map = round % 2 ? mmap(NULL, 64 << 20, PROT_READ, MAP_SHARED, fd, 0) : "";
            CHECK(map != MAP_FAILED && write(fd, "x", 1) == 1);
            // It makes no call on any file, and has all that its parent had open.
            pid_t idler = fork();
            if (idler == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;) pause();
            }
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, appender, &fd) == 0);
            usleep(5000 + round * 500);
            execl("/proc/self/exe", "writes", "after", path, NULL);
            _exit(1);
        }
        int status = 0;
        for (int waited = 0; waitpid(program, &status, WNOHANG) == 0; waited++) {
            if (waited == SECONDS * 1000) {
                fprintf(stderr, "round %d: what was executed waits for what is gone\n", round);
                kill(program, SIGKILL);
                _exit(1);
            }
            usleep(1000);
        }
        CHECK(status == 0);
    }
}

static void after(const char *path) {
    int fd = open(path, O_RDWR | O_APPEND);
    struct stat stat;
    CHECK(fd > 2 && write(fd, "y", 1) == 1 && fstat(fd, &stat) == 0);
    char last;
    CHECK(pread(fd, &last, 1, stat.st_size - 1) == 1 && last == 'y');
}

// A process is killed in the midst of its writes: what its parent finds when it has waited for it does not
// change any more.
static void killed(const char *path) {
    enum { KILLED_PAGES = 32, WORDS = PAGE / 8 };
    static uint64_t block[KILLED_PAGES * WORDS];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && ftruncate(fd, sizeof block) == 0);
    volatile uint64_t *map = mmap(NULL, sizeof block, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    state = 7;
    for (int round = 0; round < 150; round++) {
        uint64_t seen[KILLED_PAGES];
        for (int i = 0; i < KILLED_PAGES; i++) seen[i] = map[i * WORDS];
        pid_t child = fork();
        CHECK(child >= 0);
        for (uint64_t n = (uint64_t)(round + 1) << 32; child == 0; n++) {
            for (int i = 0; i < KILLED_PAGES; i++) block[i * WORDS] = n;
            CHECK(pwrite(fd, block, sizeof block, 0) == sizeof block);
        }
        while (seen[0] == map[0]) usleep(100);
        usleep((useconds_t)any(3000));
        siginfo_t info;
        CHECK(kill(child, SIGKILL) == 0);
        if (round % 2) CHECK(waitid(P_PID, (id_t)child, &info, WEXITED) == 0);
        else CHECK(waitpid(child, NULL, 0) == child);
        for (int i = 0; i < KILLED_PAGES; i++) seen[i] = map[i * WORDS];
        usleep(2000);
        for (int i = 0; i < KILLED_PAGES; i++) CHECK(seen[i] == map[i * WORDS]);
    }
}

// A hundred and fifty threads, each of which writes and reads its own place in a page of all; a file that
// is cut meanwhile behind that, by another.
enum { CROWD = 150 };
static int crowd_fd;
#define SEVERAL_PAGES 1024
static int shared_fd;

// Writes words and reads pages at random, and syncs now and then.
static void *one_of_several(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    char page[4096];
    for (int i = 0; i < 4000; i++) {
        long at = rand_r(&seed) % SEVERAL_PAGES * 4096L, other = rand_r(&seed) % SEVERAL_PAGES * 4096L;
        CHECK(pwrite(shared_fd, &seed, sizeof seed, at) == sizeof seed);
        CHECK(pread(shared_fd, page, sizeof page, other) == sizeof page);
        if (i % 50 == 0) CHECK(fdatasync(shared_fd) == 0);
    }
    return NULL;
}

// Several threads write to one file that fits into memory.
static void several(const char *path) {
    shared_fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(shared_fd >= 0 && ftruncate(shared_fd, SEVERAL_PAGES * 4096L) == 0);
    pthread_t threads[4];
    for (uintptr_t who = 0; who < 4; who++)
        CHECK(pthread_create(&threads[who], NULL, one_of_several, (void *)who) == 0);
    for (int who = 0; who < 4; who++) CHECK(pthread_join(threads[who], NULL) == 0);
}

static pthread_barrier_t crowd_begins;

static void *one_of_many(void *argument) {
    uint64_t who = (uint64_t)(uintptr_t)argument, found;
    off_t place = (off_t)(who * sizeof who);
    pthread_barrier_wait(&crowd_begins);
    for (uint64_t i = 1; i <= 40; i++) {
        uint64_t value = who << 32 | i;
        CHECK(pwrite(crowd_fd, &value, sizeof value, place) == sizeof value);
        CHECK(pread(crowd_fd, &found, sizeof found, place) == sizeof found && found == value);
        if (who == 0) CHECK(fallocate(crowd_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, 8 * PAGE) == 0);
        CHECK(pread(crowd_fd, &found, sizeof found, (off_t)((1 + who % 8) * PAGE)) == sizeof found);
    }
    return NULL;
}

static void crowd(const char *path) {
    pthread_t threads[CROWD];
    pthread_attr_t small;
    crowd_fd = fresh(path, 16 * PAGE);
    CHECK(pthread_barrier_init(&crowd_begins, NULL, CROWD) == 0);
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 256 << 10) == 0);
    for (uintptr_t i = 0; i < CROWD; i++) CHECK(pthread_create(&threads[i], &small, one_of_many, (void *)i) == 0);
    for (int i = 0; i < CROWD; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

// Of two appends the second is made first: what is between it and the end is zero for a moment, whatever a
// mapping stored there.
static void overtaken(const char *path) {
    enum { TIMES = 2000, RECORD = 60, START = 20 * PAGE + 8 };
    int fd = fresh(path, START);
    unsigned char *map = mmap(NULL, START + TIMES * 2 * RECORD, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    unsigned char bytes[2 * RECORD];
    struct rusage before, after;
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    for (int i = 0; i < TIMES; i++) {
        size_t end = START + (size_t)i * 2 * RECORD, second = end + RECORD;
        // In the last page; in what is behind it, stores are SIGBUS.
        size_t rest = PAGE - end % PAGE;
        if (rest < PAGE) memset(map + end, 200, rest < RECORD / 2 ? rest : RECORD / 2);
        fill(bytes, end, sizeof bytes);
        CHECK(pwrite(fd, bytes + RECORD, RECORD, (off_t)second) == RECORD);
        must_be(map + second, second, RECORD);
        for (size_t at = end; at < second; at++) CHECK(map[at] == 0);
        CHECK(pwrite(fd, bytes, RECORD, (off_t)end) == RECORD);
        must_be(map + end, end, sizeof bytes);
    }
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    // Each message has the process wait. Some are needed for each further page.
    long waits = after.ru_nvcsw - before.ru_nvcsw;
    if (waits > TIMES / 2) fprintf(stderr, "waited %ld times\n", waits), _exit(1);
    must_be(map, 0, START + TIMES * 2 * RECORD);
}

// Appends and stores over each through a mapping, while others look at the end of the file.
static void owned(const char *path) {
    enum { START = 5000, RECORD = 40, TIMES = 60000, READERS = 2 };
    pid_t readers[READERS];
    int fd = fresh(path, START), end = open(path, O_RDWR | O_APPEND);
    unsigned char *map = mmap(NULL, START + TIMES * RECORD, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && end >= 0 && map[0] == pattern(0));
    for (int i = 0; i < READERS; i++)
        if ((readers[i] = fork()) == 0)
            for (int own = open(path, O_RDONLY);;) {
                struct stat st;
                char bytes[64];
                if (fstat(own, &st) != 0 || pread(own, bytes, sizeof bytes, st.st_size - 20) < 0) _exit(1);
            }
    unsigned char record[RECORD];
    memset(record, 255, RECORD);
    for (size_t at = START; at < START + TIMES * RECORD; at += RECORD) {
        CHECK(write(end, record, RECORD) == RECORD);
        fill(map + at, at, RECORD);
    }
    for (int i = 0; i < READERS; i++) CHECK(kill(readers[i], SIGKILL) == 0 && wait(NULL) > 0);
    must_be(map, 0, START + TIMES * RECORD);
}

// A thread's own dice, of which the upper bits are the better ones.
static void throw(uint64_t *dice) { *dice = *dice * 6364136223846793005ull + 1; }

static const volatile unsigned char *shared_map;
static atomic_int is_over;

static void *look_around(void *argument) {
    uint64_t mine = (uintptr_t)argument;
    while (!is_over) {
        throw(&mine);
        size_t at = mine >> 33 & 0x7fffff;
        CHECK(shared_map[at] == pattern(at));
    }
    return NULL;
}

static void again(const char *path) {
    enum { BYTES = 8 << 20, PART = 32 * PAGE, TIMES = 3000, THREADS = 3 };
    int fd = fresh(path, BYTES);
    unsigned char *map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pthread_t threads[THREADS];
    CHECK(map != MAP_FAILED);
    shared_map = map;
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, look_around, (void *)(i + 1)) == 0);
    for (int i = 0; i < TIMES; i++) {
        off_t from = (off_t)any((BYTES - PART) / PAGE) * PAGE;
        CHECK(mmap(map + from, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, from) == map + from);
    }
    is_over = 1;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

enum { OVER_PAGES = 256, OVER_BYTES = 8 << 20, OVER_TIMES = 4000, OVER_ADDERS = 3 };
static unsigned char *room;
static int over_file;

static void *add_there(void *argument) {
    uintptr_t which = (uintptr_t)argument, added = 0;
    uint64_t mine = which + 1;
    for (; !is_over; added++) {
        throw(&mine);
        atomic_fetch_add((_Atomic uint64_t *)(room + (mine >> 33) % OVER_PAGES * PAGE + 8 * which), 1);
    }
    return (void *)added;
}

static void *map_over(void *argument) {
    uint64_t mine = (uintptr_t)argument;
    for (int i = 0; i < OVER_TIMES; i++) {
        throw(&mine);
        size_t first = (mine >> 33) % OVER_PAGES, pages = 1 + (mine >> 45) % (OVER_PAGES - first);
        off_t from = (off_t)((mine >> 20) % (OVER_BYTES / PAGE - pages)) * PAGE;
        void *at = room + first * PAGE;
        int is_moved = i % 4 == 0, where = is_moved ? 0 : MAP_FIXED;
        unsigned char *made = mmap(is_moved ? NULL : at, pages * PAGE, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | where, over_file, from);
        CHECK(made != MAP_FAILED);
        if (is_moved) {
            if (i % 8 == 0) atomic_fetch_add((_Atomic uint64_t *)made, 0);
            made = mremap(made, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at);
        }
        CHECK(made == at);
    }
    return NULL;
}

// What was added is in the file, wherever in it the room was just then.
static void over(const char *path) {
    pthread_t mappers[2], adders[OVER_ADDERS];
    over_file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(over_file >= 0 && ftruncate(over_file, OVER_BYTES) == 0);
    room = mmap(NULL, OVER_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, over_file, 0);
    CHECK(room != MAP_FAILED);
    for (uintptr_t i = 0; i < OVER_ADDERS; i++) CHECK(pthread_create(&adders[i], NULL, add_there, (void *)i) == 0);
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&mappers[i], NULL, map_over, (void *)(i + 7)) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(mappers[i], NULL) == 0);
    is_over = 1;
    uint64_t numbers[PAGE / 8], found[OVER_ADDERS] = {0};
    void *added[OVER_ADDERS];
    for (int i = 0; i < OVER_ADDERS; i++) CHECK(pthread_join(adders[i], &added[i]) == 0);
    for (off_t at = 0; at < OVER_BYTES; at += PAGE) {
        CHECK(pread(over_file, numbers, PAGE, at) == PAGE);
        for (int i = 0; i < OVER_ADDERS; i++) found[i] += numbers[i];
    }
    for (int i = 0; i < OVER_ADDERS; i++) CHECK(found[i] == (uintptr_t)added[i]);
}

enum { TURN_THREADS = 8, TURN_PAGES = 64, TURN_SHOWN = 16, TURN_TIMES = 300 };

struct own_part {
    int file;
    off_t from;
    uint64_t counted[TURN_PAGES];
};

static unsigned char *show(const struct own_part *part, unsigned char *at, size_t page, size_t pages) {
    int flags = MAP_SHARED | (at ? MAP_FIXED : 0);
    off_t offset = part->from + (off_t)page * PAGE;
    unsigned char *made = mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags, part->file, offset);
    CHECK(made != MAP_FAILED);
    return made;
}

// Its own mapping, of its own part of the file: what is counted in a page is what was counted there before.
static void *change_places(void *argument) {
    struct own_part *part = argument;
    uint64_t mine = (uint64_t)part->from + 1;
    size_t page = 0, pages = TURN_SHOWN;
    unsigned char *at = show(part, NULL, page, pages);
    for (int i = 0; i < TURN_TIMES; i++) {
        throw(&mine);
        size_t whole = pages * PAGE;
        switch (mine >> 33 & 3) {
        case 0: // Something else at its place.
            page = (mine >> 40) % (TURN_PAGES - 2 * TURN_SHOWN);
            CHECK(show(part, at, page, pages) == at);
            break;
        case 1: // Longer, perhaps elsewhere; and as it was.
            CHECK((at = mremap(at, whole, 2 * whole, MREMAP_MAYMOVE)) != MAP_FAILED);
            for (size_t other = pages; other < 2 * pages; other++)
                CHECK(*(uint64_t *)(at + other * PAGE) == part->counted[page + other]);
            CHECK(munmap(at + whole, whole) == 0);
            break;
        case 2: { // Elsewhere, and no longer where it was.
            unsigned char *left = at;
            CHECK((at = mremap(left, whole, whole, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL)) != MAP_FAILED);
            CHECK(munmap(left, whole) == 0);
            break;
        }
        default: // Anew.
            CHECK(munmap(at, whole) == 0);
            at = show(part, NULL, page, pages);
        }
        for (size_t shown = 0; shown < pages; shown++) {
            uint64_t *cell = (uint64_t *)(at + shown * PAGE);
            CHECK(*cell == part->counted[page + shown]);
            part->counted[page + shown] = ++*cell;
        }
    }
    CHECK(munmap(at, pages * PAGE) == 0);
    return NULL;
}

static void take_places(const char *path) {
    enum { BYTES = TURN_THREADS * TURN_PAGES * PAGE };
    static struct own_part parts[TURN_THREADS];
    pthread_t threads[TURN_THREADS];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
    for (int i = 0; i < TURN_THREADS; i++) {
        parts[i].file = fd, parts[i].from = (off_t)i * TURN_PAGES * PAGE;
        CHECK(pthread_create(&threads[i], NULL, change_places, &parts[i]) == 0);
    }
    for (int i = 0; i < TURN_THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < TURN_THREADS; i++)
        for (int page = 0; page < TURN_PAGES; page++) {
            uint64_t cell;
            CHECK(pread(fd, &cell, sizeof cell, parts[i].from + (off_t)page * PAGE) == sizeof cell);
            CHECK(cell == parts[i].counted[page]);
        }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    if (!strcmp(argv[1], "peek") && argc > 3) return peek(argv[2], strtoull(argv[3], NULL, 10)), 0;
    if (!strcmp(argv[1], "grow")) grow(argv[2]);
    else if (!strcmp(argv[1], "append")) append(argv[2]);
    else if (!strcmp(argv[1], "mixed") && argc > 3) mixed(argv[2], strtoull(argv[3], NULL, 10));
    else if (!strcmp(argv[1], "count") && argc > 3) count(argv[2], atoi(argv[3]));
    else if (!strcmp(argv[1], "behind")) behind(argv[2]);
    else if (!strcmp(argv[1], "gives")) gives(argv[2]);
    else if (!strcmp(argv[1], "given")) return given(argv[2]), 0;
    else if (!strcmp(argv[1], "guards") && argc > 3) guards(argv[2], atoi(argv[3]));
    else if (!strcmp(argv[1], "guarded")) return guarded(argv[2]), 0;
    else if (!strcmp(argv[1], "waits")) waits(argv[2]);
    else if (!strcmp(argv[1], "hands")) hands(argv[2]);
    else if (!strcmp(argv[1], "handed") && argc > 5) handed(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    else if (!strcmp(argv[1], "holes")) holes(argv[2]);
    else if (!strcmp(argv[1], "bare")) return bare(argv[2]), 0;
    else if (!strcmp(argv[1], "beside") && argc > 3) state = 7, beside(argv[2], !strcmp(argv[3], "stores"));
    else if (!strcmp(argv[1], "untold")) untold(argv[2]);
    else if (!strcmp(argv[1], "writes-untold")) return writes_untold(argv[2]), 0;
    else if (!strcmp(argv[1], "stamp")) return stamp(argv[2]), 0;
    else if (!strcmp(argv[1], "through") && argc > 3) through(argv[2], strtoull(argv[3], NULL, 10));
    else if (!strcmp(argv[1], "killed")) killed(argv[2]);
    else if (!strcmp(argv[1], "crowd")) crowd(argv[2]);
    else if (!strcmp(argv[1], "several")) several(argv[2]);
    else if (!strcmp(argv[1], "flags")) flags(argv[2]);
    else if (!strcmp(argv[1], "reused")) reused(argv[2]);
    else if (!strcmp(argv[1], "counter")) counter(argv[2]);
    else if (!strcmp(argv[1], "locks")) locks(argv[2]);
    else if (!strcmp(argv[1], "short")) short_ones(argv[2]);
    else if (!strcmp(argv[1], "seen")) seen(argv[2]);
    else if (!strcmp(argv[1], "cells")) cells(argv[2]);
    else if (!strcmp(argv[1], "becomes")) becomes(argv[2]);
    else if (!strcmp(argv[1], "lines") && argc > 3) lines(argv[2], argv[3]);
    else if (!strcmp(argv[1], "adds") && argc > 3) return adds(argv[2], atoi(argv[3])), 0;
    else if (!strcmp(argv[1], "overtaken")) overtaken(argv[2]);
    else if (!strcmp(argv[1], "owned")) owned(argv[2]);
    else if (!strcmp(argv[1], "again")) state = 9, again(argv[2]);
    else if (!strcmp(argv[1], "over")) state = 9, over(argv[2]);
    else if (!strcmp(argv[1], "places")) take_places(argv[2]);
    else if (!strcmp(argv[1], "offset")) offset(argv[2]);
    else if (!strcmp(argv[1], "image")) image(argv[2]);
    else if (!strcmp(argv[1], "after")) return after(argv[2]), 0;
    else return 2;
    printf("%s ok\n", argv[1]);
    return 0;
}
