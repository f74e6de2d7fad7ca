/* A program whose freed memory comes back on request: refault MEGABYTES small|huge.
 *
 * It fills its heap with blocks, in pages of 4 KiB or in huge pages. It frees all blocks of the first third, every
 * second block of the next third, and none of the rest. It prints "ready", then does what its input says, a line each,
 * and prints "done":
 *
 *   touch     allocates half of the freed blocks again, and writes to them
 *   share     replaces all free whole pages with shared memory, and writes to it
 *   collapse  makes the kernel put the whole heap into huge pages
 *   exec      executes itself anew ("ready" instead of "done")
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { BLOCK = 40000, MOST = 1 << 16, PAGE = 4096, HUGE = 2 << 20 };
static char *block[MOST];
static bool is_free[MOST];
static int count;

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0) _exit(3);
}

static char *aligned(char *at, uintptr_t unit, uintptr_t plus) {
    return (char *)(((uintptr_t)at + plus) / unit * unit);
}

/* Applies the advice to the whole heap, up to an address. */
static void advise(int advice, char *end) {
    char *from = aligned(block[0], HUGE, HUGE - 1), *to = aligned(end, HUGE, 0);
    if (to > from && madvise(from, to - from, advice)) _exit(4);
}

static void fill(int megabytes, bool is_huge) {
    count = (int)(((long)megabytes << 20) / BLOCK);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, (megabytes + 8) << 20);
    for (int i = 0; i < count; i++) {
        if (!(block[i] = malloc(BLOCK))) _exit(4);
        /* The heap has its final size now, and none of its other pages is present. */
        if (i == 0) advise(is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE, sbrk(0));
        memset(block[i], 1, BLOCK);
    }
    for (int i = 0; i < count * 2 / 3; i++)
        if (i < count / 3 || i % 2) {
            free(block[i]);
            is_free[i] = true;
        }
}

static void touch(void) {
    int freed = 0;
    for (int i = 0; i < count; i++) freed += is_free[i];
    for (int i = 0, taken = 0; taken < freed / 2; i++) {
        if (!is_free[i]) continue;
        if (!(block[i] = malloc(BLOCK))) _exit(4);
        memset(block[i], 2, BLOCK);
        is_free[i] = false;
        taken++;
    }
}

static void share(void) {
    for (int i = 0; i < count; i++) {
        char *from = aligned(block[i], PAGE, PAGE), *to = aligned(block[i] + BLOCK - 16, PAGE, 0);
        int kind = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
        if (!is_free[i]) continue;
        if (mmap(from, to - from, PROT_READ | PROT_WRITE, kind, -1, 0) == MAP_FAILED) _exit(4);
        memset(from, 3, to - from);
    }
}

static void collapse(void) {
    advise(MADV_HUGEPAGE, block[count - 1]);
    advise(MADV_COLLAPSE, block[count - 1]);
}

int main(int words, char **word) {
    char line[64];
    if (words != 3) return 2;
    fill(atoi(word[1]), !strcmp(word[2], "huge"));
    say("ready\n");
    for (size_t length = 0; read(0, line + length, 1) == 1;) {
        if (line[length] != '\n' && ++length < sizeof line - 1) continue;
        line[length] = 0;
        length = 0;
        if (!strcmp(line, "touch")) touch();
        else if (!strcmp(line, "share")) share();
        else if (!strcmp(line, "collapse")) collapse();
        else if (!strcmp(line, "exec")) execv(word[0], word);
        else return 2;
        say("done\n");
    }
    _exit(0);
}
