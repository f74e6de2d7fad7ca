/* A program that a release must not disturb, and that detects it if it does. It verifies
 *
 *   - every byte of every block of a heap that constantly grows and shrinks, in all sizes, by malloc, calloc
 *     (zeroed), realloc (contents kept), memalign and free, in long-lived and short-lived threads, with
 *     blocks that one thread allocates and another frees                                      (blocks.c)
 *   - every waiting system call: that it ends as it must, without EINTR and not too early, and how
 *     late                                                         (waits.c, wakes.c, uring.c, lateness.c)
 *   - all registers, across waits and under signals                             (registers*)
 *   - that each signal wakes the thread that waits for it, with the right stack and mask       (signals.c)
 *   - that children have the heap of their parent at the time of the fork                     (children.c)
 *
 *   cc -O2 -pthread -o torture *.c *.S             for the current libc; for older ones see ../oldest.h
 *   torture key=value ...
 *
 *   threads=4     mutators                          ms=20000   run time, from `ready` on
 *   arenas=many   or one                            seed=1
 *   mb=64         of all blocks together            tuned=1    never trims by itself; 0: malloc's defaults
 *   signals=1 fork=1 waits=1 churn=1                which parts; churn=0: pauses in place of the churn
 *   single=1      all in one thread, in turn; pthread_create is never called
 *   until=PATH    ends before `ms` when this file exists
 *
 * Prints `ready` once each mutator has freed most of a full heap, and a JSON object after `ms`. An error does
 * not end it: the exit status is 1 if there was any. With single=1, a child process ends the waits and
 * monitors the program. If the program hangs, the child prints the object and kills its parent. */
#include "torture.h"
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A worker hangs if it makes no progress for 120 s: on a machine with fifty threads for each
 * processor, a child that works waited for 10 s. */
enum { MUTATORS = 16, HANG_TICKS = 480, OF_A_KIND = 2 };
#define TICK (250 * MS)

struct options options = {.threads = 4, .many = 1, .ms = 20000, .seed = 1, .mb = 64, .signals = 1,
                          .fork = 1, .waits = 1, .churn = 1, .single = 0, .tuned = 1};
struct shared *shared;
pid_t torture;
__thread struct worker *self;
static char out[1 << 16];

void *pages(size_t bytes, bool is_shared) {
    int flags = (is_shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) _exit(3);
    return p;
}

/* Pauses. A signal may end the pause. */
void rest(long ns) {
    struct timespec t = timespec(ns);
    nanosleep(&t, 0);
}

/* Returns how many violations of the same kind were recorded. The words up to the colon are the
 * kind. */
static int already_told(const char *text) {
    size_t kind = strcspn(text, ":") + 1;
    int same = 0;
    for (int i = 0; i < VIOLATIONS; i++) same += !strncmp(shared->violation[i], text, kind);
    return same;
}

/* Counts all violations, and records a few of each kind. Takes no lock and no memory, as the heap
 * may be broken and a lock held. */
void violation(const char *format, ...) {
    char text[sizeof *shared->violation];
    va_list words;
    va_start(words, format);
    vsnprintf(text, sizeof text, format, words);
    va_end(words);
    for (char *c = text; *c; c++)
        if (*c == '"' || *c == '\\' || *c < ' ') *c = '?';
    shared->violations++;
    if (already_told(text) >= OF_A_KIND) return;
    int n = shared->told++;
    if (n < VIOLATIONS) memcpy(shared->violation[n], text, sizeof text);
}

static void *enter(void *worker) {
    self = worker;
    self->tid = (int)syscall(SYS_gettid);
    self->run(self, self->argument);
    self->ended = 1;
    return 0;
}

struct worker *start(const char *name, int phase, void (*run)(struct worker *, void *), void *argument) {
    if (shared->workers == WORKERS) _exit(3);
    struct worker *w = &shared->worker[shared->workers];
    w->run = run, w->argument = argument, w->phase = phase;
    snprintf(w->name, sizeof w->name, "%s", name);
    shared->workers++;
    pthread_t id;
    if (run && (pthread_create(&id, 0, enter, w) || pthread_detach(id))) _exit(3);
    return w;
}

