// Makes, uses and deletes files, and keeps hold of deleted ones in every way there is.
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 16, BYTES = PAGES * PAGE };

static int make(const char *path, size_t bytes) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) err(1, "%s", path);
    if (ftruncate(fd, (off_t)bytes)) err(1, "ftruncate");
    return fd;
}

static unsigned char *map(int fd, size_t bytes) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) err(1, "mmap");
    return at;
}

static void store(unsigned char *at, size_t bytes, int mark) {
    for (size_t i = 0; i < bytes; i += PAGE) at[i] = at[i + PAGE - 1] = (unsigned char)(mark + i / PAGE);
}

static int holds(const unsigned char *at, size_t bytes, int mark) {
    for (size_t i = 0; i < bytes; i += PAGE)
        if (at[i] != (unsigned char)(mark + i / PAGE) || at[i + PAGE - 1] != at[i]) return 0;
    return 1;
}

static int reads(int fd, int mark) {
    static unsigned char bytes[BYTES];
    return pread(fd, bytes, BYTES, 0) == BYTES && holds(bytes, BYTES, mark);
}

// One file after the other: mapped, stored to, deleted. HOW: late (deleted when it is closed), early
// (deleted first), read (written, closed, and read through another descriptor).
static void churn(const char *directory, int files, size_t bytes, const char *how) {
    char path[4096];
    unsigned char *copy = malloc(bytes);
    for (int i = 0; i < files; i++) {
        snprintf(path, sizeof path, "%s/churn%d", directory, i);
        int fd = make(path, bytes);
        if (*how == 'r') {
            store(copy, bytes, i);
            if (pwrite(fd, copy, bytes, 0) != (ssize_t)bytes) err(1, "write %d", i);
            close(fd);
            fd = open(path, O_RDONLY);
            memset(copy, 0, bytes);
            for (int pass = 0; pass < 3; pass++)
                if (pread(fd, copy, bytes, 0) != (ssize_t)bytes || !holds(copy, bytes, i)) errx(1, "file %d", i);
            close(fd);
            if (unlink(path)) err(1, "unlink");
            continue;
        }
        if (*how == 'e' && unlink(path)) err(1, "unlink");
        unsigned char *at = map(fd, bytes);
        close(fd);
        store(at, bytes, i);
        if (!holds(at, bytes, i)) errx(1, "file %d", i);
        if (*how == 'l' && unlink(path)) err(1, "unlink");
        munmap(at, bytes);
    }
    free(copy);
}

static int descriptors(int pid) {
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *list = opendir(path);
    while (list && readdir(list)) count++;
    if (list) closedir(list);
    return count;
}

// The most descriptors that the manager, or a child of it other than this process, has.
static int most_descriptors(void) {
    char path[64], line[4096] = "";
    int most = descriptors(getppid());
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", getppid(), getppid());
    FILE *children = fopen(path, "r");
    if (children) {
        if (!fgets(line, sizeof line, children)) line[0] = 0;
        fclose(children);
    }
    for (char *next = strtok(line, " "); next; next = strtok(NULL, " ")) {
        int pid = atoi(next), count = pid == getpid() ? 0 : descriptors(pid);
        if (count > most) most = count;
    }
    return most;
}

static void send_descriptor(int socket, int fd) {
    char byte = 1, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(socket, &message, 0) != 1) err(1, "sendmsg");
}

