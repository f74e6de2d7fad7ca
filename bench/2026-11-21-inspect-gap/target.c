// A target with a heap of mixed sizes, and one thread that maps, touches and unmaps memory all the time.
// Each line on the standard input begins a window, the next ends it: the longest gap between two rounds
// of that thread is printed, in microseconds.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static atomic_long longest;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void *loop(void *unused) {
    long last = now();
    for (;;) {
        char *block = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) abort();
        for (int i = 0; i < 1 << 16; i += 4096) block[i] = 1;
        munmap(block, 1 << 16);
        long t = now();
        if (t - last > atomic_load(&longest)) atomic_store(&longest, t - last);
        last = t;
    }
    return unused;
}

int main(int argc, char **argv) {
    size_t wanted = strtoull(argc > 1 ? argv[1] : "512", NULL, 10) << 20, have = 0, count = 0;
    char **blocks = malloc(sizeof *blocks * (1 << 20));
    unsigned seed = 1;
    while (have < wanted && count < 1 << 20) {
        size_t size = 16 + rand_r(&seed) % 65520;
        blocks[count] = malloc(size);
        memset(blocks[count++], 1, size);
        have += size;
    }
    for (size_t i = 0; i < count; i++)
        if (rand_r(&seed) % 10) free(blocks[i]);
    pthread_t thread;
    pthread_create(&thread, NULL, loop, NULL);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        atomic_store(&longest, 0);
        if (!fgets(line, sizeof line, stdin)) break;
        printf("%.1f\n", atomic_load(&longest) / 1e3);
        fflush(stdout);
    }
    return 0;
}
