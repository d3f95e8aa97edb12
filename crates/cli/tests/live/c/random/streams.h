// Operations on streams. Each opens one, and closes it in the end: between that nothing else changes
// the file, of which a stream may have read a part already, as much as it has room for.

struct stream {
    FILE *file;
    int may_read, may_write;
    // What was done last: between a read and a write, and back, it must be moved or flushed.
    enum { NOTHING, READ, WRITE } last;
};

static void set_buffer(FILE *file) {
    static char buffer[70000];
    static const int modes[] = {_IONBF, _IOLBF, _IOFBF, _IOFBF};
    int mode = ANY(modes);
    size_t bytes = (size_t)below(one_in(3) ? 60000 : 4096) + 1;
    // As it is by default.
    if (one_in(4)) return;
    char *own = mode == _IONBF || one_in(3) ? NULL : buffer;
    say(", buffer %d of %zu", mode, bytes);
    say_result("setvbuf", setvbuf(file, own, mode, bytes));
}

static void set_stream(struct stream *stream, FILE *file, const char *mode) {
    int updates = strchr(mode, '+') != NULL;
    *stream = (struct stream){file, mode[0] == 'r' || updates, mode[0] != 'r' || updates, NOTHING};
}

static FILE *from_descriptor(const char *name, const char *mode) {
    int fd = open(name, O_RDWR);
    if (fd < 0) return NULL;
    if (one_in(2)) lseek(fd, any_offset(), SEEK_SET);
    FILE *file = fdopen(fd, mode);
    if (!file) close(fd);
    return file;
}

static void turn_to(struct stream *stream, int what) {
    if (stream->last != NOTHING && (int)stream->last != what) {
        // What was read ahead is given up by a move only.
        if (stream->last == WRITE && one_in(2)) say_result("fflush", fflush(stream->file));
        else say_result("fseek", fseek(stream->file, 0, SEEK_CUR));
    }
    stream->last = what == READ ? READ : WRITE;
}

// ---- reading --------------------------------------------------------------------------------------

static void read_items(FILE *file) {
    size_t bytes = any_length(), size = one_in(3) ? (size_t)below(100) + 1 : 1;
    size_t items = one_in(3) ? fread_unlocked(room, size, bytes / size, file)
                             : fread(room, size, bytes / size, file);
    say("; fread %zu of %zu", items, size);
    say_memory(room, items * size);
}

static void read_character(FILE *file) {
    int byte = one_in(3) ? getc_unlocked(file) : one_in(2) ? fgetc(file) : getc(file);
    say("; getc: %d", byte);
    if (byte == EOF || !one_in(3)) return;
    // Where another byte that was pushed back is still there, what `fflush` does is up to the buffer.
    say(", ungetc: %d", ungetc(one_in(2) ? byte : 'Z', file));
    say(", getc: %d", fgetc(file));
}

static void read_line(FILE *file) {
    char line[300];
    const char *read = fgets(line, 1 + below(sizeof line - 1), file);
    say("; fgets: %lx", read ? checksum(line, strlen(line)) : 0);
}

static void read_long_line(FILE *file) {
    char *line = NULL;
    size_t room_bytes = 0;
    ssize_t done = one_in(2) ? getline(&line, &room_bytes, file)
                             : getdelim(&line, &room_bytes, below(256), file);
    say("; getline: %ld, %lx", (long)done, done > 0 ? checksum(line, (size_t)done) : 0);
    free(line);
}

static void read_words(FILE *file) {
    char word[32] = "";
    int number = 0, done = one_in(2) ? fscanf(file, "%20s", word) : fscanf(file, "%d", &number);
    say("; fscanf: %d, %lx, %d", done, checksum(word, strlen(word)), number);
    if (one_in(2)) say("; getw: %d", getw(file));
}

static void read_stream(struct stream *stream) {
    if (!stream->may_read) return;
    turn_to(stream, READ);
    switch (below(6)) {
    case 0:
    case 1: read_items(stream->file); break;
    case 2: read_character(stream->file); break;
    case 3: read_line(stream->file); break;
    case 4: read_long_line(stream->file); break;
    default: read_words(stream->file); break;
    }
    say(", at end %d, error %d", feof(stream->file) != 0, ferror(stream->file) != 0);
}

