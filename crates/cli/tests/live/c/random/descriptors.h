// Operations on files by name and by descriptor.
#include <aio.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>

#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20
#endif

// ---- opening and closing --------------------------------------------------------------------------

static int any_open_flags(void) {
    static const int seldom[] = {O_EXCL, O_TRUNC, O_SYNC,      O_DSYNC,  O_NONBLOCK,
                                 O_PATH, O_CLOEXEC, O_NOFOLLOW, O_NOATIME, O_DIRECTORY};
    int flags = !one_in(4) ? O_RDWR : one_in(2) ? O_RDONLY : O_WRONLY;
    if (one_in(4)) flags |= O_CREAT;
    if (one_in(6)) flags |= O_APPEND;
    if (one_in(2)) flags |= ANY(seldom);
    return flags;
}

static int opened_by_how(const char *name, int flags) {
    struct open_how how = {.flags = (uint64_t)(unsigned)flags};
    if (flags & O_CREAT) how.mode = 0666;
    return (int)syscall(SYS_openat2, AT_FDCWD, name, &how, sizeof how);
}

static int opened_from_directory(const char *name, int flags) {
    int directory = open(".", O_RDONLY | O_DIRECTORY);
    int fd = openat(directory, name, flags, 0666);
    int error = errno;
    close(directory);
    errno = error;
    return fd;
}

// It ends where a page does: what is stored behind the end, which is no part of the file, stays in the
// kernel's memory until that page is written, and in a run's until it is evicted.
static int nameless_file(void) {
    int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    if (fd >= 0) CHECK(ftruncate(fd, 3 * PAGE) == 0);
    return fd;
}

static void open_file(void) {
    const char *name = ANY(names), *path;
    int flags = any_open_flags(), way = below(8), fd;
    say(" %s, flags %x, way %d", name, flags, way);
    path = name_somewhere(name);
    switch (way) {
    case 0: fd = one_in(4) ? creat(path, 0666) : open(path, O_RDWR); break;
    case 1: fd = openat(AT_FDCWD, path, flags, 0666); break;
    case 2: fd = opened_from_directory(path, flags); break;
    case 3: fd = opened_by_how(path, flags); break;
    case 4: fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0666); break;
    case 5: fd = nameless_file(); break;
    default: fd = open(path, flags, 0666); break;
    }
    say_result("open", fd);
    keep_descriptor(fd);
}

static void close_descriptor(void) {
    int fd = one_in(20) ? 999 : any_descriptor();
    forget_descriptor(fd);
    say_result("close", EITHER_WAY(close, fd));
}

static void duplicate(void) {
    int fd = any_descriptor(), other = any_descriptor(), way = below(6), copy = -1;
    say(" fd %d, way %d", fd, way);
    switch (way) {
    case 0: copy = dup(fd); break;
    case 1: copy = fcntl(fd, F_DUPFD, 100 + below(10)); break;
    case 2: copy = fcntl(fd, F_DUPFD_CLOEXEC, 60); break;
    case 3: copy = (int)syscall(SYS_dup, fd); break;
    // In place of another one, which is closed by that.
    case 4: say_result("dup2", other < 0 ? -2 : dup2(fd, other)); return;
    default: say_result("dup3", other < 0 ? -2 : dup3(fd, other, O_CLOEXEC)); return;
    }
    say_result("copy", copy);
    keep_descriptor(copy);
}

static void change_flags(void) {
    static const int changeable[] = {O_APPEND, O_NONBLOCK, O_NOATIME};
    int fd = any_descriptor(), flags = fcntl(fd, F_GETFL);
    say(" fd %d, flags %x and %x", fd, flags, fcntl(fd, F_GETFD));
    if (flags == -1) return;
    flags ^= ANY(changeable);
    say_result("set", EITHER_WAY(fcntl, fd, F_SETFL, flags));
}

// ---- reads and writes -----------------------------------------------------------------------------

struct transfer { int fd; size_t bytes; off_t offset; ino_t file; };

static struct transfer any_transfer(void) {
    struct transfer transfer = {any_descriptor(), any_length(), any_offset(), 0};
    transfer.file = file_of(transfer.fd);
    say(" fd %d, %zu bytes at %ld", transfer.fd, transfer.bytes, (long)transfer.offset);
    return transfer;
}

static void say_read(const char *at, ssize_t done) {
    say_result("read", done);
    if (done > 0) say_memory(at, (size_t)done);
}

