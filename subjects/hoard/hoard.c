/*
 * A program whose allocator hoards: the "trivial case" that the document (studies/README.md) searched for,
 * without any dependency.
 *
 *   cc -O2 -pthread -o hoard hoard.c
 *   ./hoard                         over 3 GiB are free and stay; 1 MiB is in use, at most 2 GiB were
 *   ./hoard mode=interleaved        short- and long-lived blocks side by side: fragmentation
 *   ./hoard mode=kept               nothing is freed: live
 *   ./hoard mode=leaking            and then some is forgotten, again and again: growing
 *   ./hoard mode=pooled             in pools that the program maps and keeps itself, as databases do:
 *                                   inconclusive, since nobody outside can tell what of them is in use
 *
 * Threads take turns with a burst: many blocks, all touched, all in use at once, all freed. No block is
 * larger than 64 KiB, so none reaches the mmap threshold (128 KiB). Only the last block of each burst lives
 * on: the answer. It lies above all the others, so that what was freed below it, by then joined to one
 * block, is never at the top, from where alone free() gives back. Since each arena keeps the most that it
 * ever had, the sum grows with every turn, whatever was in use at one time.
 *
 * The main thread's burst is larger than the others': only the main heap has no seams. That of another
 * arena consists of heaps of 64 MiB, and no free block reaches over the end of one.
 *
 * It prints what it does, and then waits until it is ended, or for `hold` seconds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
/* Of what is forgotten at a time. */
#define LEAK ((size_t)2048)

enum mode { HOARD, INTERLEAVED, KEPT, LEAKING, POOLED };
static const char *const modes[] = {"hoard", "interleaved", "kept", "leaking", "pooled"};

/* What can be set, with what it is otherwise. */
static struct {
    enum mode mode;
    unsigned long threads, mib, main, turns, pause, hold, seed, on_signal;
} settings = {HOARD, 24, 128, 1280, 4, 500, 0, 1, 0};

/* A block of a burst: chained, so that nothing else has to be kept of it. */
struct block {
    struct block *next;
    size_t size;
};

struct worker {
    pthread_t thread;
    unsigned long turn;  /* the one that is its own */
    size_t share;        /* of a burst, in bytes */
    uint64_t random;
    struct block *first;
    char *pool;          /* where its pool is free, of those that have one */
    size_t room;         /* how much of it is */
};

static pthread_barrier_t together;
static _Atomic size_t in_use, most_in_use;

_Noreturn static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("hoard: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static uint64_t draw(struct worker *worker) {
    uint64_t *s = &worker->random;
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}

/* From 2 to 64 KiB, small ones as often as large ones; of those that interleave, a part of a page. */
static size_t draw_size(struct worker *worker) {
    if (settings.mode == INTERLEAVED) return 128 + draw(worker) % 897;
    size_t octave = 2 * KIB << draw(worker) % 5;
    return octave + draw(worker) % octave;
}

static void *take(size_t size) {
    void *memory = malloc(size);
    if (!memory) fail("there is no memory for %zu more bytes: set a smaller mib= or main=", size);
    return memset(memory, 1, size);
}

