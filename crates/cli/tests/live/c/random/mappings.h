// Operations on mappings.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#include <sys/uio.h>

// Far from where the kernel maps by itself, so that places are the same in each run. In each of the
// slots there is room for the longest mapping, and to grow.
static char *const arena = (char *)0x100000000000;
enum { SLOTS = 12, SLOT = 16 << 20 };

static int is_in_arena(const struct mapping *mapping) {
    return mapping->at >= arena && mapping->at < arena + (size_t)2 * SLOTS * SLOT;
}

// ---- mapping --------------------------------------------------------------------------------------

static int any_protection(int is_shared, int is_open_to_write) {
    static const int protections[] = {PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ,
                                      PROT_READ, PROT_WRITE, PROT_NONE};
    int protection = ANY(protections);
    if (!is_shared && !is_root()) protection &= ~PROT_WRITE;
    // Of others, those that may be executed are the kernel's (README).
    if (is_shared && is_open_to_write && one_in(8)) protection |= PROT_EXEC;
    return protection;
}

static int any_mapping_flags(void) {
    int flags = one_in(4) ? MAP_PRIVATE : one_in(4) ? MAP_SHARED_VALIDATE : MAP_SHARED;
    // What is private and written to is copied at once by the kernel, and later by a run.
    if (one_in(6) && flags != MAP_PRIVATE) flags |= MAP_POPULATE;
    if (one_in(6)) flags |= MAP_NORESERVE;
    if (one_in(20)) flags |= MAP_NONBLOCK;
    // No flag that there is: refused by MAP_SHARED_VALIDATE.
    if (one_in(40)) flags |= 0x8000000;
    return flags;
}

static void map(void) {
    int fd = any_descriptor(), is_open_to_write = may_be_written(fd);
    int flags = any_mapping_flags(), is_shared = (flags & MAP_TYPE) != MAP_PRIVATE;
    int protection = any_protection(is_shared, is_open_to_write);
    size_t bytes = one_in(40) ? 0 : (size_t)below(one_in(3) ? 20000 : 2 * LONGEST);
    off_t offset = one_in(3) ? page_down(any_offset()) : 0;
    char *at = NULL;
    if (one_in(40)) offset += 100;
    if (one_in(3)) {
        flags |= one_in(4) ? MAP_FIXED_NOREPLACE : MAP_FIXED;
        at = arena + (size_t)below(SLOTS) * SLOT + (size_t)below(40) * PAGE;
    }
    say(" fd %d, %zu bytes at %ld", fd, bytes, (long)offset);
    say(", protection %x, flags %x", protection, flags);
    if (at) say(" in %zu", (size_t)(at - arena));
    struct mapping *mapping = free_mapping();
    at = one_in(4) ? (char *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset)
                   : mmap(at, bytes, protection, flags, fd, offset);
    say_result("mmap", at == MAP_FAILED ? -1 : 0);
    if (at == MAP_FAILED) return;
    bytes = page_up(bytes);
    forget_mappings(at, bytes);
    *mapping = (struct mapping){at, bytes, protection, is_shared, is_open_to_write, 1, file_of(fd)};
    say(" is mapping %d", mapping_number(mapping));
}

static void unmap(void) {
    struct mapping *mapping = any_mapping();
    if (!mapping) return;
    say(" %d", mapping_number(mapping));
    say_result("munmap", munmap(mapping->at, mapping->bytes));
    mapping->at = NULL;
}

// Of which what is before and what is behind are left.
static void unmap_inside(void) {
    struct mapping *mapping = any_mapping();
    int pages = mapping ? (int)(mapping->bytes / PAGE) : 0;
    if (pages < 3) return;
    int first = 1 + below(pages - 2), count = 1 + below(pages - first - 1);
    char *at = mapping->at + (size_t)first * PAGE;
    size_t bytes = (size_t)count * PAGE;
    say(" %d, %d pages from %d", mapping_number(mapping), count, first);
    say_result("munmap", EITHER_WAY(munmap, at, bytes));
    struct mapping behind = *mapping;
    behind.at = at + bytes;
    behind.bytes = mapping->bytes - (size_t)(first + count) * PAGE;
    mapping->bytes = (size_t)first * PAGE;
    *free_mapping() = behind;
}

// ---- loads and stores -----------------------------------------------------------------------------

static void load(void) {
    struct mapping *mapping = any_mapping();
    size_t offset, bytes;
    if (!mapping) return;
    any_range(mapping, &offset, &bytes);
    say(" %zu bytes at %zu of %d", bytes, offset, mapping_number(mapping));
    say_memory(mapping->at + offset, bytes);
}

static void say_stores(int faults) {
    if (faults > 0) say("; %d faults", faults);
}

