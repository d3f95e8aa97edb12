// What is stored through mappings, and others than the program's own calls.
#define _GNU_SOURCE
#ifdef STARTS
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

static void *replace(void *unused) {
    void *at = mmap(0, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = open("file", O_RDWR);
    if (mmap(at, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != at) abort();
    return unused;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, replace, 0) || pthread_join(thread, 0)) abort();
}
const char *get(void) { return "started"; }
#elif defined BESIDE
#include <dlfcn.h>
#include <sys/types.h>

// A library that is preloaded, too, and finds what is behind it by libc's handle.
ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    static ssize_t (*behind)(int, void *, size_t, off_t);
    if (!behind) behind = dlsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "pread");
    return behind(fd, to, bytes, at);
}
#elif defined WRAPS
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

// A library behind the manager's that makes one call of another.
int munmap(void *at, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    return mmap(at, bytes, PROT_NONE, flags, -1, 0) == at ? (int)syscall(SYS_munmap, at, bytes) : -1;
}

void *mremap(void *old, size_t old_bytes, size_t new_bytes, int flags, ...) {
    (void)flags;
    void *at = mmap(0, new_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return at;
    memcpy(at, old, old_bytes < new_bytes ? old_bytes : new_bytes);
    munmap(old, old_bytes);
    return at;
}
#elif defined LIBRARY
const char marker[64] = "MARKER-OLD";
const char *get(void) { return marker; }
#else
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int right, const char *what) {
    if (right) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static char *map(const char *name, size_t *bytes) {
    struct stat stat;
    int fd = open(name, O_RDWR);
    check(fd >= 0 && !fstat(fd, &stat), name);
    *bytes = stat.st_size;
    char *at = mmap(0, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(at != MAP_FAILED, "mmap");
    close(fd);
    return at;
}

// A library is changed through a mapping and loaded: by another name, or in another namespace.
static void load(const char *name, int apart) {
    size_t bytes;
    char *at = map(name, &bytes);
    char *marker = memmem(at, bytes, "MARKER-OLD", 10);
    check(marker != 0, "the marker");
    memcpy(marker, "MARKER-NEW", 10);
    check(!munmap(at, bytes), "munmap");
    void *library = apart ? dlmopen(LM_ID_NEWLM, name, RTLD_NOW) : dlopen(name, RTLD_NOW);
    if (!library) printf("%s\n", dlerror()), exit(1);
    const char *(*get)(void) = dlsym(library, "get");
    puts(get());
}

// A library's constructor waits for a thread that maps a file over something.
static void load_what_starts(const char *name) {
    void *library = dlopen(name, RTLD_NOW);
    if (!library) printf("%s\n", dlerror()), exit(1);
    const char *(*get)(void) = dlsym(library, "get");
    puts(get());
}

// A forked child, which has done nothing before, loads what its parent changed.
static void load_in_child(const char *name) {
    size_t bytes;
    char *at = map(name, &bytes);
    char *marker = memmem(at, bytes, "MARKER-OLD", 10);
    check(marker != 0, "the marker");
    memcpy(marker, "MARKER-NEW", 10);
    pid_t child = fork();
    if (child == 0) {
        void *library = dlopen(name, RTLD_NOW);
        if (!library) printf("%s\n", dlerror()), exit(1);
        const char *(*get)(void) = dlsym(library, "get");
        puts(get()), exit(0);
    }
    int status;
    check(waitpid(child, &status, 0) == child && !status, "the child");
}

// What loads nothing writes nothing back, by which the file would be younger.
static void load_nothing(const char *name) {
    size_t bytes;
    struct stat before, after;
    struct timespec then[2] = {{1000}, {1000}};
    char *at = map(name, &bytes);
    check(!utimensat(AT_FDCWD, name, then, 0) && !stat(name, &before), "utimensat");
    at[bytes - 1] ^= 1;
    check(dlopen(NULL, RTLD_NOW) && dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "dlopen");
    check(!dlopen("./none.so", RTLD_NOW | RTLD_NOLOAD), "what is not there");
    check(!stat(name, &after) && after.st_mtime == before.st_mtime, "not written back");
    check(!dlopen("./none.so", RTLD_NOW), "what is not there");
    check(!stat(name, &after), "stat");
    puts(after.st_mtime == before.st_mtime ? "not written back" : "MARKER-NEW");
}

// Pages of a file in another order: none of what is stored may be lost.
static void remap(const char *name, int by_number) {
    size_t bytes;
    char *at = map(name, &bytes), *other = map(name, &bytes);
    at[0] = 'x';
    int done = by_number ? syscall(SYS_remap_file_pages, at, 4 * 4096, 0, 100, 0)
                         : remap_file_pages(at, 4 * 4096, 0, 100, 0);
    int first = done ? 0 : 100;
    for (int i = 0; i < 4; i++) {
        check(at[i * 4096] == (first + i ? 'a' + (first + i) % 26 : 'x'), "content");
        at[i * 4096 + 1] = 's';
        check(other[(first + i) * 4096 + 1] == 's', "a store");
    }
    printf("%s\n", done ? strerror(errno) : "ok");
}

// What a child in another process namespace does: it has a number there that belongs to another process
// outside. What it inherited is as its parent left it, and it maps more.
static void in_child(char *inherited, const char *name, int depth) {
    size_t bytes;
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child) {
        int status;
        check(waitpid(child, &status, 0) == child && !status, "the child");
        return;
    }
    check(getpid() == 1 + depth, "a namespace of its own");
    for (int i = 0; i < 512; i++) check(inherited[i * 4096] == (i ? 'a' + i % 26 : 'a' + depth), "inherited");
    char *other = map(name, &bytes);
    for (int i = 0; i < 512; i++) check(other[i * 4096] == (i ? 'a' + i % 26 : 'a' + depth), "its own");
    inherited[0] = 'b' + depth;
    other[0] = 'b' + depth;
    if (depth < 2) in_child(inherited, name, depth + 1);
    exit(0);
}

static void apart(const char *name, const char *other) {
    size_t bytes;
    char *at = map(name, &bytes);
    check(at[4096] == 'b', "content");
    if (unshare(CLONE_NEWPID)) printf("none\n"), exit(0);
    in_child(at, other, 0);
    check(at[0] == 'd', "stores");
    printf("ok\n");
}

static void protect(const char *what, char *at, size_t bytes) {
    int refused = mprotect(at, bytes, PROT_READ | PROT_WRITE);
    printf("%s: %s\n", what, refused ? strerror(errno) : "ok");
    // Stores to copies of one's own; nothing else may be stored to.
    for (size_t i = 0; !refused && i < bytes; i += 4096) at[i] = 'Z';
}

// A mapping of a descriptor to read only may become writable if it is private, and all that comes of it: what
// it grows by, and what a move leaves behind.
static void rights(const char *name, int is_shared, int has_writer) {
    enum { PART = 64 * 4096 };
    struct stat stat;
    size_t bytes;
    if (has_writer) map(name, &bytes)[0] = 'a';
    int fd = open(name, O_RDONLY), kind = is_shared ? MAP_SHARED : MAP_PRIVATE;
    check(fd >= 0 && !fstat(fd, &stat), name);
    char *parts[5], *room = malloc(stat.st_size);
    for (int i = 0; i < 3; i++) {
        parts[i] = mmap(0, PART, PROT_READ, kind, fd, 0);
        check(parts[i] != MAP_FAILED && parts[i][4096] == 'b', "mmap");
    }
    check((parts[0] = mremap(parts[0], PART, 2 * PART, MREMAP_MAYMOVE)) != MAP_FAILED, "mremap");
    protect("what it grew by", parts[0] + PART, PART);
    check((parts[1] = mremap(parts[1], PART, 2 * PART, MREMAP_MAYMOVE)) != MAP_FAILED, "mremap");
    // Another way to it, and a touch before it is asked for.
    check(parts[1][PART] == 'a' + PART / 4096 % 26, "content");
    protect("all that grew", parts[1], 2 * PART);
    int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    check((parts[3] = mremap(parts[2], PART, PART, flags, NULL)) != MAP_FAILED, "mremap");
    protect("what was left behind", parts[2], PART);
    protect("what moved", parts[3], PART);
    parts[4] = (char *)syscall(SYS_mremap, parts[3], PART, PART, flags, 0);
    check(parts[4] != MAP_FAILED, "mremap");
    check(parts[3][4096] == 'b', "what is left behind is as the file");
    protect("what was left behind again", parts[3], PART);
    // Everything leaves meanwhile.
    for (int i = 0; i < 2; i++) check(pread(fd, room, stat.st_size, 0) == stat.st_size, "pread");
    for (int i = 0; i < stat.st_size; i++) check(room[i] == 'a' + i / 4096 % 26, "the file");
    for (int i = 1; i < 5; i++)
        for (int page = 0; page < 64; page++)
            check(parts[i][page * 4096] == (is_shared ? 'a' + page % 26 : 'Z') &&
                      parts[i][page * 4096 + 1] == 'a' + page % 26,
                  "a part");
}

// Functions that are looked up in libc by its handle are those that the program is linked with.
static void by_handle(const char *name) {
    size_t bytes;
    char *at = map(name, &bytes), byte;
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    dlerror();
    ssize_t (*write_at)(int, const void *, size_t, off_t) = dlsym(libc, "pwrite");
    ssize_t (*read_at)(int, void *, size_t, off_t) = dlsym(libc, "pread64");
    int (*compare)(const void *, const void *, size_t) = dlsym(libc, "memcmp");
    int *(*errno_of)(void) = dlsym(libc, "__errno_location");
    check(!dlerror() && write_at && read_at && compare && errno_of, "dlsym");
    check(!compare("a", "a", 1) && errno_of() == &errno, "libc's own");
    check(!dlsym(libc, "no such function") && dlerror() && !dlerror(), "what is not there");
    check(dlsym(RTLD_DEFAULT, "pread") == (void *)pread && dlsym(RTLD_NEXT, "pread"), "without a handle");
    check(!dlsym(dlopen(NULL, RTLD_NOW), "no such function") && dlerror(), "what is nowhere");
    int fd = open(name, O_RDWR);
    check(fd >= 0, name);
    for (int i = 0; i < 2000; i++) {
        off_t place = (off_t)(i * 4099L % (long)bytes);
        at[place] = (char)(i | 1);
        check(read_at(fd, &byte, 1, place) == 1 && byte == (char)(i | 1), "what was stored");
        byte = (char)(i + 2);
        check(write_at(fd, &byte, 1, place) == 1 && at[place] == byte, "what was written");
        byte = 0;
        check(pread(fd, &byte, 1, place) == 1 && byte == (char)(i + 2), "what is read");
    }
    puts("by handle");
}

static void *wait_for_ever(void *unused) {
    for (;;) pause();
    return unused;
}

static void begin_a_thread(void) {
    pthread_t thread;
    check(!pthread_create(&thread, 0, wait_for_ever, 0), "pthread_create");
}

// A file is mapped into a hole, as rings are made of two mappings side by side.
static void ring(const char *name) {
    begin_a_thread();
    int fd = open(name, O_RDWR);
    check(fd >= 0, name);
    for (size_t bytes = 4096; bytes <= 16 << 20; bytes *= 2)
        for (int with_more = 0; with_more < 2; with_more++) {
            // Bits that the kernel does not know it ignores.
            int prot = PROT_READ | PROT_WRITE | (with_more ? PROT_GROWSDOWN | 0x100 : 0);
            check(!ftruncate(fd, (off_t)bytes), "ftruncate");
            char *hole = mmap(0, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            check(hole != MAP_FAILED && !munmap(hole, 2 * bytes), "a hole");
            for (int half = 0; half < 2; half++) {
                char *at = mmap(hole + half * bytes, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0);
                check(at == hole + half * bytes, "mmap");
            }
            hole[bytes - 1] = 'r';
            check(hole[2 * bytes - 1] == 'r', "the other half");
            check(!munmap(hole, 2 * bytes), "munmap");
            // Nothing is left of what was put in the way.
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            check(mmap(hole, 2 * bytes, PROT_NONE, flags, -1, 0) == hole, "the hole again");
            check(!munmap(hole, 2 * bytes), "munmap");
        }
    puts("a ring");
}

enum { PART_PAGES = 16, PART_BYTES = PART_PAGES * 4096 };

static char *map_part(int fd) {
    char *at = mmap(0, PART_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(at != MAP_FAILED, "mmap");
    return at;
}

static char *volatile part; // Where the file is mapped, or was.
static volatile int is_over;

static void *map_and_unmap(void *fd) {
    while (!is_over) {
        char *at = map_part((int)(long)fd);
        at[5] = 'w';
        part = at;
        check(!munmap(at, PART_BYTES), "munmap");
    }
    return 0;
}

static ssize_t write_by_mapping(void *fd, const char *bytes, size_t count) {
    static long calls;
    char *at = map_part(*(int *)fd), *to;
    at[5] = bytes[0];
    part = at;
    if (++calls % 4 == 0) {
        to = mremap(at, PART_BYTES, 2 * PART_BYTES, MREMAP_MAYMOVE);
        check(to != MAP_FAILED && !munmap(to + PART_BYTES, PART_BYTES), "mremap");
        part = at = to;
    }
    return munmap(at, PART_BYTES) ? -1 : (ssize_t)count;
}

// The same in a stream's function, which libc calls with its list of streams locked.
static void *flush_and_unmap(void *fd) {
    int file = (int)(long)fd;
    FILE *stream = fopencookie(&file, "w", (cookie_io_functions_t){.write = write_by_mapping});
    check(stream != 0, "fopencookie");
    while (!is_over) check(fputs("x", stream) >= 0 && !fflush(NULL), "fflush");
    check(!fclose(stream), "fclose");
    return 0;
}

static void *move_about(void *fd) {
    char *at = map_part((int)(long)fd);
    char *room = mmap(0, 64 * PART_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; !is_over; i++) {
        char *to = room + i % 64 * PART_BYTES;
        check(mremap(at, PART_BYTES, PART_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
        part = at = to;
    }
    return 0;
}

static void wrapped(const char *name) {
    int fd = open(name, O_RDWR);
    pthread_t thread;
    check(fd >= 0 && !pthread_create(&thread, 0, map_and_unmap, (void *)(long)fd), name);
    for (int i = 0; i < 300; i++) {
        char *at = map_part(fd);
        at[6] = 'w';
        at = mremap(at, PART_BYTES, 2 * PART_BYTES, MREMAP_MAYMOVE);
        check(at != MAP_FAILED && at[6] == 'w' && !munmap(at, 2 * PART_BYTES), "mremap");
    }
    is_over = 1;
    check(!pthread_join(thread, 0), "pthread_join");
    puts("wrapped");
}

static void end(int signal) {
    (void)signal;
    _exit(0); // It has not.
}

// Children, forked while another thread unmaps or moves what is mapped: one that has it has the file's bytes.
static void forks(const char *name, void *(*changes)(void *), int count) {
    int fd = open(name, O_RDWR);
    pthread_t thread;
    check(fd >= 0 && !pthread_create(&thread, 0, changes, (void *)(long)fd), name);
    while (!part) usleep(10);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        check(child >= 0, "fork");
        if (!child) {
            char *at = part;
            alarm(20);
            signal(SIGSEGV, end);
            for (int page = PART_PAGES; page--;)
                if (at[page * 4096] != 'a') _exit(2);
            _exit(0);
        }
        int status;
        check(waitpid(child, &status, 0) == child && !status, "the child");
    }
    is_over = 1;
    check(!pthread_join(thread, 0), "pthread_join");
    puts("forks");
}

int main(int count, char **argument) {
    check(count > 2, "arguments");
    if (!strcmp(argument[1], "dlopen")) load(argument[2], 0);
    if (!strcmp(argument[1], "dlmopen")) load(argument[2], 1);
    if (!strcmp(argument[1], "dlopen-child")) load_in_child(argument[2]);
    if (!strcmp(argument[1], "dlopen-nothing")) load_nothing(argument[2]);
    if (!strcmp(argument[1], "starts")) load_what_starts(argument[2]);
    if (!strcmp(argument[1], "handle")) by_handle(argument[2]);
    if (!strcmp(argument[1], "ring")) ring(argument[2]);
    if (!strcmp(argument[1], "wrapped")) wrapped(argument[2]);
    if (!strcmp(argument[1], "forks-unmap")) forks(argument[2], map_and_unmap, 400);
    if (!strcmp(argument[1], "forks-flush")) forks(argument[2], flush_and_unmap, 100);
    if (!strcmp(argument[1], "forks-move")) forks(argument[2], move_about, 400);
    if (!strcmp(argument[1], "remap")) remap(argument[2], 0);
    if (!strcmp(argument[1], "remap-number")) remap(argument[2], 1);
    if (!strcmp(argument[1], "rights"))
        rights(argument[2], !strcmp(argument[3], "shared"), !strcmp(argument[4], "writer"));
    if (!strcmp(argument[1], "apart")) apart(argument[2], argument[3]);
    return 0;
}
#endif
