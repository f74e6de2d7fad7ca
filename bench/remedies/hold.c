// Memory that was freed and is still held, in one form: top, arenas, caches, free, scattered.
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *block(size_t size) { return memset(malloc(size), 1, size); }

// Allocates blocks of 2 to 16 KiB, and frees all but the first hundredth, or every fiftieth.
static void hold(size_t bytes, int between) {
    size_t count = bytes / 9216;
    void **all = malloc(count * sizeof *all);
    for (size_t i = 0; i < count; i++) all[i] = block(2048 + i * 7919 % 14336);
    for (size_t i = count; i-- > 0;)
        if (between ? i % 50 : i >= count / 100) free(all[i]);
}

static sem_t done;

// One thread after the other needs much memory for a while.
static void *of_thread(void *unused) {
    hold(20 << 20, 1);
    sem_post(&done);
    pause();
    return unused;
}

// A thread that has freed some blocks of each size that a cache keeps.
static void *idle(void *unused) {
    enum { SIZES = 64, EACH = 7 };
    void *all[SIZES][EACH];
    for (int size = 0; size < SIZES; size++)
        for (int i = 0; i < EACH; i++) all[size][i] = block(24 + 16 * size);
    for (int size = 0; size < SIZES; size++)
        for (int i = 0; i < EACH; i++) free(all[size][i]);
    sem_post(&done);
    pause();
    return unused;
}

int main(int argc, char **argv) {
    const char *form = argc > 1 ? argv[1] : "free";
    pthread_t thread;
    if (!strcmp(form, "top")) {
        free(block(30 << 20)); // Raises the thresholds.
        hold(50 << 20, 0);
    } else if (!strcmp(form, "arenas")) {
        for (int i = 0; i < 12; i++) {
            pthread_create(&thread, 0, of_thread, 0);
            sem_wait(&done);
        }
    } else if (!strcmp(form, "caches")) {
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 64 << 10);
        for (int i = 0; i < 400; i++) {
            pthread_create(&thread, &small, idle, 0);
            sem_wait(&done);
        }
    } else if (!strcmp(form, "scattered")) {
        enum { COUNT = 900000 };
        static void *all[COUNT];
        for (int i = 0; i < COUNT; i++) all[i] = block(i % 15 ? 240 : 64);
        for (int i = 0; i < COUNT; i++) if (i % 15) free(all[i]);
    } else
        hold(200 << 20, 0);
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