static void store(void) {
    struct mapping *mapping = any_mapping();
    char page[PAGE];
    int faults = 0;
    if (!mapping) return;
    size_t bytes = (size_t)below(one_in(3) ? 30000 : 300) + 1;
    if (bytes > mapping->bytes) bytes = mapping->bytes;
    size_t offset = (size_t)below((int)(mapping->bytes - bytes) + 1);
    say(" %zu bytes at %zu of %d", bytes, offset, mapping_number(mapping));
    for (size_t done = 0, part; done < bytes; done += part) {
        char *at = mapping->at + offset + done;
        part = to_end_of_page(at, bytes - done);
        fill(page, part);
        if (!copies(at, page, part)) say_fault(at, done, ++faults);
    }
    say_stores(faults);
}

static void copy_between_mappings(void) {
    struct mapping *from = any_mapping(), *to = any_mapping();
    int faults = 0;
    if (!from || !to || from == to || from->file == to->file) return;
    size_t bytes = (size_t)below(50000) + 1;
    if (bytes > from->bytes) bytes = from->bytes;
    if (bytes > to->bytes) bytes = to->bytes;
    const char *source = from->at + below((int)(from->bytes - bytes) + 1);
    char *target = to->at + below((int)(to->bytes - bytes) + 1);
    say(" %zu bytes of %d to %d", bytes, mapping_number(from), mapping_number(to));
    // In pieces that cross borders of pages on one side, and on the other, but are in one page each.
    for (size_t done = 0, part; done < bytes; done += part) {
        part = to_end_of_page(target + done, to_end_of_page(source + done, bytes - done));
        if (!copies(target + done, source + done, part)) faults++;
    }
    say_stores(faults);
}

static void read_own_memory(void) {
    struct mapping *mapping = any_mapping();
    size_t offset, bytes;
    if (!mapping || !is_root()) return;
    any_range(mapping, &offset, &bytes);
    struct iovec to = {room, bytes < LONGEST ? bytes : LONGEST}, from = {mapping->at + offset, bytes};
    say(" %zu bytes at %zu of %d", bytes, offset, mapping_number(mapping));
    say_read(room, process_vm_readv(getpid(), &to, 1, &from, 1, 0));
}

// ---- changes of mappings --------------------------------------------------------------------------

static char *moved(const struct mapping *mapping, size_t bytes, int flags, char *to) {
    char *at = one_in(4) ? (char *)syscall(SYS_mremap, mapping->at, mapping->bytes, bytes, flags, to)
                         : mremap(mapping->at, mapping->bytes, bytes, flags, to);
    say_result("mremap", at == MAP_FAILED ? -1 : 0);
    return at;
}

static void resize(void) {
    struct mapping *mapping = any_mapping();
    if (!mapping) return;
    size_t pages = mapping->bytes / PAGE;
    pages = one_in(3) ? (size_t)below((int)pages) + 1 : pages + (size_t)below(one_in(2) ? 100 : 1000);
    int flags = is_in_arena(mapping) && one_in(2) ? 0 : MREMAP_MAYMOVE;
    // Whether there is room where the kernel chose the place is chance.
    if (!is_in_arena(mapping)) flags = MREMAP_MAYMOVE;
    // And from one slot it must not grow into the next.
    if (is_in_arena(mapping) && pages > (SLOT - 40 * PAGE) / PAGE) return;
    say(" %d to %zu pages, flags %x", mapping_number(mapping), pages, flags);
    char *at = moved(mapping, pages * PAGE, flags, NULL);
    if (at == MAP_FAILED) return;
    mapping->at = at, mapping->bytes = pages * PAGE;
    say_memory(at + mapping->bytes - PAGE, PAGE);
}

