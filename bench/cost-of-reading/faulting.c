/* A server whose requests fault pages in: faulting HEAP_MB THREADS.
 *
 * It holds a heap of blocks of 100 to 2000 B, of which every second one is freed. Each thread serves 500 requests per
 * second: it maps 256 KiB, writes each page, and unmaps it. A command in its input, "SECONDS", begins a measurement; it
 * answers with the number of requests, and the 50th, 99th, 99.9th percentile and the maximum of their durations in us. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MOST = 1 << 20, BYTES = 256 << 10, PERIOD_US = 2000 };
static _Atomic int is_measuring;
static _Atomic long count;
static float took[MOST];

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void *serve(void *unused) {
    (void)unused;
    for (;;) {
        struct timespec pause = {0, PERIOD_US * 1000};
        nanosleep(&pause, 0);
        double begin = now_us();
        char *pages = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (long at = 0; at < BYTES; at += 4096) pages[at] = 1;
        munmap(pages, BYTES);
        double end = now_us();
        if (is_measuring) {
            long place = count++;
            if (place < MOST) took[place] = end - begin;
        }
    }
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int argument_count, char **arguments) {
    if (argument_count < 3) return 2;
    long left = atol(arguments[1]) << 20;
    static char *kept[1 << 22];
    uint64_t seed = 1;
    for (long i = 0; left > 0 && i < 1 << 22; i++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        size_t bytes = 100 + (seed >> 33) % 1900;
        kept[i] = malloc(bytes);
        memset(kept[i], 1, bytes);
        left -= bytes;
        if (i % 2) free(kept[i - 1]);
    }
    for (int i = 0; i < atoi(arguments[2]); i++) {
        pthread_t thread;
        pthread_create(&thread, 0, serve, 0);
    }
    printf("ready\n");
    fflush(stdout);
    int seconds;
    while (scanf("%d", &seconds) == 1) {
        count = 0;
        is_measuring = 1;
        struct timespec time = {seconds, 0};
        nanosleep(&time, 0);
        is_measuring = 0;
        long all = count < MOST ? count : MOST;
        qsort(took, all, sizeof *took, compare);
        printf("%ld %.1f %.1f %.1f %.1f\n", all, took[all / 2], took[all * 99 / 100], took[all * 999 / 1000], took[all - 1]);
        fflush(stdout);
    }
}
