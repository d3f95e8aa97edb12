// Begins as root under `pagekeeper run`, becomes nobody, and tries to get at what nobody may not:
// files that it may only read, and files that it may not even read. It speaks to the manager by
// itself and makes its system calls past the preload library.
//
//     attack PUBLIC
//
// Prints what it got away with; "held" if nothing.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int broken;
#define MUST_FAIL(x)                                                                               \
    do {                                                                                           \
        errno = 0;                                                                                 \
        if ((long)(x) != -1) printf("%d: %s worked\n", __LINE__, #x), broken = 1;                  \
    } while (0)
#define MUST(x)                                                                                    \
    do {                                                                                           \
        errno = 0;                                                                                 \
        if (!(x)) printf("%d: %s does not hold (errno %d)\n", __LINE__, #x, errno), broken = 1;    \
    } while (0)

// A system call that nobody interposes.
static long raw(long number, long a, long b, long c, long d, long e, long f) {
#if defined __x86_64__
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number, result __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(result)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
#endif
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}
static int raw_open(const char *path, int flags) {
    return (int)raw(SYS_openat, AT_FDCWD, (long)path, flags, 0, 0, 0);
}
static void *raw_mmap(size_t bytes, int prot, int flags, int fd) {
    return (void *)raw(SYS_mmap, 0, (long)bytes, prot, flags, fd, 0);
}
static int again(int fd, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return raw_open(path, flags);
}

// ---- the protocol (crates/wire) -----------------------------------------------------------------

enum { HELLO = 1, OPENED = 4, MAP_PREPARE = 6, READ = 11, CHANGE_BEGIN = 12, CHANGE_END = 13,
       OVERWRITES = 25, FRAMES = 26 };
struct request { uint32_t op, zero; uint64_t a, b, c, d, e, f; };
struct reply { int32_t status; uint32_t zero; uint64_t r0, r1, r2, r3; };
static int channel;

static struct reply ask(struct request q, int send, int *came) {
    struct iovec iov = {&q, sizeof q};
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr head; } control = {0};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (send >= 0) {
        message.msg_control = &control, message.msg_controllen = CMSG_SPACE(sizeof(int));
        control.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &send, sizeof send);
    }
    struct reply reply = {.status = -1000};
    if (raw(SYS_sendmsg, channel, (long)&message, MSG_NOSIGNAL, 0, 0, 0) < 0) return reply;
    iov = (struct iovec){&reply, sizeof reply};
    memset(&control, 0, sizeof control);
    message.msg_control = &control, message.msg_controllen = sizeof control;
    raw(SYS_recvmsg, channel, (long)&message, 0, 0, 0, 0);
    if (came) {
        *came = -1;
        if (message.msg_controllen >= CMSG_LEN(sizeof(int))) memcpy(came, CMSG_DATA(&control.head), sizeof(int));
    }
    return reply;
}

