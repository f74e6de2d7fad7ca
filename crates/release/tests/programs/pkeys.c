/* A program whose thread has a hoard in an arena of its own, which protection keys deny to all threads: pkeys RIGHTS.
 * RIGHTS: "none" (no access), or "read" (the first thread may read it).
 *
 * Prints "ready PID", or "unsupported". For each line of its input, it prints "alive". */
#define _GNU_SOURCE
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEAP_BYTES (64ul << 20)

static void *kept;
static pthread_barrier_t barrier;

static void *hoard(void *unused) {
    enum { BLOCKS = 5000 };
    static void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(4000), 1, 4000);
    kept = blocks[BLOCKS - 1];
    for (int i = 0; i < BLOCKS - 1; i++) free(blocks[i]);
    pthread_barrier_wait(&barrier);
    for (;;) poll(0, 0, 100);
    return unused;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    pthread_barrier_init(&barrier, 0, 2);
    pthread_t thread;
    pthread_create(&thread, 0, hoard, 0);
    pthread_barrier_wait(&barrier);
    int key = pkey_alloc(0, strcmp(arguments[1], "read") ? PKEY_DISABLE_ACCESS : PKEY_DISABLE_WRITE);
    char *heap = (char *)((unsigned long)kept & ~(HEAP_BYTES - 1));
    if (key < 0 || pkey_mprotect(heap, 8 << 20, PROT_READ | PROT_WRITE, key)) {
        puts("unsupported");
        return 0;
    }
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[40];
    while (fgets(line, sizeof line, stdin)) {
        puts("alive");
        fflush(stdout);
    }
    _exit(0);
}
