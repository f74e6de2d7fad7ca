/* A program that hoards memory again and again, and two threads of it that allocate and free all the time.
 *
 *   gaps MIB THREADS
 *
 * For each line of its input: `hoard` fills MIB MiB in THREADS arenas, frees all but one block in 64, and prints "ready";
 * `gap` prints the longest time, in ns, between two allocations since the last such line. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK = 1500, KEEP = 64, WORKERS = 2, BLOCKS_OF_WORKER = 4096 };
static long blocks;
static _Atomic long longest[WORKERS];
static pthread_barrier_t barrier;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void *hoard(void *unused) {
    char **all = calloc(blocks, sizeof *all);
    (void)unused;
    for (;;) {
        pthread_barrier_wait(&barrier);
        for (long i = 0; i < blocks; i++)
            if (!all[i]) all[i] = memset(malloc(BLOCK), 1, BLOCK);
        for (long i = 0; i < blocks; i++)
            if (i % KEEP) free(all[i]), all[i] = 0;
        pthread_barrier_wait(&barrier);
    }
}

static void *work(void *own) {
    _Atomic long *most = own;
    static __thread char *all[BLOCKS_OF_WORKER];
    unsigned draw = (unsigned)(size_t)own;
    for (long before = now();;) {
        draw = draw * 1103515245 + 12345;
        char **block = &all[draw >> 16 & (BLOCKS_OF_WORKER - 1)];
        free(*block);
        *block = memset(malloc(draw >> 8 & 4095), 2, draw >> 8 & 4095);
        long here = now();
        if (here - before > *most) *most = here - before;
        before = here;
    }
}

int main(int count, char **words) {
    if (count != 3) return 2;
    int threads = atoi(words[2]);
    char line[16];
    blocks = (atol(words[1]) << 20) / threads / (BLOCK + 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_ARENA_MAX, threads + WORKERS + 1);
    pthread_barrier_init(&barrier, 0, threads + 1);
    pthread_t thread;
    for (int i = 0; i < threads; i++) pthread_create(&thread, 0, hoard, 0);
    for (int i = 0; i < WORKERS; i++) pthread_create(&thread, 0, work, (void *)&longest[i]);
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'h') {
            pthread_barrier_wait(&barrier);
            pthread_barrier_wait(&barrier);
            puts("ready");
        } else {
            long most = 0;
            for (int i = 0; i < WORKERS; i++) {
                long one = longest[i];
                longest[i] = 0;
                if (one > most) most = one;
            }
            printf("%ld\n", most);
        }
        fflush(stdout);
    }
    return 0;
}
