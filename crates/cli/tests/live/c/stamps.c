// Many writers on one file, each store checked: nothing lost, nothing zeroed, nothing of somebody
// else's.
//
//     stamps run FILE EXPECTED WRITES PROCESSES THREADS PAGES
//     stamps check FILE EXPECTED
//
// Each thread of each process is a writer with a slot of its own in every page. What it puts there
// is a stamp: who, which page, the how-manieth, and a checksum over these. What it did is noted in
// memory that processes share: before and after each stamp, so that a writer may be killed at any
// moment and its stamps still be judged. Before it writes, a writer checks what is there.
//
// Meanwhile: the last process is killed and started again, another forks, mappings move, ranges are
// synced, and one more thread makes the file longer and shorter behind the writers' pages.
// At the end all stamps are checked through a mapping and by read; EXPECTED gets what they have to
// be, for `check` to compare with the file when nobody manages it any more.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SLOTS = 16, SLOT = PAGE / SLOTS, BURST = 100, TAIL = 64 };

struct stamp { uint64_t writer, page, sequence, check; };
// Sequences of a writer's stamp in a page: begun, and known to be there.
struct note { _Atomic uint64_t begun, done; };
struct shared {
    _Atomic uint64_t writes, map_writes, file_writes, reads, syncs, forks, moves, kills, lengths;
    _Atomic int failed, stop;
    struct note notes[];
};

static struct shared *shared;
static int fd;
static uint64_t pages, writers, goal;

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, "stamps: " __VA_ARGS__);                                                   \
        fputc('\n', stderr);                                                                       \
        shared->failed = 1;                                                                        \
        _exit(1);                                                                                  \
    } while (0)
#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) FAIL("line %d: %s: %s", __LINE__, #x, strerror(errno));                          \
    } while (0)

