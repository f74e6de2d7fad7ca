// A process of some size: blocks of 100 to 2,000 bytes, of which half are free. At each SIGUSR1 its memory in use grows by a
// fifth, or shrinks by as much, in turn. The argument is its size in MiB.
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void *fill(size_t bytes, size_t *count) {
    void **blocks = malloc((bytes / 1050 + 1) * sizeof *blocks);
    size_t used = 0;
    for (*count = 0; used < bytes; (*count)++) {
        size_t size = 100 + rand() % 1900;
        blocks[*count] = memset(malloc(size), 1, size);
        used += size;
        if (*count + 1 >= bytes / 1050 + 1) break;
    }
    return blocks;
}

static void drop(void **blocks, size_t count, size_t step) {
    for (size_t i = 0; i < count; i += step) free(blocks[i]);
}

int main(int words, char **word) {
    size_t bytes = (words > 1 ? strtoull(word[1], 0, 10) : 10) << 20, count = 0, more = 0;
    void **blocks = fill(bytes, &count), **added = 0;
    drop(blocks, count, 2);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, 0);
    for (int got;;) {
        if (sigwait(&set, &got)) return 1;
        if (added) {
            drop(added, more, 1);
            free(added);
            added = 0;
            malloc_trim(0);
        } else {
            added = fill(bytes / 5 + bytes / 2, &more);
        }
    }
}