/* Counts the ticks in which a worker made no progress. Called once per TICK. */
static bool watch(void) {
    static unsigned long last[WORKERS];
    static int idle[WORKERS];
    bool any = false;
    for (int i = 0; i < shared->workers; i++) {
        struct worker *w = &shared->worker[i];
        bool stands = !w->ended && w->progress == last[i];
        idle[i] = stands ? idle[i] + 1 : 0;
        last[i] = w->progress;
        if (idle[i] == HANG_TICKS) violation("hang: %s got no further in 120 s", w->name);
        any |= idle[i] >= HANG_TICKS;
    }
    return any;
}

static void print_object(void) {
    struct shared *s = shared;
    printf("{\"checks\":%lu,\"bytes_checked\":%lu,\"violation_count\":%d,\"violations\":[", s->checks,
           s->bytes, s->violations);
    for (int i = 0; i < s->told && i < VIOLATIONS; i++) printf("%s\"%s\"", i ? "," : "", s->violation[i]);
    printf("],\"spurious_eintr\":%lu,\"short_sleeps\":%lu,\"signals_sent\":%lu,\"signals_handled\":%lu,"
           "\"wake_ups\":%lu,\"forks_ok\":%lu,\"forks_failed\":%lu,\"threads_born\":%lu,",
           s->eintr, s->early, s->sent, s->handled, s->wakeups, s->forks_ok, s->forks_failed, s->born);
    print_lateness();
    printf("}\n");
    fflush(stdout);
}

static void say_ready(void) {
    printf("ready\n");
    fflush(stdout);
}

/* Wakes the waits that have no timeout. */
static void hand_run(struct worker *w, void *unused) {
    (void)unused;
    while (!is_stopping(w->phase)) {
        if (options.waits) wake_those_due();
        if (options.signals) send_to_sleeper();
        progress();
        rest(MS / 2);
    }
}

static struct mutator *new_mutator(long index, size_t budget) {
    static struct mutator mutators[MUTATORS + 1];
    mutator_open(&mutators[index], budget, (uint64_t)(options.seed * 100 + index));
    return &mutators[index];
}

static void start_all(void) {
    size_t share = ((size_t)options.mb << 20) / (size_t)options.threads;
    start("hand", 2, hand_run, 0);
    for (long i = 0; i < options.threads; i++) start("mutator", 1, mutator_run, new_mutator(i, share));
    start("births", 1, births_run, 0);
    if (options.fork) start("children", 1, children_run, new_mutator(MUTATORS, 4 << 20));
    for (int i = 0; options.waits && i < waiter_count; i++)
        if (waiters[i].is_open) start(waiters[i].name, 1, waiter_run, &waiters[i]);
    if (!options.signals) return;
    for (uintptr_t i = 1; i <= 3; i++) start("registers", 1, registers_run, (void *)(i * 7919));
    start("reader", 1, reader_run, 0);
    start("own stack", 1, own_stack_run, 0);
    start("sleeper", 1, sleeper_run, (void *)31);
    start("sender", 2, sender_run, 0);
}

static bool all_ended(int phase) {
    for (int i = 0; i < shared->workers; i++)
        if (shared->worker[i].phase <= phase && !shared->worker[i].ended) return false;
    return true;
}

static long end_of_run(void) { return now(CLOCK_MONOTONIC) + options.ms * MS; }

static bool is_over(long end) {
    return now(CLOCK_MONOTONIC) >= end || (options.until && !access(options.until, F_OK));
}

/* This thread monitors the others. It joins no thread, since a thread that hangs never ends. */
static void run_many(void) {
    start_all();
    while (shared->warm < options.threads) {
        rest(TICK / 10);
        if (shared->violations) break;
    }
    say_ready();
    for (long end = end_of_run(); !is_over(end); rest(TICK)) watch();
    for (shared->stopping = 1; shared->stopping <= 2; shared->stopping++)
        for (bool hung = false; !all_ended(shared->stopping) && !hung; rest(TICK)) hung = watch();
}