static void greet(void) {
    char *text = getenv("PAGEKEEPER_SOCKET"), *colon = strchr(text, ':');
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = (size_t)(colon - text);
    memcpy(address.sun_path + 1, text, bytes);
    channel = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    MUST(raw(SYS_connect, channel, (long)&address, (long)(sizeof(sa_family_t) + 1 + bytes), 0, 0, 0) == 0);
    char half[17] = {0};
    struct request hello = {.op = HELLO, .a = WIRE_VERSION, .d = (uint64_t)getpid()};
    hello.b = strtoull(memcpy(half, colon + 1, 16), NULL, 16);
    hello.c = strtoull(memcpy(half, colon + 17, 16), NULL, 16);
    int flags;
    struct reply reply = ask(hello, -1, &flags);
    MUST(reply.status == 0 && flags >= 0);
    // The table that says which files are managed.
    MUST_FAIL(again(flags, O_RDWR));
    MUST_FAIL(raw_mmap(4096, PROT_READ | PROT_WRITE, MAP_SHARED, flags));
    MUST_FAIL(raw(SYS_ftruncate, flags, 0, 0, 0, 0, 0));
    void *at = raw_mmap(4096, PROT_READ, MAP_SHARED, flags);
    MUST_FAIL(raw(SYS_mprotect, (long)at, 4096, PROT_READ | PROT_WRITE, 0, 0, 0));
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    // As root: a mapping that is managed.
    int fd = open(argv[1], O_RDONLY);
    volatile char *at = mmap(NULL, 16 * 4096, PROT_READ, MAP_SHARED, fd, 0);
    MUST(at != MAP_FAILED && at[0] == 'p' && at[5 * 4096] == 'p');

    MUST(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    // So that /proc/self can be used, as after an exec.
    MUST(prctl(PR_SET_DUMPABLE, 1) == 0);
    MUST_FAIL(raw_open(argv[1], O_RDWR));
    MUST(at[9 * 4096] == 'p');

    // The mapping itself: write access that the library refuses, taken past it.
    MUST_FAIL(mprotect((void *)at, 4096, PROT_READ | PROT_WRITE));
    char path[100];
    snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (long)at, (long)at + 16 * 4096);
    MUST_FAIL(raw_open(path, O_RDWR));
    if (raw(SYS_mprotect, (long)at, 16 * 4096, PROT_READ | PROT_WRITE, 0, 0, 0) == 0) {
        // It may get a copy of its own, which nobody else sees.
        for (int i = 0; i < 16; i++) at[i * 4096 + 1] = 'X';
        MUST(raw(SYS_msync, (long)at, 16 * 4096, MS_SYNC, 0, 0, 0) == 0 || errno == EINVAL);
        raw(SYS_madvise, (long)at, 4096, MADV_REMOVE, 0, 0, 0);
    }
    char c = 0;
    int look = raw_open(argv[1], O_RDONLY);
    MUST(raw(SYS_pread64, look, (long)&c, 1, 4096 + 1, 0, 0) == 1 && c == 'p');

    // The manager.
    greet();
    struct reply reply = ask((struct request){.op = OPENED, .a = O_RDWR}, look, NULL);
    MUST(reply.status == 0 && reply.r0 > 0);
    uint64_t slot = reply.r0 - 1;
    // A read that comes with the opening is of what the descriptor may read.
    char few[8] = {0};
    struct request reads = {.op = OPENED, .d = 5, .e = (uint64_t)few};
    reply = ask(reads, raw_open(argv[1], O_PATH), NULL);
    MUST(reply.r0 == slot + 1 && reply.r2 == 0 && !few[0]);
    reply = ask(reads, look, NULL);
    MUST(reply.r0 == slot + 1 && reply.r2 == 6 && !memcmp(few, "ppppp", 5));
    // What would let it write without asking.
    int memfd;
    reply = ask((struct request){.op = OVERWRITES}, -1, &memfd);
    MUST(reply.status == 0 && reply.r0 > 0 && reply.r1 == 0 && memfd >= 0);
    MUST_FAIL(again(memfd, O_RDWR));
    MUST_FAIL(raw_mmap(4096, PROT_READ | PROT_WRITE, MAP_SHARED, memfd));
    MUST_FAIL(raw(SYS_ftruncate, memfd, 0, 0, 0, 0, 0));
    reply = ask((struct request){.op = FRAMES, .a = slot}, -1, &memfd);
    MUST(reply.status < 0 && memfd < 0);
    // An overwrite that it does not hold.
    reply = ask((struct request){.op = CHANGE_END, .a = slot, .d = 4096}, -1, NULL);
    MUST(reply.status < 0);
    struct request prepare = {.op = MAP_PREPARE, .a = slot, .c = 16 * 4096, .d = PROT_READ | PROT_WRITE, .e = MAP_SHARED, .f = O_RDWR};
    reply = ask(prepare, look, &memfd);
    MUST(reply.status == 0 && memfd >= 0);
    if (memfd >= 0) {
        MUST(reply.r1 == MAP_PRIVATE);
        MUST((raw(SYS_fcntl, memfd, F_GETFL, 0, 0, 0, 0) & O_ACCMODE) == O_RDONLY);
        MUST_FAIL(again(memfd, O_RDWR));
        MUST_FAIL(again(memfd, O_WRONLY));
        MUST_FAIL(raw_mmap(4096, PROT_READ | PROT_WRITE, MAP_SHARED, memfd));
        MUST_FAIL(raw(SYS_fchmod, memfd, 0666, 0, 0, 0, 0));
        MUST_FAIL(raw(SYS_ftruncate, memfd, 0, 0, 0, 0, 0));
        MUST_FAIL(raw(SYS_write, memfd, (long)"x", 1, 0, 0, 0));
        MUST_FAIL(raw(SYS_fallocate, memfd, 3, 0, 4096, 0, 0));
        MUST_FAIL(raw(SYS_fcntl, memfd, F_ADD_SEALS, F_SEAL_WRITE, 0, 0, 0));
        void *m = raw_mmap(16 * 4096, PROT_READ, MAP_SHARED, memfd);
        if (m != (void *)-1) {
            MUST_FAIL(raw(SYS_mprotect, (long)m, 4096, PROT_READ | PROT_WRITE, 0, 0, 0));
            // Reading what is not there plants zeros in the frames; nobody may come to see them.
            for (int i = 0; i < 16; i++) c += ((volatile char *)m)[i * 4096];
        }
    }
    // Without a descriptor, with one of another file, with only one that reads.
    char *room = calloc(1, 65536);
    for (uint64_t other = 0; other < 40; other++) {
        if (other == slot) continue;
        struct request read = {.op = READ, .a = other, .c = 65536, .d = (uint64_t)room};
        MUST(ask(read, -1, NULL).status < 0);
        prepare.a = other;
        reply = ask(prepare, look, &memfd);
        MUST(memfd < 0);
        reply = ask(prepare, -1, &memfd);
        MUST(memfd < 0);
        for (int kind = 0; kind < 3; kind++) {
            struct request begin = {.op = CHANGE_BEGIN, .a = other, .c = 4096, .e = (uint64_t)kind};
            MUST(ask(begin, -1, NULL).status < 0);
        }
    }
    MUST(!memchr(room, 's', 65536));
    strcpy(room, "evil");
    for (int kind = 0; kind < 3; kind++) {
        struct request begin = {.op = CHANGE_BEGIN, .a = slot, .c = 4096, .e = (uint64_t)kind};
        MUST(ask(begin, -1, NULL).status < 0);
    }
    for (uint64_t ticket = 0; ticket < 20; ticket++)
        for (uint64_t file = 0; file < 5; file++)
            ask((struct request){.op = CHANGE_END, .a = file, .b = ticket, .c = 0, .d = 4, .e = (uint64_t)room}, -1, NULL);
    struct request read = {.op = READ, .a = slot, .c = 5, .d = (uint64_t)room};
    MUST(ask(read, -1, NULL).r0 == 5 && !memcmp(room, "ppppp", 5));
    puts(broken ? "broken" : "held");
    return broken;
}