static void read_on(void) {
    struct transfer t = any_transfer();
    char *to = memory_to_fill(t.bytes, t.file);
    say_read(to, EITHER_WAY(read, t.fd, to, t.bytes));
}

static void read_at(void) {
    struct transfer t = any_transfer();
    char *to = memory_to_fill(t.bytes, t.file);
    say_read(to, EITHER_WAY(pread64, t.fd, to, t.bytes, t.offset));
}

static void write_on(void) {
    struct transfer t = any_transfer();
    const char *from = memory_to_write(t.bytes, t.file);
    say_result("write", EITHER_WAY(write, t.fd, from, t.bytes));
}

static void write_at(void) {
    struct transfer t = any_transfer();
    const char *from = memory_to_write(t.bytes, t.file);
    if (one_in(40)) t.offset = -1 - below(3);
    say_result("write", EITHER_WAY(pwrite64, t.fd, from, t.bytes, t.offset));
}

// ---- reads and writes of several buffers ----------------------------------------------------------

enum { PARTS = 40, PART = 100000 };

// Up to six, or many small ones.
static int any_parts(struct iovec *parts, ino_t file, int are_written) {
    int count = one_in(20) ? PARTS : below(6);
    char *own = room;
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)below(count < PARTS && one_in(3) ? PART : 5000);
        char *at = any_mapped_memory(bytes, file);
        if (!at || (are_written && !can_be_read(at, bytes))) {
            at = own, own += bytes + (size_t)below(9);
            if (are_written) fill(at, bytes);
        }
        parts[i] = (struct iovec){at, bytes};
    }
    return count;
}

static size_t bytes_of(const struct iovec *parts, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
    return bytes;
}

static void say_read_parts(const struct iovec *parts, int count, ssize_t done) {
    say_result("read", done);
    for (int i = 0; i < count && done > 0; i++) {
        size_t bytes = parts[i].iov_len < (size_t)done ? parts[i].iov_len : (size_t)done;
        say_memory(parts[i].iov_base, bytes);
        done -= (ssize_t)bytes;
    }
}

static void read_parts(void) {
    static const int flags[] = {0, 0, RWF_HIPRI, 0x10000};
    struct transfer t = any_transfer();
    struct iovec parts[PARTS];
    int count = any_parts(parts, t.file, 0), flag = ANY(flags), way = below(4);
    // Of nothing, no flag is looked at by the kernel.
    if (bytes_of(parts, count) == 0) flag = 0;
    say(", %d parts, flags %x, way %d", count, flag, way);
    ssize_t done;
    switch (way) {
    case 0: done = readv(t.fd, parts, count); break;
    case 1: done = preadv(t.fd, parts, count, t.offset); break;
    case 2: done = preadv2(t.fd, parts, count, one_in(4) ? -1 : t.offset, flag); break;
    default: done = syscall(SYS_preadv2, t.fd, parts, count, t.offset, 0, flag); break;
    }
    say_read_parts(parts, count, done);
}

static void write_parts(void) {
    static const int flags[] = {0, 0, RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_NOAPPEND,
                                RWF_APPEND | RWF_NOAPPEND, RWF_HIPRI, 0x10000};
    struct transfer t = any_transfer();
    struct iovec parts[PARTS];
    int count = any_parts(parts, t.file, 1), flag = ANY(flags), way = below(4);
    say(", %d parts, flags %x, way %d", count, flag, way);
    ssize_t done;
    switch (way) {
    case 0: done = writev(t.fd, parts, count); break;
    case 1: done = pwritev(t.fd, parts, count, t.offset); break;
    case 2: done = pwritev2(t.fd, parts, count, one_in(4) ? -1 : t.offset, flag); break;
    default: done = syscall(SYS_pwritev2, t.fd, parts, count, t.offset, 0, flag); break;
    }
    say_result("write", done);
}

// What was stored behind the end of a file that ends inside a page is part of it, under the kernel alone,
// once a direct write makes it longer (POSIX asks for zeros, which buffered writes leave).
static void clear_behind_the_end(int fd, off_t offset) {
    struct stat stat;
    CHECK(fstat(fd, &stat) == 0);
    off_t end = (off_t)page_up((size_t)stat.st_size);
    // Where it may not be made longer, the write may not, either.
    if (stat.st_size < end && end <= offset && ftruncate(fd, end) != 0) say(", as it is");
}