// Into the upper half of the arena. (Linux 6.17 moves what is in pieces as well; a run does not.)
static void move(void) {
    struct mapping *mapping = any_mapping();
    if (!mapping || !mapping->is_whole) return;
    size_t bytes = mapping->bytes + (size_t)(one_in(2) ? below(200) * PAGE : 0);
    char *to = arena + (size_t)(SLOTS + below(SLOTS)) * SLOT;
    if (mapping->at < to + bytes && to < mapping->at + mapping->bytes) return;
    say(" %d of %zu to %zu bytes", mapping_number(mapping), mapping->bytes, bytes);
    struct mapping kept = *mapping;
    char *at = moved(&kept, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (at == MAP_FAILED) return;
    mapping->at = NULL;
    forget_mappings(to, bytes);
    kept.at = at, kept.bytes = bytes;
    *mapping = kept;
    say_memory(at, bytes < 20000 ? bytes : 20000);
}

// A second mapping of the same, or one that leaves the first behind without pages.
static void map_twice(void) {
    struct mapping *mapping = any_mapping();
    // A shared mapping that cannot be written to is another kind under a run.
    if (!mapping || !mapping->is_shared || !mapping->is_open_to_write) return;
    struct mapping source = *mapping;
    int leaves_behind = one_in(2);
    say(" %d, way %d", mapping_number(mapping), leaves_behind);
    struct mapping *copy = free_mapping();
    if (copy->at == source.at || !mapping->at) return;
    char *at = leaves_behind
                   ? moved(&source, source.bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL)
                   : mremap(source.at, 0, source.bytes, MREMAP_MAYMOVE);
    if (!leaves_behind) say_result("mremap", at == MAP_FAILED ? -1 : 0);
    if (at == MAP_FAILED) return;
    *copy = source;
    copy->at = at;
    say_memory(at, source.bytes < 20000 ? source.bytes : 20000);
}

static void protect(void) {
    struct mapping *mapping = any_mapping();
    size_t offset, bytes;
    if (!mapping) return;
    any_range(mapping, &offset, &bytes);
    int protection = any_protection(mapping->is_shared, mapping->is_open_to_write);
    say(" %zu bytes at %zu of %d to %x", bytes, offset, mapping_number(mapping), protection);
    char *at = mapping->at + offset;
    long result = EITHER_WAY(mprotect, at, bytes, protection);
    say_result("mprotect", result);
    int is_all = bytes == mapping->bytes;
    if (!is_all) mapping->is_whole = 0;
    if (result == 0) mapping->protection = is_all ? protection : mapping->protection & protection;
    say_memory(at, bytes < 20000 ? bytes : 20000);
}

// ---- advice, syncs and locks ----------------------------------------------------------------------

static int any_advice(void) {
    static const int often[] = {MADV_DONTNEED, MADV_REMOVE, MADV_PAGEOUT, MADV_COLD,
                                MADV_POPULATE_READ, MADV_POPULATE_WRITE};
    static const int seldom[] = {MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_WILLNEED,
                                 MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL, MADV_FREE,
                                 MADV_DONTDUMP, MADV_DODUMP, 77};
    int advice = one_in(3) ? ANY(seldom) : ANY(often);
    int populates = advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE;
    return populates && !is_root() ? MADV_COLD : advice;
}

static void advise(void) {
    struct mapping *mapping = any_mapping();
    size_t offset, bytes;
    int advice = any_advice();
    if (!mapping) return;
    any_range(mapping, &offset, &bytes);
    if (one_in(40)) offset++;
    say(" %zu bytes at %zu of %d, advice %d", bytes, offset, mapping_number(mapping), advice);
    char *at = mapping->at + offset;
    if (bytes < mapping->bytes) mapping->is_whole = 0;
    if (one_in(8) && advice <= MADV_DONTNEED)
        say("; posix_madvise: %d", posix_madvise(at, bytes, advice));
    else say_result("madvise", EITHER_WAY(madvise, at, bytes, advice));
    if (bytes < 200000) say_memory(page_of(at), bytes);
}

static void sync_mapping(void) {
    static const int kinds[] = {MS_SYNC, MS_ASYNC, MS_INVALIDATE, MS_SYNC | MS_INVALIDATE,
                                MS_SYNC | MS_ASYNC, 0, 8};
    struct mapping *mapping = any_mapping();
    size_t offset, bytes;
    if (!mapping) return;
    any_range(mapping, &offset, &bytes);
    int kind = ANY(kinds);
    if (one_in(30)) offset++;
    say(" %zu bytes at %zu of %d, flags %x", bytes, offset, mapping_number(mapping), kind);
    char *at = mapping->at + offset;
    say_result("msync", EITHER_WAY(msync, at, bytes, kind));
}

// Of what is private the kernel makes copies as it is locked, and a run later.
static void lock_and_unlock(void) {
    struct mapping *mapping = any_mapping();
    size_t offset, bytes;
    if (!mapping || !mapping->is_shared) return;
    any_range(mapping, &offset, &bytes);
    if (bytes > 100000) bytes = 100000;
    char *at = mapping->at + offset;
    // Behind the end of a file a run locks what the kernel refuses to.
    if (!can_be_read(at, bytes)) return;
    say(" %zu bytes at %zu of %d", bytes, offset, mapping_number(mapping));
    mapping->is_whole = 0;
    int is_on_fault = one_in(2);
    say_result("mlock", is_on_fault ? mlock2(at, bytes, MLOCK_ONFAULT) : mlock(at, bytes));
    say_memory(at, bytes);
    say_result("remove", madvise(at, bytes, MADV_REMOVE));
    say_result("munlock", one_in(2) ? munlockall() : munlock(at, bytes));
    munlockall();
}
