// Large blocks of which one page in 256 is written.
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    enum { BLOCKS = 10, BYTES = 20 << 20 };
    for (int i = 0; i < BLOCKS; i++) {
        char *block = calloc(1, BYTES);
        for (int at = 0; at < BYTES; at += 1 << 20) block[at] = 1;
    }
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