/* From the worker's pool, which has room for its whole burst and is never unmapped. */
static void *take_of_pool(struct worker *worker, size_t size) {
    const size_t aligned = (size + 15) & ~(size_t)15;
    if (!worker->pool) {
        worker->room = worker->share + worker->share / 8 + 64 * KIB;
        worker->pool = mmap(NULL, worker->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (worker->pool == MAP_FAILED) fail("there is no memory for a pool: set a smaller mib= or main=");
    }
    if (aligned > worker->room) fail("a pool is too small for its burst");
    void *memory = worker->pool;
    worker->pool += aligned;
    worker->room -= aligned;
    return memset(memory, 1, size);
}

/* Its burst: block after block, until it has its share. */
static void grow(struct worker *worker) {
    struct block **end = &worker->first;
    for (size_t held = 0; held < worker->share;) {
        size_t size = draw_size(worker);
        struct block *block = settings.mode == POOLED ? take_of_pool(worker, size) : take(size);
        block->size = size;
        *end = block;
        end = &block->next;
        held += size;
        size_t now = atomic_fetch_add(&in_use, size) + size, most = atomic_load(&most_in_use);
        while (now > most && !atomic_compare_exchange_weak(&most_in_use, &most, now)) {}
    }
    *end = NULL;
}

/* Frees its burst, in the order in which it came, but for the answer and what its mode keeps. */
static void drain(struct worker *worker) {
    if (settings.mode == KEPT) return;
    unsigned long place = 0;
    struct block **kept = &worker->first;
    for (struct block *block = worker->first, *next; block; block = next) {
        next = block->next;
        if (!next || (settings.mode == INTERLEAVED && place++ % 4 == 0)) {
            *kept = block;
            kept = &block->next;
            continue;
        }
        atomic_fetch_sub(&in_use, block->size);
        if (settings.mode != POOLED) free(block); /* a pool is kept for the next burst */
    }
    *kept = NULL;
}

static void wait_for_all(void) { pthread_barrier_wait(&together); }

_Noreturn static void wait_for_ever(void) {
    for (;;) pause();
}

static void *work(void *argument) {
    struct worker *worker = argument;
    for (unsigned long turn = 1; turn <= settings.turns; turn++) {
        if (turn == worker->turn) grow(worker);
        wait_for_all();
        wait_for_all();
        if (turn == worker->turn) drain(worker);
        wait_for_all();
    }
    wait_for_ever(); /* its arena stays its own */
}

static double in_mib(size_t bytes) { return (double)bytes / MIB; }

static void sleep_ms(unsigned long ms) {
    struct timespec rest = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    while (nanosleep(&rest, &rest) && errno == EINTR) {}
}

/* A line for whoever reads it, and its first word as the process's name, which a script can wait for. */
static void say(const char *phase, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("%s: ", phase);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    prctl(PR_SET_NAME, phase);
}

static void take_turns(struct worker *own) {
    for (unsigned long turn = 1; turn <= settings.turns; turn++) {
        if (turn == own->turn) grow(own);
        wait_for_all();
        say(turn == settings.turns ? "peak" : "turn", "%lu of %lu, %.0f MiB in use", turn,
            settings.turns, in_mib(in_use));
        sleep_ms(settings.pause); /* long enough to be seen */
        wait_for_all();
        if (turn == own->turn) drain(own);
        wait_for_all();
        sleep_ms(settings.pause);
    }
    say("drained", "%.0f MiB in use, at most %.0f MiB were", in_mib(in_use), in_mib(most_in_use));
}

/* Two KiB each millisecond that nobody will free. */
_Noreturn static void leak(void) {
    for (;;) {
        void *volatile forgotten = take(LEAK);
        (void)forgotten;
        sleep_ms(1);
    }
}

static unsigned long number(const char *name, const char *text, unsigned long least, unsigned long most) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || value < least || value > most)
        fail("%s=%s is not a number from %lu to %lu", name, text, least, most);
    return value;
}

static enum mode mode_named(const char *name) {
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(name, modes[i])) return (enum mode)i;
    fail("there is no mode=%s: it is hoard, interleaved, kept, leaking or pooled", name);
}

static void set(char *argument) {
    const struct {
        const char *name;
        unsigned long *value, least, most;
    } known[] = {
        {"threads", &settings.threads, 0, 4096}, /* beside the main one */
        {"mib", &settings.mib, 0, 1 << 20},      /* the burst of each thread */
        {"main", &settings.main, 0, 1 << 20},    /* the burst of the main thread, in MiB */
        {"turns", &settings.turns, 1, 4096},     /* in which the threads have their bursts */
        {"pause", &settings.pause, 0, 1 << 20},  /* at the height of a turn and behind it, in ms */
        {"hold", &settings.hold, 0, 1 << 30},    /* s until it ends; 0 is never */
        {"seed", &settings.seed, 1, UINT32_MAX},
        {"on_signal", &settings.on_signal, 0, 1}, /* whether it begins only at a SIGUSR1 */
    };
    char *equals = strchr(argument, '=');
    if (!equals) fail("%s is not understood: write NAME=VALUE, such as mib=64", argument);
    *equals = 0;
    if (!strcmp(argument, "mode")) {
        settings.mode = mode_named(equals + 1);
        return;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(argument, known[i].name)) continue;
        *known[i].value = number(argument, equals + 1, known[i].least, known[i].most);
        return;
    }
    fail("there is no %s=: it has mode, threads, mib, main, turns, pause, hold, seed, on_signal", argument);
}

static void begin(struct worker *worker, unsigned long place, size_t mib) {
    worker->turn = settings.turns - place % settings.turns; /* the main thread's is the last */
    worker->share = mib * MIB;
    worker->random = settings.seed * 0x9E3779B97F4A7C15u + place + 1;
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < count; i++) set(arguments[i]);
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    pthread_barrier_init(&together, NULL, (unsigned)settings.threads + 1);
    struct worker *workers = calloc(settings.threads + 1, sizeof *workers);
    if (!workers) fail("there is no memory for %lu threads", settings.threads);
    say("ready", "mode %s, %lu threads", modes[settings.mode], settings.threads);
    if (settings.on_signal) sigwaitinfo(&usr1, NULL);
    begin(&workers[0], 0, settings.main);
    for (unsigned long i = 1; i <= settings.threads; i++) {
        begin(&workers[i], i, settings.mib);
        int error = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        if (error) fail("thread %lu could not be started: %s", i, strerror(error));
    }
    take_turns(&workers[0]);
    if (settings.mode == LEAKING) leak();
    if (!settings.hold) wait_for_ever();
    sleep_ms(settings.hold * 1000);
    return 0;
}