// All are aligned. Which others the kernel refuses depends on where a file has holes.
static void transfer_directly(void) {
    const char *name = ANY(names);
    int fd = open(name, O_RDWR | O_DIRECT | (one_in(4) ? O_DSYNC : 0)), transfers = 1 + below(4);
    char *at = room;
    say(" %s", name);
    say_result("open", fd);
    for (int i = 0; i < transfers && fd >= 0; i++) {
        off_t offset = page_down(any_offset());
        size_t bytes = page_up(any_length());
        say(", %zu bytes at %ld", bytes, (long)offset);
        if (one_in(2)) {
            fill(at, bytes);
            clear_behind_the_end(fd, offset);
            say_result("write", pwrite(fd, at, bytes, offset));
        } else {
            say_read(at, pread(fd, at, bytes, offset));
        }
    }
    close(fd);
}

static int print_list(int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int done = vdprintf(fd, format, arguments);
    va_end(arguments);
    return done;
}

static void write_formatted(void) {
    int fd = any_descriptor(), number = below(1000000), width = 1 + below(one_in(10) ? 9000 : 100);
    const char *format = "%d, %0*d and text\n";
    say(" fd %d, width %d", fd, width);
    if (one_in(2)) say_result("dprintf", dprintf(fd, format, number, width, number));
    else say_result("vdprintf", print_list(fd, format, number, width, number));
}

// ---- offsets and lengths --------------------------------------------------------------------------

static void seek(void) {
    int fd = any_descriptor(), whence = one_in(20) ? 9 : below(3);
    off_t offset = whence == SEEK_SET ? any_offset() : below(2000000) - 1000000;
    say(" fd %d, %ld from %d", fd, (long)offset, whence);
    say_result("lseek", EITHER_WAY(lseek, fd, offset, whence));
}

static int are_zeros(int fd, off_t from, off_t to) {
    while (from < to) {
        size_t part = to - from < LONGEST ? (size_t)(to - from) : LONGEST;
        ssize_t done = pread(fd, room, part, from);
        if (done <= 0) return 0;
        for (ssize_t i = 0; i < done; i++)
            if (room[i]) return 0;
        from += done;
    }
    return 1;
}

// Where data begins depends on what was written to storage so far. What is passed over must be zeros.
static int is_data_after(off_t from, off_t data, off_t end, int fd) {
    return data >= from && data <= end && are_zeros(fd, from, data);
}

static void seek_data(void) {
    const char *name = ANY(names);
    int fd = open(name, O_RDONLY | O_NOFOLLOW);
    off_t from = any_offset();
    if (fd < 0) return;
    off_t end = lseek(fd, 0, SEEK_END);
    say(" %s from %ld of %ld", name, (long)from, (long)end);
    off_t data = lseek(fd, from, SEEK_DATA);
    if (from >= end) {
        say_result("data", data);
        say_result("hole", lseek(fd, from, SEEK_HOLE));
    } else {
        if (data == -1 && errno == ENXIO) data = end;
        off_t hole = lseek(fd, from, SEEK_HOLE);
        say(": %d and %d", is_data_after(from, data, end, fd), hole >= from && hole <= end);
    }
    close(fd);
}

static void set_length(void) {
    off_t bytes = one_in(30) ? -1 : any_offset();
    if (one_in(2)) {
        int fd = any_descriptor();
        say(" fd %d to %ld", fd, (long)bytes);
        say_result("ftruncate", EITHER_WAY(ftruncate, fd, bytes));
    } else {
        const char *name = ANY(names);
        say(" %s to %ld", name, (long)bytes);
        say_result("truncate", truncate(name_somewhere(name), bytes));
    }
}

static void allocate(void) {
    static const int modes[] = {0, FALLOC_FL_KEEP_SIZE,
                                FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                FALLOC_FL_ZERO_RANGE, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
                                FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE,
                                FALLOC_FL_PUNCH_HOLE, FALLOC_FL_UNSHARE_RANGE};
    int fd = any_descriptor(), mode = ANY(modes);
    off_t offset = any_offset(), bytes = (off_t)any_length();
    if (mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE) && !one_in(9))
        offset = page_down(offset), bytes = page_down(bytes);
    if (one_in(30)) bytes = -bytes;
    say(" fd %d, mode %x, %ld bytes at %ld", fd, mode, (long)bytes, (long)offset);
    // It returns its error.
    if (one_in(5)) say("; posix_fallocate: %d", posix_fallocate(fd, offset, bytes));
    else say_result("fallocate", EITHER_WAY(fallocate, fd, mode, offset, bytes));
}

