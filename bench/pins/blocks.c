// Allocates COUNT blocks of 12 sizes from SMALLEST on, in steps of STEP bytes, and frees all but KEPT
// of 16 of them, in a pattern. A table holds those that stay.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void **table;

int main(int words, char **word) {
    if (words < 5) return 2;
    long count = atol(word[1]), smallest = atol(word[2]), step = atol(word[3]), kept = atol(word[4]);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    table = malloc(count * sizeof *table);
    unsigned random = 3;
    for (long i = 0; i < count; i++) {
        random = random * 1664525 + 1013904223;
        size_t size = smallest + (random >> 12) % 12 * step;
        table[i] = memset(malloc(size), 1, size);
    }
    for (long i = 0; i < count; i++) {
        if (i * 7919 % 16 < kept) continue;
        free(table[i]);
        table[i] = NULL;
    }
    puts("ready");
    fflush(stdout);
    alarm(1800);
    pause();
}
