/* Allocates 120,000 blocks of 1,500 bytes, writes to them, frees all but each 500th, and waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 120000, KEPT = 500, BYTES = 1500 };

int main(void) {
    static char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
    for (int i = 0; i < BLOCKS; i++)
        if (i % KEPT) free(blocks[i]);
    puts("ready");
    fflush(stdout);
    for (;;) {
        usleep(200000);
        free(malloc(100));
    }
}