// ---- transfers inside the kernel ------------------------------------------------------------------

// An offset for the kernel to read and to change; null for the descriptor's own.
static off_t *any_place_of_offset(off_t *own) {
    off_t offset = any_offset();
    if (one_in(2)) return NULL;
    off_t *place = one_in(3) ? (off_t *)mapped_place(sizeof *place) : NULL;
    if (!place) place = own;
    if (!copies(place, &offset, sizeof offset)) return NULL;
    say(" at %ld", (long)offset);
    return place;
}

// It is where somebody may have made the file shorter.
static void say_place(const off_t *place) {
    off_t offset;
    if (!place) return;
    if (copies(&offset, place, sizeof offset)) say(", then %ld", (long)offset);
    else say(", then nowhere");
}

static void copy_range(void) {
    int from = any_descriptor(), to = any_descriptor();
    off_t own_from, own_to;
    size_t bytes = any_length();
    say(" fd %d to %d, %zu bytes", from, to, bytes);
    off_t *at_from = any_place_of_offset(&own_from), *at_to = any_place_of_offset(&own_to);
    unsigned flags = one_in(20);
    say_result("copy", EITHER_WAY(copy_file_range, from, at_from, to, at_to, bytes, flags));
    say_place(at_from);
    say_place(at_to);
}

static void send_file(void) {
    int from = any_descriptor(), to = any_descriptor();
    off_t own;
    size_t bytes = any_length();
    // What comes of a file that is sent to itself depends on how far ahead the kernel reads.
    if (file_of(from) == file_of(to)) return;
    say(" fd %d to %d, %zu bytes", from, to, bytes);
    off_t *at = any_place_of_offset(&own);
    say_result("sendfile", sendfile(to, from, at, bytes));
    say_place(at);
}

enum { PIPE = 60000 };

static void splice_through_pipe(void) {
    int from = any_descriptor(), to = any_descriptor(), ends[2];
    off_t own_from, own_to;
    size_t bytes = (size_t)below(PIPE);
    // A pipe holds pages of the file that it is filled from.
    if (file_of(from) == file_of(to)) return;
    CHECK(pipe(ends) == 0);
    say(" fd %d to %d, %zu bytes", from, to, bytes);
    off_t *at_from = any_place_of_offset(&own_from), *at_to = any_place_of_offset(&own_to);
    ssize_t left = splice(from, at_from, ends[1], NULL, bytes, 0);
    say_result("in", left);
    while (left > 0) {
        unsigned flags = one_in(2) ? SPLICE_F_NONBLOCK : 0;
        ssize_t done = splice(ends[0], NULL, to, at_to, (size_t)left, flags);
        say_result("out", done);
        if (done <= 0) break;
        left -= done;
    }
    close(ends[0]), close(ends[1]);
    say_place(at_from);
    say_place(at_to);
}

// Pages of a file, or of memory, come out of a pipe, and out of another that shares them.
static void read_from_pipes(void) {
    int fd = any_descriptor(), first[2], second[2];
    off_t offset = any_offset();
    size_t bytes = (size_t)below(PIPE);
    CHECK(pipe2(first, O_NONBLOCK) == 0 && pipe2(second, O_NONBLOCK) == 0);
    if (one_in(2) || !is_root()) {
        say(" fd %d, %zu bytes at %ld", fd, bytes, (long)offset);
        say_result("splice", splice(fd, &offset, first[1], NULL, bytes, SPLICE_F_NONBLOCK));
    } else {
        // What may be written to only, the kernel takes as long as it is in memory.
        struct iovec part = {mapped_place(bytes), bytes};
        if (!part.iov_base) part.iov_base = room, fill(room, bytes);
        say_result("vmsplice", vmsplice(first[1], &part, 1, SPLICE_F_NONBLOCK));
    }
    say_result("tee", tee(first[0], second[1], bytes, SPLICE_F_NONBLOCK));
    char *to = room + LONGEST / 2;
    say_read(to, read(second[0], to, bytes));
    to = any_mapped_memory(bytes, 0);
    if (!to) to = room + LONGEST / 2;
    say_read(to, read(first[0], to, bytes));
    close(first[0]), close(first[1]), close(second[0]), close(second[1]);
}