/* Runs one action of each kind per round, so that each kind is interrupted often. */
static void single_round(struct mutator *m, uint64_t *seed) {
    static int next;
    mutator_step(m);
    for (int i = 0; options.waits && i < 6; i++) {
        struct waiter *w = &waiters[next++ % waiter_count];
        sigset_t all, before;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, &before);
        if (w->is_open) wait_once(w);
        sigprocmask(SIG_SETMASK, &before, 0);
    }
    for (int i = 0; i < 5; i++) register_wait_once(seed);
    if (options.signals) sleeper_once(seed);
    if (options.fork && next % 5 == 0) fork_once(m);
    if (options.fork && next % 7 == 0) spawn_once();
}

static bool is_stopped(void) {
    char path[40], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", torture);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    long length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    char *end = strrchr(text, ')');
    return end && (end[2] == 'T' || end[2] == 't');
}

static pid_t start_helper(void) {
    pid_t helper = fork();
    if (helper) return helper;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (long next = 0;; rest(MS / 2)) {
        if (options.waits) wake_those_due();
        if (options.signals) send_to_sleeper();
        if (now(CLOCK_MONOTONIC) < next) continue;
        next = now(CLOCK_MONOTONIC) + TICK;
        if (is_stopped() || !watch()) continue;
        print_object();
        kill(torture, SIGKILL);
        _exit(1);
    }
}

static void run_single(void) {
    uint64_t seed = (uint64_t)options.seed * 2 + 1;
    struct mutator *m = new_mutator(0, (size_t)options.mb << 20);
    self = start("single", 1, 0, 0);
    self->tid = torture;
    pid_t helper = start_helper();
    if (options.signals) {
        signals_by_timers();
        receive((int[]){SIGUSR1, SIGALRM, 0});
    }
    mutator_warm(m);
    say_ready();
    for (long end = end_of_run(); !is_over(end);) single_round(m, &seed);
    mutator_sweep(m);
    mutator_shrink(m, 0);
    kill(helper, SIGKILL);
    waitpid(helper, 0, 0);
}

static bool read_options(int count, char **words) {
    const struct { const char *key; long *value; } keys[] = {
        {"threads", &options.threads}, {"ms", &options.ms}, {"seed", &options.seed}, {"mb", &options.mb},
        {"signals", &options.signals}, {"fork", &options.fork}, {"waits", &options.waits},
        {"churn", &options.churn}, {"single", &options.single}, {"tuned", &options.tuned}};
    for (int i = 1; i < count; i++) {
        char *value = strchr(words[i], '=');
        bool known = false;
        if (!value) return false;
        *value++ = 0;
        if (!strcmp(words[i], "arenas")) known = true, options.many = strcmp(value, "one") != 0;
        if (!strcmp(words[i], "until")) known = true, options.until = value;
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (!strcmp(words[i], keys[k].key)) known = true, *keys[k].value = atol(value);
        if (!known) return false;
    }
    return options.threads >= 1 && options.threads <= MUTATORS;
}

static void tune(void) {
#ifdef M_ARENA_MAX /* musl has no settings */
    if (!options.many) mallopt(M_ARENA_MAX, 1);
    if (!options.tuned) return;
    mallopt(M_MMAP_THRESHOLD, 8 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

int main(int count, char **words) {
    sigset_t all;
    if (!read_options(count, words)) {
        fprintf(stderr, "torture: key=value, see the head of main.c\n");
        return 2;
    }
    setvbuf(stdout, out, _IOFBF, sizeof out);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, 0);
    torture = getpid();
    shared = pages(sizeof *shared, true);
    tune();
    reader_open();
    if (options.waits) waits_open();
    if (options.signals) signals_open();
    if (options.single) run_single();
    else run_many();
    if (options.signals) signals_end();
    if (options.waits) waits_close();
    print_object();
    _exit(shared->violations ? 1 : 0);
}
