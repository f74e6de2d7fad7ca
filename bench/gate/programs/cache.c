// A burst of blocks in several threads, of which a part stays: what a cache, a registry or a leak
// keeps.
//   cache KEEP_KIB THREADS SIZE
// Each thread allocates 12 MiB in blocks of random sizes and frees them; among them are blocks of
// SIZE bytes that stay, KEEP_KIB KiB in all. Then it prints `done` and waits.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static size_t keep_each, size;
static void **kept[16];

static void *work(void *place) {
    size_t which = (size_t)place, count = 12 * 1024, of = 0, wanted = keep_each / size;
    unsigned seed = (unsigned)time(NULL) * 31 + (unsigned)getpid() * 7 + (unsigned)which;
    void **blocks = calloc(count, sizeof *blocks);
    kept[which] = calloc(wanted + 1, sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 64 + rand_r(&seed) % 1920;
        blocks[i] = malloc(bytes);
        memset(blocks[i], 1, bytes);
        while (of < wanted * (i + 1) / count) {
            kept[which][of] = malloc(size);
            memset(kept[which][of++], 1, size);
        }
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    free(blocks);
    return NULL;
}

int main(int words, char **word) {
    if (words < 4) return 2;
    size_t threads = (size_t)atoi(word[2]);
    if (threads < 1 || threads > 16) return 2;
    keep_each = (size_t)atol(word[1]) * 1024 / threads;
    size = (size_t)atol(word[3]);
    alarm(300);
    pthread_t all[16];
    for (size_t i = 0; i < threads; i++) pthread_create(&all[i], NULL, work, (void *)i);
    for (size_t i = 0; i < threads; i++) pthread_join(all[i], NULL);
    puts("done");
    fflush(stdout);
    pause();
    return 0;
}
