// Random operations on some files, by all routes to a file that libc has.
//
//     random SEED OPERATIONS DIRECTORY [LEFT_OUT...]
//
// Writes a line for each operation to standard output: what it did, and all that a program sees of
// that (results, errors, sums of what was read, where a signal came). The same seed gives the same
// lines, and leaves the same files in the directory, whatever is between the program and the kernel;
// what may differ (README.md, "Limits today") is left out. Operations whose numbers follow as LEFT_OUT
// (5 or 5-70) are not made, by which a difference can be had with few of them. Output has to be a pipe:
// some children may not make files longer.
#define _GNU_SOURCE
#include "random/shared.h"

#include "random/descriptors.h"
#include "random/mappings.h"
#include "random/processes.h"
#include "random/streams.h"

// Whether it may be made by a child in the midst of another operation.
enum { ANYBODY, PARENT };

static const struct operation {
    int weight, who;
    const char *name;
    void (*run)(void);
} operations[] = {
    {10, ANYBODY, "open", open_file},
    {4, ANYBODY, "close", close_descriptor},
    {4, ANYBODY, "duplicate", duplicate},
    {2, ANYBODY, "change flags", change_flags},
    {6, ANYBODY, "read on", read_on},
    {6, ANYBODY, "read at", read_at},
    {4, ANYBODY, "read parts", read_parts},
    {6, ANYBODY, "write on", write_on},
    {6, ANYBODY, "write at", write_at},
    {4, ANYBODY, "write parts", write_parts},
    {2, ANYBODY, "transfer directly", transfer_directly},
    {2, ANYBODY, "write formatted", write_formatted},
    {4, ANYBODY, "seek", seek},
    {2, ANYBODY, "seek data", seek_data},
    {4, ANYBODY, "set length", set_length},
    {4, ANYBODY, "allocate", allocate},
    {3, ANYBODY, "copy range", copy_range},
    {2, ANYBODY, "send file", send_file},
    {2, ANYBODY, "splice through pipe", splice_through_pipe},
    {2, ANYBODY, "read from pipes", read_from_pipes},
    {1, ANYBODY, "clone range", clone_range},
    {3, ANYBODY, "sync file", sync_file},
    {2, ANYBODY, "advise of file", advise_of_file},
    {4, ANYBODY, "look", look},
    {2, ANYBODY, "set time", set_time},
    {4, ANYBODY, "change names", change_names},
    {3, PARENT, "try locks", try_locks},
    // libc's threads for this are not there in a child.
    {3, PARENT, "transfer later", transfer_later},
    {10, ANYBODY, "map", map},
    {3, ANYBODY, "unmap", unmap},
    {1, ANYBODY, "unmap inside", unmap_inside},
    {10, ANYBODY, "load", load},
    {12, ANYBODY, "store", store},
    {4, ANYBODY, "copy between mappings", copy_between_mappings},
    {2, ANYBODY, "read own memory", read_own_memory},
    {4, ANYBODY, "resize", resize},
    {2, ANYBODY, "move", move},
    {2, ANYBODY, "map twice", map_twice},
    {4, ANYBODY, "protect", protect},
    {6, ANYBODY, "advise", advise},
    {3, ANYBODY, "sync mapping", sync_mapping},
    {1, ANYBODY, "lock and unlock", lock_and_unlock},
    {8, ANYBODY, "stream", stream},
    {5, PARENT, "fork child", fork_child},
    {3, PARENT, "execute", execute},
    {1, PARENT, "run command", run_command},
    {2, ANYBODY, "pass descriptor", pass_descriptor},
    {1, ANYBODY, "get descriptor", get_descriptor},
    {1, ANYBODY, "close several", close_several},
    {4, ANYBODY, "use mapped memory", use_mapped_memory},
    {2, ANYBODY, "run threads", run_threads},
    {1, ANYBODY, "interrupt calls", interrupt_calls},
};

enum { KINDS = sizeof operations / sizeof *operations };

static uint64_t seed;

static const struct operation *any_operation(void) {
    int weights = 0;
    for (int i = 0; i < KINDS; i++) weights += operations[i].weight;
    const struct operation *operation = operations;
    for (int left = below(weights); left >= operation->weight; operation++) left -= operation->weight;
    return operation;
}

static void perform(uint64_t number, const char *indent) {
    take_dice(seed, number);
    const struct operation *operation;
    do operation = any_operation();
    while (is_child && operation->who == PARENT);
    current_number = number;
    say("%s%lu %s:", indent, number, operation->name);
    operation->run();
    say("\n");
}

// ---- the run --------------------------------------------------------------------------------------

// By writes, of which not all is in memory then.
static void make_files(void) {
    for (size_t i = 0; i < sizeof first_lengths / sizeof *first_lengths; i++) {
        int fd = open(names[i], O_RDWR | O_CREAT | O_TRUNC, 0666);
        CHECK(fd > 2);
        fill(room, (size_t)first_lengths[i]);
        CHECK(write(fd, room, (size_t)first_lengths[i]) == first_lengths[i] && close(fd) == 0);
    }
    CHECK(symlink("b", "link") == 0);
}

static void open_some(void) {
    for (int i = 0; i < DESCRIPTORS; i++) descriptors[i] = -1;
    for (int i = 0; i < 4; i++) descriptors[i] = open(names[i], O_RDWR);
}

static int is_left_out(uint64_t number, char *const *ranges) {
    for (; *ranges; ranges++) {
        char *end;
        uint64_t first = strtoull(*ranges, &end, 10);
        uint64_t last = *end == '-' ? strtoull(end + 1, NULL, 10) : first;
        if (first <= number && number <= last) return 1;
    }
    return 0;
}

static void get_ready(void) {
    ssize_t bytes = readlink("/proc/self/exe", own_path, sizeof own_path - 1);
    CHECK(bytes > 0);
    room = aligned_alloc(PAGE, ROOM);
    CHECK(room && signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    memset(room, 0, ROOM);
    umask(0);
    expect_faults();
}

int main(int count, char **arguments) {
    get_ready();
    if (count == 4 && strcmp(arguments[1], "executed") == 0)
        return use_inherited(atoi(arguments[2]), strtoull(arguments[3], NULL, 10));
    CHECK(count >= 4);
    seed = strtoull(arguments[1], NULL, 10);
    uint64_t last = strtoull(arguments[2], NULL, 10);
    CHECK(chdir(arguments[3]) == 0);
    take_dice(seed, 0);
    make_files();
    open_some();
    for (uint64_t number = 1; number <= last; number++)
        if (!is_left_out(number, arguments + 4)) perform(number, "");
    say("at the end");
    say_files();
    say("\n");
    return 0;
}