static void clone_range(void) {
    int from = any_descriptor(), to = any_descriptor();
    struct file_clone_range range = {from, (uint64_t)page_down(any_offset()), page_up(any_length()),
                                     (uint64_t)page_down(any_offset())};
    say(" fd %d at %llu to %d at %llu, %llu bytes", from, range.src_offset, to, range.dest_offset,
        range.src_length);
    say_result("ioctl", ioctl(to, FICLONERANGE, &range));
}

// ---- syncs and advice -----------------------------------------------------------------------------

// Not all files at once (`syncfs`): what others store behind the end of a file would go by that, while
// they look at it.
static void sync_file(void) {
    int fd = any_descriptor(), flags = below(8);
    off_t offset = any_offset(), bytes = (off_t)any_length();
    say(" fd %d", fd);
    switch (below(3)) {
    case 0: say_result("fsync", EITHER_WAY(fsync, fd)); break;
    case 1: say_result("fdatasync", fdatasync(fd)); break;
    default: say_result("sync_file_range", sync_file_range(fd, offset, bytes, (unsigned)flags)); break;
    }
}

static void advise_of_file(void) {
    int fd = any_descriptor(), advice = below(6);
    off_t offset = any_offset(), bytes = (off_t)any_length();
    say(" fd %d, advice %d, %ld bytes at %ld", fd, advice, (long)bytes, (long)offset);
    say("; fadvise: %d", posix_fadvise(fd, offset, bytes, advice));
    say_result("readahead", readahead(fd, offset, (size_t)bytes));
}

// ---- names, lengths and times ---------------------------------------------------------------------

static int looked_at(const char *name, int fd, struct stat *st) {
    struct statx more;
    int result;
    switch (below(5)) {
    case 0: return stat(name_somewhere(name), st);
    case 1: return fstat(fd, st);
    case 2: return lstat(name, st);
    case 3: return fstatat(AT_FDCWD, name, st, AT_SYMLINK_NOFOLLOW);
    default: break;
    }
    result = statx(AT_FDCWD, name, 0, STATX_BASIC_STATS, &more);
    if (result == 0) {
        st->st_size = (off_t)more.stx_size, st->st_nlink = more.stx_nlink;
        st->st_mode = more.stx_mode;
    }
    return result;
}

static void look(void) {
    const char *name = ANY(names);
    int fd = any_descriptor();
    struct stat st;
    say(" %s, fd %d", name, fd);
    int result = looked_at(name, fd, &st);
    say_result("stat", result);
    if (result == 0)
        say(", %ld bytes, %ld links, mode %o", (long)st.st_size, (long)st.st_nlink, st.st_mode);
    if (one_in(3)) say_files();
}

// Stores before that are written back later, which must not move it. (What is read ahead may move the time of
// access.)
static void set_time(void) {
    int fd = any_descriptor();
    const char *name = ANY(names);
    struct timespec times[2] = {{below(1000000), 0}, {below(1000000), below(1000000)}};
    struct timeval old[2] = {{times[0].tv_sec, 0}, {times[1].tv_sec, 0}};
    struct stat st;
    int result, is_by_name = one_in(2);
    say(" fd %d, %s, to %ld", fd, name, (long)times[1].tv_sec);
    if (!is_by_name) result = futimens(fd, times);
    else if (one_in(2)) result = utimensat(AT_FDCWD, name, times, 0);
    else result = utimes(name, old);
    say_result("set", result);
    if (result == 0 && (is_by_name ? stat(name, &st) : fstat(fd, &st)) == 0)
        say(", is %ld", (long)st.st_mtime);
}

static int link_of_descriptor(int fd, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

// A file with this name and some content.
static int made(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT, 0666);
    if (fd < 0) return -1;
    fill(room, 300000);
    int result = (int)pwrite(fd, room, 300000, below(LONGEST));
    close(fd);
    return result;
}

static void change_names(void) {
    const char *name = ANY(names), *other = ANY(names);
    int fd = any_descriptor(), way = below(9), result;
    say(" %s, %s, fd %d, way %d", name, other, fd, way);
    switch (way) {
    case 0: result = rename(name_somewhere(name), other); break;
    case 1: result = link(name, other); break;
    case 2: result = unlink(name); break;
    case 3: result = symlink(name, other); break;
    case 4: result = renameat2(AT_FDCWD, name, AT_FDCWD, other, RENAME_EXCHANGE); break;
    case 5: result = renameat2(AT_FDCWD, name, AT_FDCWD, other, RENAME_NOREPLACE); break;
    case 6: result = link_of_descriptor(fd, other); break;
    default: result = made(name); break;
    }
    say_result("result", result);
}