static uint64_t mixed(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

static uint64_t next(uint64_t *state) { return mixed(*state += 0x9e3779b97f4a7c15ull); }

static uint64_t check_of(const struct stamp *s) {
    return mixed(s->writer * 31 + mixed(s->page * 37 + mixed(s->sequence)));
}

static struct note *note_of(uint64_t writer, uint64_t page) {
    return &shared->notes[writer * pages + page];
}

static off_t place_of(uint64_t writer, uint64_t page) {
    return (off_t)(page * PAGE + writer * SLOT);
}

// What is wrong with a stamp that has to be between these two; null if nothing is.
static const char *wrong(const struct stamp *s, uint64_t writer, uint64_t page, uint64_t least,
                         uint64_t most) {
    if (least == 0 && s->sequence == 0)
        return s->writer || s->page || s->check ? "bytes that nobody wrote" : NULL;
    if (s->check == 0 && s->sequence == 0) return "zeroed";
    if (s->check != check_of(s)) return "torn";
    if (s->writer != writer) return "another writer's";
    if (s->page != page) return "another page's";
    if (s->sequence < least) return "an old one: a store was lost";
    if (s->sequence > most) return "from the future";
    return NULL;
}

static void must_be(const struct stamp *s, uint64_t writer, uint64_t page, uint64_t least,
                    uint64_t most, const char *how) {
    const char *what = wrong(s, writer, page, least, most);
    if (what)
        FAIL("%s: writer %lu, page %lu: %s (writer %lu, page %lu, sequence %lu; not %lu to %lu)",
             how, writer, page, what, s->writer, s->page, s->sequence, least, most);
}

// Somebody else's stamp: it may be changing just now.
static void look(volatile char *map, uint64_t writer, uint64_t page) {
    struct note *note = note_of(writer, page);
    for (int attempt = 0;; attempt++) {
        uint64_t least = note->done;
        struct stamp s;
        for (size_t i = 0; i < sizeof s / 8; i++)
            ((uint64_t *)&s)[i] = ((volatile uint64_t *)(map + place_of(writer, page)))[i];
        uint64_t most = note->begun;
        if (!wrong(&s, writer, page, least, most)) break;
        // Torn only while its writer is at it, or was killed there.
        if (least == most || attempt > 1000) {
            if (least != most) break;
            must_be(&s, writer, page, least, most, "seen by another");
        }
    }
    shared->reads++;
}

static void *map_file(void) {
    void *at = mmap(NULL, (pages + TAIL) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(at != MAP_FAILED);
    return at;
}

// So many stamps of one writer.
static void stamp_pages(char *map, uint64_t writer, uint64_t *random, uint64_t page, int count) {
    struct note *note = note_of(writer, page);
    volatile uint64_t *slot = (volatile uint64_t *)(map + place_of(writer, page));
    int by_file = next(random) % 4 == 0;
    for (int i = 0; i < count; i++) {
        struct stamp s;
        for (size_t w = 0; w < sizeof s / 8; w++) ((uint64_t *)&s)[w] = slot[w];
        must_be(&s, writer, page, note->done, note->done, "before a store");
        s = (struct stamp){writer, page, note->done + 1, 0};
        s.check = check_of(&s);
        note->begun = s.sequence;
        if (by_file && i % 4 == 0) {
            MUST(pwrite(fd, &s, sizeof s, place_of(writer, page)) == sizeof s);
            shared->file_writes++;
        } else {
            for (size_t w = 0; w < sizeof s / 8; w++) slot[w] = ((uint64_t *)&s)[w];
            shared->map_writes++;
        }
        note->done = s.sequence;
    }
    shared->writes += count;
}

// What a killed writer left half done is settled by looking.
static void take_over(char *map, uint64_t writer) {
    for (uint64_t page = 0; page < pages; page++) {
        struct note *note = note_of(writer, page);
        if (note->begun == note->done) continue;
        struct stamp s, was = {writer, page, note->done, 0};
        memcpy(&s, map + place_of(writer, page), sizeof s);
        if (wrong(&s, writer, page, note->done, note->begun)) {
            // Killed between the words of a stamp: each is one of two.
            struct stamp will = {writer, page, note->begun, 0};
            was.check = note->done ? check_of(&was) : 0;
            if (!note->done) was = (struct stamp){0};
            will.check = check_of(&will);
            for (size_t w = 0; w < sizeof s / 8; w++) {
                uint64_t word = ((uint64_t *)&s)[w];
                if (word != ((uint64_t *)&was)[w] && word != ((uint64_t *)&will)[w])
                    FAIL("writer %lu, page %lu: word %zu is neither old nor new", writer, page, w);
            }
            memcpy(map + place_of(writer, page), &will, sizeof will);
            s = will;
        }
        note->begun = note->done = s.sequence;
    }
}

struct writer { uint64_t number; int forks; };

static void *write_stamps(void *given) {
    struct writer *self = given;
    uint64_t writer = self->number, random = writer * 7919 + (uint64_t)getpid() + 1;
    char *map = map_file();
    take_over(map, writer);
    uint64_t base = next(&random) % pages;
    for (uint64_t round = 1; !shared->stop && !shared->failed && shared->writes < goal; round++) {
        // Some pages again and again, and now and then others.
        if (round % 64 == 0) base = next(&random) % pages;
        uint64_t page = (base + next(&random) % 96) % pages;
        stamp_pages(map, writer, &random, page, BURST);
        for (int i = 0; i < 4; i++)
            look(map, next(&random) % writers, next(&random) % 4 ? page : next(&random) % pages);
        switch (next(&random) % 512) {
        case 0: case 1: {
            uint64_t from = next(&random) % pages, n = next(&random) % 64 + 1;
            if (from + n > pages) n = pages - from;
            MUST(msync(map + from * PAGE, n * PAGE, next(&random) % 4 ? MS_SYNC : MS_ASYNC) == 0);
            shared->syncs++;
            break;
        }
        case 2: {
            char *moved = mremap(map, (pages + TAIL) * PAGE, (pages + TAIL) * PAGE,
                                 MREMAP_MAYMOVE | MREMAP_FIXED,
                                 map_file()); // whose mapping it replaces
            MUST(moved != MAP_FAILED);
            map = moved;
            shared->moves++;
            break;
        }
        case 3:
            MUST(munmap(map, (pages + TAIL) * PAGE) == 0);
            map = map_file();
            break;
        case 4: {
            struct stamp s;
            uint64_t least = note_of(writer, page)->done;
            MUST(pread(fd, &s, sizeof s, place_of(writer, page)) == sizeof s);
            must_be(&s, writer, page, least, least, "by read");
            break;
        }
        case 5:
            if (!self->forks || round % 4) break;
            // The child is this writer for a while.
            pid_t child = fork();
            MUST(child >= 0);
            if (child == 0) {
                for (int i = 0; i < 30; i++)
                    stamp_pages(map, writer, &random, (page + (uint64_t)i) % pages, BURST);
                _exit(0);
            }
            int status;
            MUST(waitpid(child, &status, 0) == child);
            if (status) FAIL("a forked child ended with %d", status);
            shared->forks++;
            break;
        case 6:
            MUST(fdatasync(fd) == 0);
            break;
        }
    }
    munmap(map, (pages + TAIL) * PAGE);
    return NULL;
}

// Makes the file longer and shorter behind the writers' pages: what is new is zero.
static void *change_length(void *nothing) {
    (void)nothing;
    uint64_t random = 99;
    unsigned char *map = map_file(), *tail = map + pages * PAGE;
    while (!shared->stop && !shared->failed && shared->writes < goal) {
        uint64_t bytes = next(&random) % (TAIL * PAGE);
        uint64_t larger = bytes + next(&random) % (TAIL * PAGE - bytes + 1);
        MUST(ftruncate(fd, (off_t)(pages * PAGE + bytes)) == 0);
        if (bytes > 0) memset(tail + bytes / 2, 0xa5, bytes - bytes / 2);
        // Behind the end, as far as the page goes.
        if (bytes % PAGE) memset(tail + bytes, 0x5a, PAGE - bytes % PAGE);
        unsigned char last = (unsigned char)random;
        if (larger > bytes && random % 2) {
            MUST(pwrite(fd, &last, 1, (off_t)(pages * PAGE + larger - 1)) == 1);
        } else {
            MUST(ftruncate(fd, (off_t)(pages * PAGE + larger)) == 0);
            last = 0;
        }
        for (uint64_t i = bytes / 2; i < larger; i++) {
            unsigned char want = i < bytes ? 0xa5 : 0;
            if (i == larger - 1 && larger > bytes) want = last;
            if (tail[i] != want)
                FAIL("behind the writers, byte %lu of %lu (was %lu): %d, not %d", i, larger, bytes,
                     tail[i], want);
        }
        MUST(ftruncate(fd, (off_t)(pages * PAGE)) == 0);
        shared->lengths++;
        usleep(2000);
    }
    munmap(map, (pages + TAIL) * PAGE);
    return NULL;
}

static pid_t start(uint64_t process, uint64_t threads) {
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid > 0) return pid;
    pthread_t ids[SLOTS + 1];
    struct writer each[SLOTS];
    for (uint64_t t = 0; t < threads; t++) {
        each[t] = (struct writer){process * threads + t, process == 1};
        MUST(pthread_create(&ids[t], NULL, write_stamps, &each[t]) == 0);
    }
    if (process == 0) MUST(pthread_create(&ids[threads], NULL, change_length, NULL) == 0);
    for (uint64_t t = 0; t < threads + (process == 0); t++) pthread_join(ids[t], NULL);
    _exit(0);
}

static void check_all(const char *how, int (*get)(struct stamp *, off_t)) {
    for (uint64_t writer = 0; writer < writers; writer++)
        for (uint64_t page = 0; page < pages; page++) {
            struct note *note = note_of(writer, page);
            struct stamp s;
            MUST(get(&s, place_of(writer, page)));
            must_be(&s, writer, page, note->done, note->done, how);
        }
}

static char *whole;
static int by_map(struct stamp *s, off_t at) { return memcpy(s, whole + at, sizeof *s) != NULL; }
static int by_read(struct stamp *s, off_t at) { return pread(fd, s, sizeof *s, at) == sizeof *s; }

static void share(void) {
    size_t bytes = sizeof *shared + writers * pages * sizeof(struct note);
    shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) exit(1);
}

