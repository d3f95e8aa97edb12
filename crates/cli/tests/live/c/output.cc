// Output by C++'s streams and by libc's, which share a buffer. Twice: as a library whose constructors
// run before most (LIBRARY), and as the program that uses it.
#ifdef LIBRARY
#include <iostream>
void out(const char *text) { std::cout << text; }
void in(char *letter) { std::cin >> *letter; }
#else
#include <cstdio>
void out(const char *text);
void in(char *letter);

int main() {
    for (int i = 0; i < 100; i++) {
        char letter = '?';
        in(&letter);
        printf("%d %c%c\n", i, letter, getchar());
        out("cout\n");
    }
    return 0;
}
#endif