static int receive_descriptor(int socket) {
    int fd;
    char byte, room[CMSG_SPACE(sizeof fd)];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(socket, &message, 0) != 1) err(1, "recvmsg");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static int reopened(int fd, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

static const char *place;

// Time, and other files, for the manager to take the file for unused.
static void meanwhile(void) {
    churn(place, 20, BYTES, "late");
    usleep(350000);
    churn(place, 20, BYTES, "read");
}

static void say(const char *way, int right) {
    printf("%s: %s\n", way, right ? "kept" : "LOST");
}

// The file is deleted and closed, but for what each way keeps of it.
static void keep(void) {
    char path[4096], other[4096];
    snprintf(path, sizeof path, "%s/kept", place);
    snprintf(other, sizeof other, "%s/other", place);
    int fd, kept, pair[2], status;
    unsigned char *at;
    pid_t child;
#define BEGIN(mark) (fd = make(path, BYTES), at = map(fd, BYTES), store(at, BYTES, mark))

    BEGIN(1);
    kept = dup(fd), unlink(path), munmap(at, BYTES), close(fd);
    meanwhile();
    say("a duplicate", reads(kept, 1));
    close(kept);

    BEGIN(2);
    unlink(path), close(fd);
    meanwhile();
    say("a mapping", holds(at, BYTES, 2));
    munmap(at, BYTES);

    BEGIN(3);
    unlink(path), munmap(at, BYTES);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) err(1, "socketpair");
    send_descriptor(pair[0], fd), close(fd);
    meanwhile();
    kept = receive_descriptor(pair[1]);
    say("a descriptor on its way", reads(kept, 3));
    close(kept), close(pair[0]), close(pair[1]);

    BEGIN(4);
    kept = open(path, O_PATH | O_CLOEXEC), unlink(path), munmap(at, BYTES), close(fd);
    meanwhile();
    fd = reopened(kept, O_RDONLY);
    say("a path", reads(fd, 4));
    close(fd), close(kept);

    BEGIN(5);
    if (link(path, other)) err(1, "link");
    unlink(path), munmap(at, BYTES), close(fd);
    meanwhile();
    fd = open(other, O_RDWR), unlink(other);
    meanwhile();
    say("another name", reads(fd, 5));
    close(fd);

    BEGIN(6);
    kept = make(other, BYTES), rename(other, path), munmap(at, BYTES);
    meanwhile();
    at = map(fd, BYTES), close(fd), close(kept);
    meanwhile();
    say("a file renamed over", holds(at, BYTES, 6));
    munmap(at, BYTES), unlink(path);

    BEGIN(7);
    unlink(path), munmap(at, BYTES);
    kept = reopened(fd, O_RDWR), close(fd);
    meanwhile();
    at = map(kept, BYTES);
    say("opened again through /proc", holds(at, BYTES, 7));
    munmap(at, BYTES), close(kept);

    BEGIN(8);
    unlink(path);
    at = mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0);
    close(fd), at[0] = at[PAGE - 1] = 8;
    meanwhile();
    say("a private mapping", holds(at, BYTES, 8));
    munmap(at, BYTES);

    BEGIN(9);
    unlink(path);
    fflush(stdout);
    if (!(child = fork())) {
        usleep(500000);
        _exit(!(holds(at, BYTES, 9) && reads(fd, 9)));
    }
    munmap(at, BYTES), close(fd);
    meanwhile();
    if (waitpid(child, &status, 0) != child) err(1, "waitpid");
    say("a child", status == 0);

    BEGIN(10);
    unlink(path);
    if (!(child = fork())) {
        // Its parent's mapping, without a descriptor; and a child of its own that has it next.
        close(fd);
        if (fork()) _exit(0);
        usleep(500000);
        FILE *said = fopen(other, "w");
        fputc(holds(at, BYTES, 10) ? 'y' : 'n', said), fclose(said);
        rename(other, path);
        _exit(0);
    }
    munmap(at, BYTES), close(fd);
    waitpid(child, &status, 0);
    meanwhile();
    for (int i = 0; i < 2000 && access(path, F_OK); i++) usleep(10000);
    FILE *said = fopen(path, "r");
    say("a mapping of an orphan", said && fgetc(said) == 'y');
    fclose(said), unlink(path);

    fd = open(place, O_TMPFILE | O_RDWR, 0600);
    // Before Linux 6.3 an overlay has none of these.
    if (fd < 0 && errno == EOPNOTSUPP) {
        puts("no file without a name here");
        return;
    }
    if (fd < 0 || ftruncate(fd, BYTES)) err(1, "O_TMPFILE");
    at = map(fd, BYTES), store(at, BYTES, 11), munmap(at, BYTES);
    meanwhile();
    snprintf(other, sizeof other, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, other, AT_FDCWD, path, AT_SYMLINK_FOLLOW)) err(1, "linkat");
    close(fd);
    meanwhile();
    fd = open(path, O_RDONLY);
    say("a file that got a name later", reads(fd, 11));
    close(fd), unlink(path);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

