// `alarm SECONDS PROGRAM...` executes the program, which SIGALRM comes to then. Without arguments it says in how
// many seconds that would have come, and stops it.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc > 2) {
        alarm(atoi(argv[1]));
        execvp(argv[2], argv + 2);
        return 127;
    }
    printf("%u\n", alarm(0));
    return 0;
}
