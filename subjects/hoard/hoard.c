/*
 * A program whose allocator hoards: the "trivial case" that the authors of the post
 * (studies/README.md) searched for, without any dependency.
 *
 *   cc -O2 -pthread -o hoard hoard.c
 *   ./hoard                         over 3 GiB are free and stay; 1 MiB is in use, at most 2 GiB were before
 *   ./hoard mode=interleaved        short- and long-lived blocks side by side: fragmentation
 *   ./hoard mode=kept               nothing is freed: live
 *   ./hoard mode=leaking            then leaks a little, again and again: growing
 *   ./hoard mode=pooled             in pools that the program maps and keeps itself, as databases do:
 *                                   inconclusive, since the part in use is invisible from outside
 *
 * The threads take turns with a burst: many blocks, all touched, all in use at once, all freed. No
 * block is larger than 64 KiB, so none reaches the mmap threshold (128 KiB). Only the last block of
 * each burst stays allocated: the answer. It lies above all the others. The chunks that were freed
 * below it are coalesced to one chunk, which never borders the top chunk, so free() does not trim
 * it. Since each arena keeps the maximum that it ever had, the sum grows with every turn, however
 * much was in use at one time.
 *
 * The main thread has a larger burst than the others, because only the main heap is contiguous. Any
 * other arena consists of heaps of 64 MiB, and no free chunk spans two of them.
 *
 * It prints its phases, and then waits until it is ended, or for `hold` seconds.
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
/* The amount that is leaked at a time, in bytes. */
#define LEAK ((size_t)2048)

enum mode { HOARD, INTERLEAVED, KEPT, LEAKING, POOLED };
static const char *const modes[] = {"hoard", "interleaved", "kept", "leaking", "pooled"};

/* The settings, with their defaults. */
static struct {
    enum mode mode;
    unsigned long threads, mib, main, turns, pause, hold, seed, on_signal;
} settings = {HOARD, 24, 128, 1280, 4, 500, 0, 1, 0};

/* A block of a burst. Blocks are chained, so that no other record of them is needed. */
struct block {
    struct block *next;
    size_t size;
};

struct worker {
    pthread_t thread;
    unsigned long turn;  /* its own turn */
    size_t share;        /* size of its burst, in bytes */
    uint64_t random;
    struct block *first;
    char *pool;          /* start of the free part of its pool, if it has one */
    size_t room;         /* size of that part, in bytes */
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

/* Draws a size from 2 to 64 KiB, small ones as often as large ones; for an interleaved burst, a
 * part of a page. */
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

/* Allocates from the worker's pool, which has room for its whole burst and is never unmapped. */
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

/* Allocates its burst, block after block, until it has its share. */
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

/* Frees its burst in the order of allocation, except for the answer and what its mode keeps. */
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
    wait_for_ever(); /* no other thread may reuse its arena */
}

static double in_mib(size_t bytes) { return (double)bytes / MIB; }

static void sleep_ms(unsigned long ms) {
    struct timespec rest = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    while (nanosleep(&rest, &rest) && errno == EINTR) {}
}

/* Prints a line, and uses its first word as the name of the process, so that a script can wait for
 * it. */
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
        sleep_ms(settings.pause); /* long enough to be sampled */
        wait_for_all();
        if (turn == own->turn) drain(own);
        wait_for_all();
        sleep_ms(settings.pause);
    }
    say("drained", "%.0f MiB in use, at most %.0f MiB were in use before", in_mib(in_use), in_mib(most_in_use));
}

/* Allocates 2 KiB per millisecond, which are never freed. */
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
        {"threads", &settings.threads, 0, 4096}, /* besides the main one */
        {"mib", &settings.mib, 0, 1 << 20},      /* size of the burst of each thread, in MiB */
        {"main", &settings.main, 0, 1 << 20},    /* size of the burst of the main thread, in MiB */
        {"turns", &settings.turns, 1, 4096},     /* number of turns, over which the bursts are spread */
        {"pause", &settings.pause, 0, 1 << 20},  /* pause at the peak of a turn and after it, in ms */
        {"hold", &settings.hold, 0, 1 << 30},    /* time until it ends, in s; 0 is never */
        {"seed", &settings.seed, 1, UINT32_MAX},
        {"on_signal", &settings.on_signal, 0, 1}, /* whether it waits for SIGUSR1 before it starts */
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
    worker->turn = settings.turns - place % settings.turns; /* the main thread has the last turn */
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