// Visits files at random; in each, every process counts its visits in a place of its own, by a
// mapping or by calls. What it counted has to be there at its next visit.
static void visit(int files, int visits, int who) {
    char path[4096];
    uint64_t random = 88172645463325252ull + (uint64_t)who * 7919;
    uint64_t *expected = calloc((size_t)files, sizeof *expected);
    off_t at = (off_t)who * 3 * PAGE + 40;
    for (int i = 0; i < visits; i++) {
        int no = (int)(next_random(&random) % (uint64_t)files);
        snprintf(path, sizeof path, "%s/file%d", place, no);
        uint64_t how = next_random(&random), count;
        int fd = open(path, O_RDWR | O_CLOEXEC | (how & 8 ? O_NONBLOCK : 0));
        if (fd < 0) err(1, "visit %d of %s", i, path);
        if (how & 1) {
            unsigned char *bytes = map(fd, BYTES);
            if (how & 2) close(fd);
            memcpy(&count, bytes + at, sizeof count);
            if (count != expected[no]) errx(1, "visit %d of %s, mapped: %lu, not %lu", i, path, count, expected[no]);
            count = ++expected[no];
            memcpy(bytes + at, &count, sizeof count);
            munmap(bytes, BYTES);
            if (!(how & 2)) close(fd);
        } else {
            if (pread(fd, &count, sizeof count, at) != sizeof count) err(1, "pread");
            if (count != expected[no]) errx(1, "visit %d of %s, read: %lu, not %lu", i, path, count, expected[no]);
            count = ++expected[no];
            if (how & 2 && pwrite(fd, &count, sizeof count, at) != sizeof count) err(1, "pwrite");
            if (!(how & 2)) expected[no]--;
            if (how & 4 && fsync(fd)) err(1, "fsync");
            close(fd);
        }
    }
    // What anybody finds in the files in the end.
    for (int no = 0; no < files; no++) {
        uint64_t count;
        snprintf(path, sizeof path, "%s/file%d", place, no);
        int fd = open(path, O_RDONLY);
        if (pread(fd, &count, sizeof count, at) != sizeof count || count != expected[no])
            errx(1, "%s in the end: %lu, not %lu", path, count, expected[no]);
        close(fd);
    }
    snprintf(path, sizeof path, "%s/counts%d", place, who);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    if (write(fd, expected, (size_t)files * sizeof *expected) < 0) err(1, "write");
    free(expected);
}

static void visits(int files, int each, int processes) {
    char path[4096];
    int status, worst = 0;
    for (int no = 0; no < files; no++) {
        snprintf(path, sizeof path, "%s/file%d", place, no);
        close(make(path, BYTES));
    }
    for (int who = 0; who < processes; who++)
        if (!fork()) visit(files, each, who), _exit(0);
    while (wait(&status) > 0) worst |= status;
    if (worst) errx(1, "a process failed");
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    place = arguments[2];
    if (!strcmp(arguments[1], "keep")) {
        keep();
    } else if (!strcmp(arguments[1], "visit")) {
        visits(atoi(arguments[3]), atoi(arguments[4]), atoi(arguments[5]));
        printf("%d\n", most_descriptors());
    } else {
        churn(place, atoi(arguments[3]), (size_t)atol(arguments[4]), arguments[1]);
        printf("%d\n", most_descriptors());
    }
    return 0;
}
