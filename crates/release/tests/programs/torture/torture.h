/* Declarations that the parts of the torture share. main.c describes the whole program. */
#ifndef TORTURE_H
#define TORTURE_H
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <sys/types.h>
#include <time.h>

#define MS 1000000L
#define SECOND 1000000000L
enum { WORKERS = 128, VIOLATIONS = 20, SAMPLES = 1 << 16 };

/* The command-line options, `key=value`. */
struct options {
    long threads, many, ms, seed, mb, signals, fork, waits, churn, single, tuned;
    const char *until;
};
extern struct options options;

/* A thread that must make progress. */
struct worker {
    char name[24];
    void (*run)(struct worker *, void *);
    void *argument;
    int phase; /* ends when `stopping` reaches this */
    _Atomic int tid, ended, receives; /* SIGUSR1 */
    _Atomic unsigned long progress;
};

/* Located in shared memory, so that children can add to it, and report it when their parent hangs. */
struct shared {
    _Atomic int stopping, warm, workers, violations, told;
    _Atomic unsigned long checks, bytes, eintr, early, sent, handled, wakeups, forks_ok, forks_failed, born;
    char violation[VIOLATIONS][200];
    struct worker worker[WORKERS];
};
extern struct shared *shared;
extern __thread struct worker *self;

/* main.c */
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct worker *start(const char *name, int phase, void (*run)(struct worker *, void *), void *argument);
void *pages(size_t bytes, bool is_shared);
void rest(long ns);
extern pid_t torture; /* the process, also in its children */

static inline uint64_t draw(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}
static inline long now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}
static inline struct timespec timespec(long ns) { return (struct timespec){ns / SECOND, ns % SECOND}; }
static inline void progress(void) {
    if (self) atomic_fetch_add_explicit(&self->progress, 1, memory_order_relaxed);
}
static inline bool is_stopping(int phase) { return shared->stopping >= phase; }
static inline long between(uint64_t *s, long low, long high) {
    return low + (long)(draw(s) % (uint64_t)(high - low + 1));
}

/* blocks.c */
struct block {
    unsigned char *at;
    size_t size;
    uint64_t seed;
};
struct mutator {
    struct block *blocks;
    size_t count, most, bytes, budget;
    uint64_t seed;
};
void mutator_open(struct mutator *, size_t budget, uint64_t seed);
void mutator_warm(struct mutator *);
void mutator_step(struct mutator *);
void mutator_sweep(struct mutator *);
void mutator_shrink(struct mutator *, size_t blocks);
void mutator_grow(struct mutator *, size_t blocks);
void mutator_run(struct worker *, void *mutator);
void births_run(struct worker *, void *);

/* waits.c, wakes.c */
struct waiter {
    const char *name;
    bool (*open)(struct waiter *);          /* false if the kernel lacks it */
    int (*wait)(struct waiter *, long ns);  /* 0, or the error */
    void (*wake)(struct waiter *);          /* for waits without a timeout */
    long unit;                              /* of the timeout, in ns */
    bool in_ticks;                          /* the timeout counts ticks, and the first may be short */
    clockid_t clock;
    bool is_open;
    int fd, other, id;
    long began;
    void *memory;
    uint64_t seed;
    _Atomic int word;
    _Atomic long due, sent, number;
    _Atomic unsigned long count;
    uint32_t *lateness;
};
extern struct waiter *waiters;
extern int waiter_count;
extern const struct waiter timed_waits[], woken_waits[];
extern const int timed_wait_count, woken_wait_count;
void waits_open(void);
void waits_close(void);
void wait_once(struct waiter *);
void waiter_run(struct worker *, void *waiter);
void wake_those_due(void);
void print_lateness(void);
int ended_with(long result, int expected);

/* uring.c */
bool uring_open(struct waiter *);
bool uring_pipe_open(struct waiter *);
int uring_enter_wait(struct waiter *, long ns);
int uring_timeout_wait(struct waiter *, long ns);
int uring_read_wait(struct waiter *, long ns);

/* signals.c */
void signals_open(void);
void signals_by_timers(void);
void signals_end(void);
void receive(const int *signals);
void sender_run(struct worker *, void *);
void own_stack_run(struct worker *, void *);
void sleeper_run(struct worker *, void *);
void sleeper_once(uint64_t *seed);
void send_to_sleeper(void);
extern __thread unsigned long handled_here;
extern __thread bool shares_signals;

/* registers.c */
void register_wait_once(uint64_t *seed);
void registers_run(struct worker *, void *);
void reader_run(struct worker *, void *);
void reader_feed(void);
void reader_open(void);

/* children.c */
void fork_once(struct mutator *);
void spawn_once(void);
void children_run(struct worker *, void *mutator);
#endif
