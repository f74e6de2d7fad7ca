/*
 * How the totals of malloc_info come apart: in each arena, a block in use lies at 70 % of a burst, and all else is freed.
 *
 *   cc -O2 -pthread -o shrink shrink.c && ./shrink
 */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 16, BLOCKS = 8000, SIZE = 4000, KEPT = BLOCKS * 7 / 10, SMALL = 40, MAPPED = 12 };
static pthread_barrier_t full;

static void *burst(void *nothing)
{
    static _Thread_local char *blocks[BLOCKS], *small[SMALL];
    for (int i = 0; i < SMALL; i++)
        small[i] = malloc(40);
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i] = malloc(SIZE), 1, SIZE);
    pthread_barrier_wait(&full);
    for (int i = 0; i < BLOCKS; i++)
        if (i != KEPT)
            free(blocks[i]);
    for (int i = 0; i < SMALL; i++)
        free(small[i]);
    pthread_barrier_wait(&full);
    return nothing;
}

int main(void)
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&full, NULL, THREADS);
    for (int i = 0; i < MAPPED; i++)
        if (!malloc((size_t)8 << 20))
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, burst, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return malloc_info(0, stdout);
}
