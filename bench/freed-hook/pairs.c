/* pairs THREADS MIN MAX PAIRS: each thread replaces random ones of 512 blocks, of random sizes from MIN to MAX bytes.
 * Prints the CPU time of the threads per pair of malloc and free, in ns. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SLOTS = 512, DRAWS = 1 << 14 };

static uint32_t size_of[DRAWS], slot_of[DRAWS];
static long pairs;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void replace(char **slots, long count) {
    for (long i = 0; i < count; i++) {
        char **slot = &slots[slot_of[i % DRAWS]];
        free(*slot);
        *slot = malloc(size_of[i % DRAWS]);
        **slot = 1;
    }
}

static void *run(void *result) {
    char *slots[SLOTS] = {0};
    replace(slots, DRAWS * 4);
    double begin = now();
    replace(slots, pairs);
    *(double *)result = (now() - begin) / pairs;
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    int threads = atoi(arguments[1]), min = atoi(arguments[2]), max = atoi(arguments[3]);
    pairs = atol(arguments[4]);
    uint64_t state = 1;
    for (int i = 0; i < DRAWS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        slot_of[i] = (state >> 33) % SLOTS;
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_of[i] = min + (state >> 33) % (max - min + 1);
    }
    pthread_t all[64];
    double time[64], sum = 0;
    if (threads < 1 || threads > 64) return 2;
    for (int i = 0; i < threads; i++) pthread_create(&all[i], NULL, run, &time[i]);
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL), sum += time[i];
    printf("%.4f\n", sum / threads);
    return 0;
}
