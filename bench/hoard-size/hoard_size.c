/* The hoard of the post, at its size, on a machine with less memory: hoard_size MARGIN_MB.
 *
 * 100 arenas have 137 GB of free memory in 511,290 blocks: one has 15.5 GB in 901 blocks, the others share the rest. All
 * pages have the same content, and the process lets the kernel merge them (PR_SET_MEMORY_MERGE, Linux 6.4): RSS counts all
 * of them, although few take memory. It allocates no faster than the kernel merges: it waits while less than MARGIN_MB are
 * available. As root, before: echo 1 > /sys/kernel/mm/ksm/run. Prints "ready" when all is freed, and then waits. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif
enum { ARENAS = 100, BLOCKS = 511290, FEW = 901, MOST = 5200 };
static const double ALL = 137e9, ONE = 15.5e9;
static long margin_kb;
static _Atomic int done;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static long available_kb(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[100];
    long kb = 0;
    while (fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %ld", &kb) != 1) {}
    fclose(file);
    return kb;
}

static void *fill(void *number) {
    long place = (long)number;
    size_t count = place ? (BLOCKS - FEW + place - 1) / (ARENAS - 1) : FEW;
    size_t bytes = place ? (ALL - ONE) / (BLOCKS - FEW) : ONE / FEW;
    static _Thread_local char *blocks[MOST], *between[MOST];
    /* One arena at a time: none waits for another's lock. */
    pthread_mutex_lock(&turn);
    for (size_t i = 0; i < count; i++) {
        if (i % (place ? 64 : 1) == 0)
            while (available_kb() < margin_kb) usleep(100000);
        blocks[i] = malloc(bytes);
        memset(blocks[i], 0x5a, bytes);
        /* Without a block in use between them, they would be one. */
        between[i] = malloc(24);
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    pthread_mutex_unlock(&turn);
    done++;
    fprintf(stderr, "arena %ld of %d\n", place + 1, ARENAS);
    pause();
    return between[0];
}

int main(int argument_count, char **arguments) {
    margin_kb = argument_count > 1 ? atol(arguments[1]) << 10 : 6 << 20;
    if (prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0)) {
        perror("PR_SET_MEMORY_MERGE");
        return 1;
    }
    mallopt(M_ARENA_MAX, ARENAS + 1);
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the maximum */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    pthread_t threads[ARENAS];
    for (long i = 0; i < ARENAS; i++) pthread_create(&threads[i], 0, fill, (void *)i);
    while (done < ARENAS) usleep(100000);
    printf("ready\n");
    fflush(stdout);
    pause();
}