// ---- writing --------------------------------------------------------------------------------------

static void write_stream(struct stream *stream) {
    FILE *file = stream->file;
    if (!stream->may_write) return;
    turn_to(stream, WRITE);
    size_t bytes = any_length();
    switch (below(6)) {
    case 0:
    case 1:
        fill(room, bytes < 300000 ? bytes : 300000);
        say("; fwrite: %zu", (one_in(3) ? fwrite_unlocked : fwrite)(room, 1, bytes, file));
        break;
    case 2: say("; fputc: %d", fputc(below(256), file)); break;
    case 3: say("; fputs: %d", fputs("some text\nand more\n", file) >= 0); break;
    case 4: {
        int width = below(one_in(10) ? 9000 : 99) + 1;
        say("; fprintf: %d", fprintf(file, "%d %0*d\n", below(1000), width, 5));
        break;
    }
    default: say("; putw: %d", putw(below(1000000), file)); break;
    }
}

// ---- moving, flushing and reopening ---------------------------------------------------------------

static void seek_stream(struct stream *stream) {
    int whence = one_in(20) ? 9 : below(3);
    off_t offset = whence == SEEK_SET   ? any_offset()
                   : whence == SEEK_END ? -below(20000)
                                        : below(20000) - 10000;
    int result = (one_in(2) ? fseeko : fseek)(stream->file, offset, whence);
    say("; fseek %ld from %d: %d", (long)offset, whence, result);
    if (result == 0) stream->last = NOTHING;
}

static void return_to_place(struct stream *stream) {
    fpos_t place;
    int result = fgetpos(stream->file, &place);
    say_result("fgetpos", result);
    if (result != 0) return;
    read_stream(stream);
    say_result("fsetpos", fsetpos(stream->file, &place));
    stream->last = NOTHING;
}

static void flush_stream(struct stream *stream) {
    say_result("fflush", fflush(one_in(4) ? NULL : stream->file));
    // What a stream wrote is where others read.
    if (stream->last == WRITE) say_read(room, pread(fileno(stream->file), room, 5000, any_offset()));
}

static void move_stream(struct stream *stream) {
    switch (below(6)) {
    case 0:
    case 1: seek_stream(stream); break;
    case 2: return_to_place(stream); break;
    case 3: rewind(stream->file), stream->last = NOTHING, say("; rewind"); break;
    case 4: flush_stream(stream); break;
    default: clearerr(stream->file); break;
    }
    say("; ftell: %ld", ftell(stream->file));
}

static const char *const modes[] = {"r", "r+", "r+", "w+", "a", "a+", "r+", "w", "r+e", "w+x", "q"};

static void use_stream(struct stream *stream) {
    int steps = 1 + below(12);
    for (int step = 0; step < steps; step++) {
        switch (below(3)) {
        case 0: read_stream(stream); break;
        case 1: write_stream(stream); break;
        default: move_stream(stream); break;
        }
    }
}

static void stream(void) {
    // Where a stream is after a write that failed is up to its buffer.
    if (is_limited) return;
    const char *name = ANY(names), *mode = ANY(modes);
    int way = below(3);
    struct stream stream;
    say(" %s, mode %s, way %d", name, mode, way);
    FILE *file = way == 0   ? from_descriptor(name, mode)
                 : way == 1 ? fopen(name, mode)
                            : fopen64(name, mode);
    say("; opened: %d", file ? fileno(file) : -1);
    if (!file) return;
    set_stream(&stream, file, mode);
    set_buffer(file);
    use_stream(&stream);
    if (one_in(4)) {
        name = ANY(names), mode = ANY(modes);
        file = freopen(name, mode, file);
        say("; reopened %s, mode %s: %d", name, mode, file ? fileno(file) : -1);
        if (!file) return;
        set_stream(&stream, file, mode);
        use_stream(&stream);
    }
    say_result("fclose", fclose(stream.file));
}
