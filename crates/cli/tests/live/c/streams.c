// Streams on files, its own and the three that it was started with, of bytes and of wide characters.
// What they say must be the same however the files are served.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <wchar.h>

static long stands(int fd) { return (long)lseek(fd, 0, SEEK_CUR); }

// Whatever a file has, by a descriptor of its own.
static void shows(const char *name) {
    char bytes[200];
    int fd = open(name, O_RDONLY);
    long got = read(fd, bytes, sizeof bytes);
    printf("%s: %ld <%.*s>\n", name, got, (int)got, bytes);
    close(fd);
}

// A long transfer of a stream is made from and to the program's own memory, which may not be touched.
static void long_transfers_fail(void) {
    enum { LONG = 16 * 4096 };
    char bytes[4], *none = mmap(NULL, LONG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FILE *stream = fopen("long", "w+");
    for (int i = 0; i < 3 * LONG; i++) putc('a' + i % 26, stream);
    for (int kind = 0; kind < 5; kind++) {
        freopen(NULL, "r+", stream);
        if (kind == 1) setvbuf(stream, NULL, _IONBF, 0);
        if (kind == 2) fseek(stream, 100, SEEK_SET);
        // As many as its last half is long can be had.
        if (kind == 3) mprotect(none, LONG / 2, PROT_READ | PROT_WRITE);
        errno = 0;
        size_t done = kind == 4 ? fwrite(none + LONG / 2, 1, LONG, stream) : fread(none, 1, LONG, stream);
        printf("%zu: %d %d at %ld", done, errno == EFAULT, ferror(stream) != 0, ftell(stream));
        clearerr(stream);
        fseek(stream, 0, SEEK_CUR);
        printf(", %zu %.4s\n", fread(bytes, 1, 4, stream), bytes);
    }
    fclose(stream);
}

int main(void) {
    setlocale(LC_ALL, "C.UTF-8");
    wchar_t line[100];

    // Standard error: by lines once it was asked for, by calls before.
    fputs("at once,", stderr);
    printf("%ld\n", stands(2));
    errno = ENOENT;
    perror("in between");
    printf("%ld\n", stands(2));
    printf("not used: %d\n", fwide(stderr, 0));
    setvbuf(stderr, NULL, _IOLBF, 0);
    fputs("a", stderr), fputs(" line", stderr);
    printf("%ld\n", stands(2));
    fputs("\n", stderr);
    printf("%ld\n", stands(2));
    shows("err");

    // Standard input, wide.
    while (fgetws(line, 100, stdin)) printf("%d %lc\n", (int)wcslen(line), (wint_t)line[1]);
    printf("%d at the end: %d, %ld\n", fwide(stdin, 0), feof(stdin), stands(0));

    FILE *wide = fopen("wide", "w+");
    printf("%d\n", fwide(wide, 0));
    printf("%d\n", fwide(wide, 1));
    printf("%d\n", fwprintf(wide, L"%ls %d\n", L"gr\xfc\xdf", 7));
    printf("%d\n", fputws(L"zwei\n", wide) >= 0);
    for (int i = 0; i < 9000; i++) putwc(L'a' + i % 26, wide);
    printf("%ld\n", (rewind(wide), ftell(wide)));
    printf("%lc", (wint_t)getwc(wide)), ungetwc(L'G', wide);
    printf("%d\n", fgetws(line, 100, wide) && line[0] == L'G');
    printf("%ld\n", ftell(wide));
    printf("bytes are refused: %d\n", (int)fwrite("x", 1, 1, wide));
    printf("%d\n", fclose(wide));
    shows("wide");

    // A wide one becomes one of bytes, and one of bytes a wide one.
    FILE *again = freopen("second", "w", fopen("first", "w"));
    fputws(L"was first\n", again);
    again = freopen("third", "w", again);
    printf("%d", fputs("bytes\n", again) >= 0);
    again = freopen("fourth", "w", again);
    printf("%d\n", fputws(L"wide\n", again) >= 0);
    printf("%d\n", fclose(again));
    shows("first"), shows("second"), shows("third"), shows("fourth");

    // What is mapped shows what a wide stream wrote.
    FILE *mapped = fdopen(open("mapped", O_RDWR | O_CREAT, 0644), "r+");
    ftruncate(fileno(mapped), 8192);
    char *at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(mapped), 0);
    strcpy(at + 5000, "stored");
    msync(at, 8192, MS_SYNC);
    fputws(L"written\n", mapped);
    fflush(mapped);
    // Not all are told at once.
    for (int i = 0; i < 1000 && *(volatile char *)at != 'w'; i++) usleep(5000);
    printf("%.7s %s\n", at, at + 5000);
    for (int fd = fileno(mapped), i = 0; i < 2; i++) printf("%d", close(i ? fd : dup(fd)));
    printf(" %d\n", fclose(mapped));

    long_transfers_fail();

    // Standard output goes on as a wide one.
    fflush(stdout);
    stdout = freopen(NULL, "a", stdout);
    return wprintf(L"%lc\n", 0x20ac) == 2 && fwide(stdout, 0) > 0 ? 0 : 1;
}
