// What the operations share: dice, lines of output, memory, and the files, descriptors and mappings
// that there are.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "../check.h"

enum { PAGE = 4096, LONGEST = 4 << 20, ROOM = LONGEST + (64 << 10) };

// ---- dice -----------------------------------------------------------------------------------------

static uint64_t dice_state;

static uint64_t mixed(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

static uint64_t next(uint64_t *state) { return mixed(*state += 0x9e3779b97f4a7c15ull); }

// Each operation has dice of its own, so that one that is left out changes nothing of what others
// throw.
static void take_dice(uint64_t seed, uint64_t number) { dice_state = mixed(seed + mixed(number)); }

static int below(int limit) { return (int)(next(&dice_state) % (uint64_t)limit); }

static int one_in(int times) { return below(times) == 0; }

#define ANY(array) ((array)[below((int)(sizeof(array) / sizeof *(array)))])

// A system call by libc's function for it, or by its number.
#define EITHER_WAY(call, ...)                                                                      \
    ((long)(one_in(4) ? syscall(SYS_##call, __VA_ARGS__) : (long)call(__VA_ARGS__)))

// At borders of pages and of larger units, and anywhere.
static off_t any_offset(void) {
    switch (below(6)) {
    case 0: return below(LONGEST);
    case 1: return (off_t)below(LONGEST / PAGE) * PAGE;
    case 2: return (off_t)(1 + below(LONGEST / PAGE - 1)) * PAGE + below(64) - 32;
    case 3: return below(2 * PAGE);
    case 4: return (1 << 20) + below(9000) - 4500;
    default: return below(LONGEST / 2);
    }
}

// Mostly short.
static size_t any_length(void) {
    switch (below(8)) {
    case 0: return (size_t)below(3);
    case 1:
    case 2: return (size_t)below(200);
    case 3:
    case 4: return (size_t)below(3 * PAGE);
    case 5: return (size_t)below(16) * PAGE;
    case 6: return (size_t)below(300000);
    default: return (size_t)below(one_in(10) ? LONGEST : 65536);
    }
}

static off_t page_down(off_t offset) { return offset & ~(off_t)(PAGE - 1); }

static size_t page_up(size_t bytes) { return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1); }

// ---- lines of output ------------------------------------------------------------------------------

// Written at once: a line that ends too soon names the operation that hung, or ended the process.
static void say(const char *format, ...) {
    char text[1024];
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    CHECK(bytes >= 0 && bytes < (int)sizeof text && write(1, text, (size_t)bytes) == bytes);
    errno = error;
}

static void say_result(const char *call, long result) {
    say("; %s: %ld", call, result);
    if (result == -1) say(" (%s)", strerror(errno));
}

static uint64_t checksum(const void *bytes, size_t count) {
    const char *at = bytes;
    uint64_t sum = count, word;
    for (; count >= sizeof word; at += sizeof word, count -= sizeof word) {
        memcpy(&word, at, sizeof word);
        sum = (sum ^ word) * 0x100000001b3ull;
        sum ^= sum >> 29;
    }
    while (count-- > 0) sum = (sum ^ (unsigned char)*at++) * 0x100000001b3ull;
    return sum ^ sum >> 32;
}

// ---- memory that may not be there -----------------------------------------------------------------

static sigjmp_buf retreat;
static volatile sig_atomic_t may_fault;
static volatile sig_atomic_t fault_signal, fault_code;
static char *volatile fault_at;

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    fault_signal = signal, fault_code = info->si_code, fault_at = info->si_addr;
    if (may_fault) siglongjmp(retreat, 1);
    say("; signal %d, code %d where no operation expects one\n", signal, info->si_code);
    _exit(99);
}

static void expect_faults(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
}

// Whether these bytes can be copied; if not, the variables above say why.
static int copies(void *to, const void *from, size_t bytes) {
    if (sigsetjmp(retreat, 0) != 0) {
        may_fault = 0;
        return 0;
    }
    may_fault = 1;
    __asm__ volatile("" ::: "memory");
    memcpy(to, from, bytes);
    __asm__ volatile("" ::: "memory");
    may_fault = 0;
    return 1;
}

static size_t to_end_of_page(const char *at, size_t bytes) {
    size_t left = PAGE - ((uintptr_t)at & (PAGE - 1));
    return left < bytes ? left : bytes;
}

static void *page_of(const void *at) { return (void *)((uintptr_t)at & ~(uintptr_t)(PAGE - 1)); }

// Which byte of the page is touched first is up to `memcpy`.
static void say_fault(const char *at, size_t offset, int faults) {
    // Which ones is told by the sum.
    if (faults > 2) return;
    say(", signal %d, code %d at %zu", fault_signal, fault_code, offset);
    if (page_of(fault_at) != page_of(at)) say(" with another address");
}

// What is in memory, page by page, and where it is not.
static void say_memory(const char *at, size_t bytes) {
    char page[PAGE];
    uint64_t sum = 0;
    int faults = 0;
    for (size_t done = 0, part; done < bytes; done += part) {
        part = to_end_of_page(at + done, bytes - done);
        if (copies(page, at + done, part)) {
            sum = mixed(sum + checksum(page, part));
        } else {
            sum = mixed(sum + (uint64_t)fault_signal);
            say_fault(at + done, done, ++faults);
        }
    }
    say(", sum %016lx", sum);
    if (faults > 0) say(", %d faults", faults);
}

// Bytes that differ from operation to operation.
static void fill(char *at, size_t bytes) {
    uint64_t state = next(&dice_state), word = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (i % sizeof word == 0) word = next(&state);
        at[i] = (char)(word >> i % sizeof word * 8);
    }
}

// ---- files ----------------------------------------------------------------------------------------

static const char *const names[] = {"a", "b", "c", "d", "e", "link"};
static const int first_lengths[] = {1300000, (3 << 20) + 123, 1 << 20, 5000, 0};

// An allocation, so that it is managed where heap memory is. It begins where a page does, by which sums
// are made.
static char *room;

// An ordinary user is refused calls that take what lies in a mapping and that the library does not see,
// and what makes a private mapping writable (docs/safety.md).
static int is_root(void) { return geteuid() == 0; }

static ino_t file_of(int fd) {
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 ? st.st_ino : 0;
}

static int may_be_written(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags != -1 && (flags & O_ACCMODE) == O_RDWR;
}

// What `read` finds in a file, to its end.
static void say_file(const char *name) {
    int fd = open(name, O_RDONLY | O_NOFOLLOW);
    if (fd < 0) {
        say("; %s: %s", name, strerror(errno));
        return;
    }
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    uint64_t sum = 0;
    off_t offset = 0;
    ssize_t done;
    while ((done = pread(fd, room, LONGEST, offset)) > 0) {
        sum = mixed(sum + checksum(room, (size_t)done));
        offset += done;
    }
    if (done < 0) say("; reading %s: %s", name, strerror(errno));
    say("; %s: %ld bytes, %ld read, sum %016lx", name, (long)st.st_size, (long)offset, sum);
    close(fd);
}

static void say_files(void) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) say_file(names[i]);
}

