/* A heap of 800 MiB in blocks of 32 to 431 bytes, half of which are freed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 8000000 };

int main(void) {
    static void *blocks[MOST];
    unsigned random = 1;
    size_t bytes = 0, count = 0;
    for (; bytes < (800ul << 20) && count < MOST; count++) {
        random = random * 1103515245 + 12345;
        size_t size = 32 + (random >> 16) % 400;
        blocks[count] = malloc(size);
        memset(blocks[count], 1, size);
        bytes += size;
    }
    for (size_t i = 0; i < count; i++) {
        random = random * 1103515245 + 12345;
        if ((random >> 16) % 2) free(blocks[i]);
    }
    puts("ready");
    fflush(stdout);
    sleep(600);
}