static int check(const char *expected) {
    FILE *in = fopen(expected, "r");
    if (!in || fread(&writers, 8, 1, in) != 1 || fread(&pages, 8, 1, in) != 1) return 1;
    share();
    for (uint64_t i = 0; i < writers * pages; i++) {
        uint64_t done;
        if (fread(&done, 8, 1, in) != 1) return 1;
        shared->notes[i].begun = shared->notes[i].done = done;
    }
    struct stat st;
    MUST(fstat(fd, &st) == 0 && (uint64_t)st.st_size == pages * PAGE);
    check_all("in the file", by_read);
    // Nothing beside the stamps.
    for (uint64_t page = 0; page < pages; page++) {
        unsigned char data[PAGE];
        MUST(pread(fd, data, PAGE, (off_t)(page * PAGE)) == PAGE);
        for (uint64_t i = 0; i < PAGE; i++)
            if (data[i] && (i / SLOT >= writers || i % SLOT >= sizeof(struct stamp)))
                FAIL("page %lu, byte %lu: %d, which nobody wrote", page, i, data[i]);
    }
    puts("the file holds what was written");
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4 || (fd = open(argv[2], O_RDWR | O_CREAT, 0644)) < 0) return 2;
    if (!strcmp(argv[1], "check")) return check(argv[3]);
    if (argc < 8) return 2;
    goal = strtoull(argv[4], NULL, 0);
    uint64_t processes = strtoull(argv[5], NULL, 0), threads = strtoull(argv[6], NULL, 0);
    pages = strtoull(argv[7], NULL, 0), writers = processes * threads;
    if (writers > SLOTS || processes < 3) return 2;
    share();
    MUST(ftruncate(fd, 0) == 0 && ftruncate(fd, (off_t)(pages * PAGE)) == 0);
    pid_t pids[SLOTS];
    for (uint64_t p = 0; p < processes; p++) pids[p] = start(p, threads);
    uint64_t random = 5;
    while (shared->writes < goal && !shared->failed) {
        usleep(100000 + next(&random) % 400000);
        kill(pids[processes - 1], SIGKILL);
        MUST(waitpid(pids[processes - 1], NULL, 0) == pids[processes - 1]);
        shared->kills++;
        pids[processes - 1] = start(processes - 1, threads);
    }
    for (uint64_t p = 0; p < processes; p++) {
        int status;
        MUST(waitpid(pids[p], &status, 0) == pids[p]);
        if (status) FAIL("process %lu ended with %x", p, status);
    }
    if (shared->failed) return 1;
    whole = map_file();
    for (uint64_t writer = 0; writer < writers; writer++) take_over(whole, writer);
    MUST(ftruncate(fd, (off_t)(pages * PAGE)) == 0);
    check_all("at the end, mapped", by_map);
    check_all("at the end, by read", by_read);
    FILE *out = fopen(argv[3], "w");
    MUST(out && fwrite(&writers, 8, 1, out) == 1 && fwrite(&pages, 8, 1, out) == 1);
    for (uint64_t i = 0; i < writers * pages; i++) {
        uint64_t done = shared->notes[i].done;
        MUST(fwrite(&done, 8, 1, out) == 1);
    }
    MUST(fclose(out) == 0);
    printf("%lu checked writes (%lu mapped, %lu by write), %lu looks at others', %lu syncs, "
           "%lu forks, %lu moves, %lu kills, %lu lengths\n",
           shared->writes, shared->map_writes, shared->file_writes, shared->reads, shared->syncs,
           shared->forks, shared->moves, shared->kills, shared->lengths);
    return 0;
}
