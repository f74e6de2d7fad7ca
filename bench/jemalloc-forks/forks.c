/* Forks a program whose threads split and merge extents of their allocator, and counts the children that hang.
 *   cc -O1 -pthread -o forks forks.c && LD_PRELOAD=LIBRARY.so ./forks 40 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, BLOCKS = 64, ROUNDS = 4, HANG_MS = 20000, ENOUGH = 3 };

/* A size that has an extent of its own. */
static size_t size(unsigned *seed) { return 36864 + rand_r(seed) % 400000; }

static void *churn(void *number) {
    unsigned seed = (unsigned)(long)number;
    char *blocks[BLOCKS] = {0};
    for (;;) {
        int i = rand_r(&seed) % BLOCKS;
        free(blocks[i]);
        blocks[i] = malloc(size(&seed));
        blocks[i][0] = 1;
    }
    return 0;
}

static void child(void) {
    unsigned seed = 9;
    void *blocks[BLOCKS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(size(&seed));
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    }
    _exit(0);
}

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Returns whether a child has not ended in time. */
static int hangs(pid_t pid) {
    long start = now_ms();
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (now_ms() - start > HANG_MS) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return 1;
        }
        usleep(500);
    }
    return 0;
}

int main(int count, char **arguments) {
    long end = now_ms() + 1000L * (count > 1 ? atoi(arguments[1]) : 40);
    for (long i = 1; i <= THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, churn, (void *)i);
    }
    int forks = 0, hung = 0;
    while (now_ms() < end && hung < ENOUGH) {
        pid_t pid = fork();
        if (pid == 0) child();
        forks++;
        hung += hangs(pid);
    }
    printf("%d forks, %d children hung\n", forks, hung);
    fflush(stdout);
    _exit(0);
}