// ---- locks ----------------------------------------------------------------------------------------

static struct flock any_lock(short type) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = below(100000),
                          .l_len = below(50000)};
}

static int lock_by(int way, int fd, struct flock *lock) {
    switch (way) {
    case 0: return fcntl(fd, F_SETLK, lock);
    case 1: return fcntl(fd, F_OFD_SETLK, lock);
    case 2: return lseek(fd, lock->l_start, SEEK_SET) < 0 ? -1 : lockf(fd, F_TLOCK, lock->l_len);
    default: return flock(fd, (lock->l_type == F_RDLCK ? LOCK_SH : LOCK_EX) | LOCK_NB);
    }
}

static void say_child(pid_t child) {
    int status;
    pid_t result;
    do result = waitpid(child, &status, 0);
    while (result < 0 && errno == EINTR);
    CHECK(result == child);
    say("; child ended with %x", status);
}

// Who is asked is another process, with a descriptor of its own. (A lock that is kept for longer goes
// with its descriptor under a run, and with its mappings under the kernel.)
static void try_locks(void) {
    const char *name = ANY(names);
    int fd = open(name, O_RDWR), way = below(4);
    struct flock lock = any_lock(one_in(2) ? F_RDLCK : F_WRLCK), other = any_lock(F_WRLCK);
    if (fd < 0) return;
    say(" %s, way %d, type %d", name, way, lock.l_type);
    say_result("lock", lock_by(way, fd, &lock));
    say("\n");
    pid_t child = fork();
    if (child == 0) {
        int mine = open(name, O_RDWR);
        say("  child");
        say_result("lock", lock_by(way == 3 ? 3 : 0, mine, &other));
        say_result("get", fcntl(mine, F_GETLK, &other));
        say(", type %d at %ld\n", other.l_type, (long)other.l_start);
        _exit(0);
    }
    say_child(child);
    close(fd);
}

// ---- asynchronous transfers -----------------------------------------------------------------------

enum { REQUESTS = 3, REQUEST = 200000 };

static struct aiocb any_request(int fd, int number, int is_write) {
    struct aiocb request;
    memset(&request, 0, sizeof request);
    request.aio_fildes = fd;
    request.aio_nbytes = any_length() % REQUEST;
    request.aio_offset = any_offset();
    request.aio_buf = room + number * REQUEST;
    request.aio_lio_opcode = is_write ? LIO_WRITE : one_in(10) ? LIO_NOP : LIO_READ;
    request.aio_sigevent.sigev_notify = SIGEV_NONE;
    if (is_write) fill(room + number * REQUEST, request.aio_nbytes);
    return request;
}

static void say_request(struct aiocb *request) {
    const struct aiocb *one = request;
    int error;
    while ((error = aio_error(request)) == EINPROGRESS) aio_suspend(&one, 1, NULL);
    ssize_t done = aio_return(request);
    say("; error %d, result %ld", error, (long)done);
    if (done > 0 && request->aio_lio_opcode == LIO_READ)
        say_memory((const char *)request->aio_buf, (size_t)done);
}

static void transfer_later(void) {
    int fd = any_descriptor(), way = below(4), count = way == 3 ? REQUESTS : 1, result;
    struct aiocb requests[REQUESTS], *list[REQUESTS];
    say(" fd %d, way %d", fd, way);
    for (int i = 0; i < REQUESTS; i++) {
        requests[i] = any_request(fd, i, way == 3 ? one_in(2) : way == 1);
        list[i] = &requests[i];
    }
    if (way < 2) requests[0].aio_lio_opcode = way == 1 ? LIO_WRITE : LIO_READ;
    switch (way) {
    case 0: result = aio_read(&requests[0]); break;
    case 1: result = aio_write(&requests[0]); break;
    case 2: requests[0].aio_lio_opcode = LIO_NOP, result = aio_fsync(O_SYNC, &requests[0]); break;
    default: result = lio_listio(LIO_WAIT, list, REQUESTS, NULL); break;
    }
    say_result("begun", result);
    for (int i = 0; i < count && (result == 0 || way == 3); i++)
        if (requests[i].aio_lio_opcode != LIO_NOP || way == 2) say_request(&requests[i]);
}