// ---- descriptors ----------------------------------------------------------------------------------

enum { DESCRIPTORS = 12 };
static int descriptors[DESCRIPTORS];

// One that is open, as a rule; else -1, which calls refuse.
static int any_descriptor(void) {
    for (int attempt = 0; attempt < DESCRIPTORS; attempt++) {
        int fd = ANY(descriptors);
        if (fd >= 0) return fd;
    }
    return -1;
}

static void forget_descriptor(int fd) {
    for (int i = 0; i < DESCRIPTORS; i++)
        if (descriptors[i] == fd) descriptors[i] = -1;
}

// Where there is no room for it, another is closed.
static void keep_descriptor(int fd) {
    if (fd < 0) return;
    int slot = below(DESCRIPTORS);
    for (int i = 0; i < DESCRIPTORS; i++)
        if (descriptors[i] < 0) slot = i;
    if (descriptors[slot] >= 0) say_result("close in its place", close(descriptors[slot]));
    descriptors[slot] = fd;
}

// ---- mappings -------------------------------------------------------------------------------------

enum { MAPPINGS = 10 };

struct mapping {
    char *at;
    size_t bytes;
    int protection, is_shared;
    // By a descriptor that may be written to.
    int is_open_to_write;
    // Whether the kernel has it in one piece for sure.
    int is_whole;
    // Zero if it is not known any more.
    ino_t file;
};

