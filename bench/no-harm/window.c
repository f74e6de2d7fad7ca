/* For how long a thread of lowtide keeps privileges that the process has dropped: the program hoards memory. It drops root
 * some milliseconds (its argument) after it sees a new thread, and prints the time, in µs, from the return of setuid until
 * that thread has ended. */
#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 1500, BLOCKS = 300000, KEEP = 32 };

static void *rest(void *unused) {
    for (;;) pause();
    return unused;
}

static int highest(void) {
    DIR *tasks = opendir("/proc/self/task");
    int most = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        int tid = atoi(task->d_name);
        if (tid > most) most = tid;
    }
    closedir(tasks);
    return most;
}

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

int main(int count, char **words) {
    static char *all[BLOCKS];
    char path[60];
    pthread_t thread;
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, rest, 0);
    for (int i = 0; i < BLOCKS; i++) all[i] = memset(malloc(BLOCK), 1, BLOCK);
    for (int i = 0; i < BLOCKS; i++)
        if (i % KEEP) free(all[i]);
    int own = highest(), tid;
    puts("ready");
    fflush(stdout);
    for (long end = now() + 300000000; (tid = highest()) == own;)
        if (now() > end) return 1;
    if (count > 1) usleep(atoi(words[1]) * 1000);
    snprintf(path, sizeof path, "/proc/self/task/%d", tid);
    if (access(path, F_OK)) return 3;
    if (setuid(65534)) return 2;
    long begin = now();
    while (!access(path, F_OK)) continue;
    printf("%ld\n", now() - begin);
    return 0;
}
