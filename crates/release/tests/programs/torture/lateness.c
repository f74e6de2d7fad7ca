/* Runs waits of each kind one after another, and records their errors and their lateness. */
#include "torture.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>

struct waiter *waiters;
int waiter_count;
static long tick;

void waits_open(void) {
    struct timespec t;
    /* The queues and semaphores of System V outlive a process, but not their namespace (root only). */
    (void)!unshare(CLONE_NEWIPC);
    clock_getres(CLOCK_MONOTONIC_COARSE, &t);
    tick = t.tv_nsec;
    waiter_count = timed_wait_count + woken_wait_count;
    waiters = pages((size_t)waiter_count * sizeof *waiters, true);
    memcpy(waiters, timed_waits, (size_t)timed_wait_count * sizeof *waiters);
    memcpy(waiters + timed_wait_count, woken_waits, (size_t)woken_wait_count * sizeof *waiters);
    for (int i = 0; i < waiter_count; i++) {
        struct waiter *w = &waiters[i];
        w->seed = (uint64_t)(options.seed * 1000 + i) * 2 + 1;
        w->lateness = pages(SAMPLES * sizeof *w->lateness, true);
        w->is_open = w->open(w);
    }
}

/* Cleans up for processes without a namespace of their own. */
void waits_close(void) {
    for (int i = 0; i < waiter_count; i++) {
        struct waiter *w = &waiters[i];
        if (!w->is_open) continue;
        if (!strcmp(w->name, "semtimedop") || !strcmp(w->name, "woken_semop")) semctl(w->id, 0, IPC_RMID);
        if (!strcmp(w->name, "woken_msgrcv")) msgctl(w->id, IPC_RMID, 0);
    }
}

static void note(struct waiter *w, long ns) {
    unsigned long n = w->count++;
    w->lateness[n < SAMPLES ? n : draw(&w->seed) % SAMPLES] = ns < 0 ? 0 : (uint32_t)(ns / 1000);
}

static bool ended_well(struct waiter *w, int error, long elapsed, long ns) {
    shared->checks++;
    if (error == 0) return true;
    if (error == EINTR) shared->eintr++;
    violation("%s: %s %d after %ld us of %ld", w->name, error > 0 ? "errno" : "a wrong result", error,
              elapsed / 1000, ns / 1000);
    return false;
}

static void timed(struct waiter *w, long ns) {
    long began_ticks = now(CLOCK_MONOTONIC_COARSE);
    w->began = now(w->clock);
    int error = w->wait(w, ns);
    long elapsed = now(w->clock) - w->began;
    if (!ended_well(w, error, elapsed, ns)) return;
    /* The kernel counts some waits in ticks. Where a virtual processor does not run, ticks come late
     * and then all at once: a wait that begins before them is that much shorter. The coarse clock
     * advances only with ticks, so by that clock the wait has its full length. */
    long in_ticks = now(CLOCK_MONOTONIC_COARSE) - began_ticks;
    long counted = w->in_ticks && in_ticks > elapsed ? in_ticks : elapsed;
    if (counted < ns - (w->in_ticks ? tick : 0)) {
        shared->early++;
        violation("%s: ended after %ld us of %ld, in ticks %ld", w->name, elapsed / 1000, ns / 1000, in_ticks / 1000);
    }
    note(w, elapsed - ns);
}

static void woken(struct waiter *w, long ns) {
    w->number++;
    w->sent = 0;
    long began = now(w->clock);
    w->due = began + ns;
    int error;
    /* A wait that was interrupted is repeated: otherwise this wake-up would end the next wait. */
    while ((error = w->wait(w, ns)) == EINTR) ended_well(w, error, now(w->clock) - began, ns);
    long end = now(w->clock);
    if (!ended_well(w, error, end - began, ns)) {
        while (!w->sent) rest(MS);
    } else if (!w->sent) {
        shared->early++;
        violation("%s: woken by nobody", w->name);
    } else note(w, end - w->sent);
}

/* Waits for 1 to 200 ms, short times as often as long ones. */
void wait_once(struct waiter *w) {
    long low = MS << draw(&w->seed) % 7, ns = low + (long)(draw(&w->seed) % (uint64_t)low);
    ns += w->unit - 1, ns -= ns % w->unit;
    if (w->wake) woken(w, ns);
    else timed(w, ns);
    progress();
}

void waiter_run(struct worker *worker, void *waiter) {
    while (!is_stopping(worker->phase)) wait_once(waiter);
}

void wake_those_due(void) {
    for (int i = 0; i < waiter_count; i++) {
        struct waiter *w = &waiters[i];
        long t = now(CLOCK_MONOTONIC);
        if (!w->wake || !w->due || t < w->due) continue;
        w->due = 0;
        w->sent = t;
        w->wake(w);
    }
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Sorts without qsort, which may call malloc: the heap may be broken. */
static void sort(uint32_t *v, size_t n) {
    for (size_t gap = n / 2; gap > 0; gap /= 2)
        for (size_t i = gap; i < n; i++)
            for (size_t j = i; j >= gap && ascending(&v[j - gap], &v[j]) > 0; j -= gap) {
                uint32_t t = v[j];
                v[j] = v[j - gap], v[j - gap] = t;
            }
}

void print_lateness(void) {
    const char *comma = "";
    printf("\"unavailable\":[");
    for (int i = 0; i < waiter_count; i++)
        if (!waiters[i].is_open) printf("%s\"%s\"", comma, waiters[i].name), comma = ",";
    printf("],\"lateness_us\":{");
    comma = "";
    for (int i = 0; i < waiter_count; i++) {
        struct waiter *w = &waiters[i];
        size_t n = w->count < SAMPLES ? w->count : SAMPLES;
        if (!n) continue;
        sort(w->lateness, n);
        printf("%s\"%s\":{\"count\":%lu,\"median\":%u,\"p95\":%u,\"max\":%u}", comma, w->name, w->count,
               w->lateness[n / 2], w->lateness[n * 95 / 100], w->lateness[n - 1]);
        comma = ",";
    }
    printf("}");
}