static struct mapping mappings[MAPPINGS];

static struct mapping *any_mapping(void) {
    for (int attempt = 0; attempt < 2 * MAPPINGS; attempt++) {
        struct mapping *mapping = &ANY(mappings);
        if (mapping->at) return mapping;
    }
    return NULL;
}

static int mapping_number(const struct mapping *mapping) { return (int)(mapping - mappings); }

// A slot for another one, out of which one goes where there is no room.
static struct mapping *free_mapping(void) {
    for (int i = 0; i < MAPPINGS; i++)
        if (!mappings[i].at) return &mappings[i];
    struct mapping *mapping = &ANY(mappings);
    say_result("munmap in its place", munmap(mapping->at, mapping->bytes));
    mapping->at = NULL;
    return mapping;
}

// What is mapped there is another's now, at least in part.
static void forget_mappings(const char *at, size_t bytes) {
    for (int i = 0; i < MAPPINGS; i++) {
        struct mapping *mapping = &mappings[i];
        if (mapping->at && mapping->at < at + bytes && at < mapping->at + mapping->bytes)
            mapping->at = NULL;
    }
}

// A range of whole pages, or all of it.
static void any_range(const struct mapping *mapping, size_t *offset, size_t *bytes) {
    *offset = 0, *bytes = mapping->bytes;
    if (one_in(3)) return;
    *offset = (size_t)below((int)(mapping->bytes / PAGE)) * PAGE;
    size_t left = mapping->bytes - *offset;
    *bytes = (size_t)below(left < 100000 ? (int)left : 100000) + 1;
}

static int can_be_read(const char *at, size_t bytes) {
    char page[PAGE];
    for (size_t done = 0, part; done < bytes; done += part) {
        part = to_end_of_page(at + done, bytes - done);
        if (!copies(page, at + done, part)) return 0;
    }
    return 1;
}

// Memory inside a mapping of another file than this one; null if that is not to be, or there is none.
static char *any_mapped_memory(size_t bytes, ino_t file) {
    if (!one_in(3)) return NULL;
    struct mapping *mapping = any_mapping();
    if (!mapping || mapping->bytes <= bytes || mapping->file == file || mapping->file == 0)
        return NULL;
    size_t offset = (size_t)below((int)(mapping->bytes - bytes));
    say(" in mapping %d at %zu", mapping_number(mapping), offset);
    return mapping->at + offset;
}

static char *own_memory(void) { return room + below(64); }

// Where bytes of a file go to.
static char *memory_to_fill(size_t bytes, ino_t file) {
    char *at = any_mapped_memory(bytes, file);
    return at ? at : own_memory();
}

// Bytes that are to go into a file. Those of a mapping are all there, but may be out of memory.
static const char *memory_to_write(size_t bytes, ino_t file) {
    char *at = any_mapped_memory(bytes, file);
    if (at && can_be_read(at, bytes)) {
        if (one_in(2)) madvise(page_of(at), page_up(bytes), MADV_PAGEOUT);
        return at;
    }
    at = own_memory();
    fill(at, bytes < 300000 ? bytes : 300000);
    return at;
}

// Memory in a mapping that can be written to, and is out of memory now; null if there is none.
static char *mapped_place(size_t bytes) {
    struct mapping *mapping = any_mapping();
    const int both = PROT_READ | PROT_WRITE;
    if (!is_root() || !mapping || (mapping->protection & both) != both) return NULL;
    if (mapping->bytes <= bytes + PAGE) return NULL;
    size_t offset = (size_t)below((int)(mapping->bytes - bytes)) & ~(size_t)7;
    char *at = mapping->at + offset;
    for (size_t done = 0, part; done < bytes; done += part) {
        part = to_end_of_page(at + done, bytes - done);
        if (!copies(at + done, at + done, part)) return NULL;
    }
    madvise(page_of(at), page_up(bytes), MADV_PAGEOUT);
    say(" in mapping %d at %zu", mapping_number(mapping), offset);
    return at;
}

// A name, in memory of a mapping once in a while.
static const char *name_somewhere(const char *name) {
    char *at = one_in(5) ? mapped_place(64) : NULL;
    if (!at || !copies(at, name, strlen(name) + 1)) return name;
    madvise(page_of(at), PAGE, MADV_PAGEOUT);
    return at;
}
