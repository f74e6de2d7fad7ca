// A heap of musl with a list of its own: threads allocate, resize and free blocks of many sizes at random, and wait. The program
// then writes the address and the requested size of each of its blocks to stdout, and waits until stdin is closed. It takes its
// tables from mmap, so that no other block is on the heap.
//
//   musl THREADS SEED
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 4000, STEPS = 60000, MAX_THREADS = 8 };
struct block { char *at; size_t bytes; };
static struct block *blocks[MAX_THREADS];
static uint64_t states[MAX_THREADS];
static pthread_barrier_t all;

static uint64_t next(int thread) {
    uint64_t x = states[thread];
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return states[thread] = x;
}

static size_t size(int thread) {
    uint64_t choice = next(thread) % 64, x = next(thread);
    return choice < 40 ? x % 300 : choice < 52 ? x % 4000 : choice < 60 ? x % 20000 : choice < 63 ? x % 130000 : 131000 + x % 2000000;
}

static void *work(void *number) {
    int thread = (intptr_t)number;
    for (int step = 0; step < STEPS; step++) {
        struct block *block = blocks[thread] + next(thread) % BLOCKS;
        size_t bytes = size(thread);
        uint64_t choice = next(thread) % 8;
        if (!block->at) {
            if (choice == 0) block->at = calloc(1, bytes);
            else if (choice == 1) block->at = aligned_alloc(16u << next(thread) % 17, bytes);
            else block->at = malloc(bytes);
            block->bytes = bytes;
        } else if (choice == 2 && bytes) {
            block->at = realloc(block->at, bytes);
            block->bytes = bytes;
        } else {
            free(block->at);
            block->at = 0;
        }
        // Slots that were not written to do not have to be read.
        if (block->at) memset(block->at, 1, block->bytes);
    }
    pthread_barrier_wait(&all);
    for (;;) pause();
    return 0;
}

int main(int count, char **words) {
    if (count < 3) return 2;
    int threads = atoi(words[1]);
    if (threads < 1 || threads > MAX_THREADS) return 2;
    pthread_barrier_init(&all, 0, threads + 1);
    for (int i = 0; i < threads; i++) {
        blocks[i] = mmap(0, BLOCKS * sizeof **blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        states[i] = 88172645463325252ull + strtoull(words[2], 0, 10) * 7919 + i;
        pthread_t thread;
        if (pthread_create(&thread, 0, work, (void *)(intptr_t)i)) return 4;
    }
    pthread_barrier_wait(&all);
    for (int i = 0; i < threads; i++)
        for (int j = 0; j < BLOCKS; j++)
            if (blocks[i][j].at) printf("%llx %zu\n", (unsigned long long)(uintptr_t)blocks[i][j].at, blocks[i][j].bytes);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF);
    return 0;
}
