/* Threads that wait with known values in all their registers, under signals. */
#include "torture.h"
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* registers.S depends on these offsets. */
struct registers {
    uint64_t general[16]; /* rax rdi rsi rdx r10 r8 r9 rbx rbp r12 r13 r14 r15 */
    unsigned char vectors[32][64];
    uint64_t masks[8], mmx[8], red_zone[16];
    uint32_t mxcsr;
    uint16_t fcw;
};
enum { GENERAL = 13 };
static const char *const names[GENERAL] = {"rax", "rdi", "rsi", "rdx", "r10", "r8", "r9",
                                           "rbx", "rbp", "r12", "r13", "r14", "r15"};
long wait_with_registers(const struct registers *given, struct registers *found, int width);

static int fed[2], nothing;

static int vector_width(void) {
    if (__builtin_cpu_supports("avx512bw")) return 64;
    return __builtin_cpu_supports("avx") ? 32 : 16;
}

static void draw_registers(struct registers *r, uint64_t *seed) {
    for (size_t i = 0; i < offsetof(struct registers, mxcsr) / 8; i++) {
        uint64_t value = draw(seed);
        memcpy((char *)r + 8 * i, &value, 8);
    }
    r->mxcsr = 0x1f80 | (uint32_t)(draw(seed) % 4) << 13; /* rounding mode */
    r->fcw = (uint16_t)(0x37f | (draw(seed) % 4) << 10);
}

static void compare(const struct registers *given, const struct registers *found, int width, const char *call) {
    for (int i = 1; i < GENERAL; i++)
        if (given->general[i] != found->general[i])
            violation("%s: %s was %lx, is %lx", call, names[i], given->general[i], found->general[i]);
    for (int i = 0; i < (width == 64 ? 32 : 16); i++)
        if (memcmp(given->vectors[i], found->vectors[i], (size_t)width))
            violation("%s: vector register %d is another", call, i);
    if (width == 64 && memcmp(given->masks, found->masks, sizeof given->masks))
        violation("%s: a mask register is another", call);
    if (memcmp(given->mmx, found->mmx, sizeof given->mmx)) violation("%s: an MMX register is another", call);
    if (memcmp(given->red_zone, found->red_zone, sizeof given->red_zone))
        violation("%s: the red zone is another", call);
    if (given->mxcsr != found->mxcsr || given->fcw != found->fcw)
        violation("%s: a control word is another", call);
    shared->checks++;
}

/* Makes the call and returns its result; `words` are its arguments. */
static long call_with(const char *name, long number, const uint64_t words[6], uint64_t *seed) {
    struct registers given, found;
    int width = vector_width();
    draw_registers(&given, seed);
    given.general[0] = (uint64_t)number;
    memcpy(&given.general[1], words, 6 * sizeof *words);
    memset(&found, 0, sizeof found);
    long result = wait_with_registers(&given, &found, width);
    compare(&given, &found, width, name);
    return result;
}

/* EINTR is valid if a handler has run in this thread meanwhile. No call may end too early. A signal
 * to the whole process may wake one thread and be handled by another. Then epoll_wait, which is
 * never restarted, returns EINTR although no handler has run. The kernel does this without a
 * release, too. */
static void judge(const char *name, long result, long expected, long elapsed, long ns, unsigned long handled) {
    if (result == -EINTR && handled == handled_here) {
        if (shares_signals && !strcmp(name, "epoll_wait")) return;
        shared->eintr++;
        violation("%s with registers: EINTR, and no handler has run", name);
    } else if (result == expected && elapsed < ns) {
        shared->early++;
        violation("%s with registers: %ld us of %ld", name, elapsed / 1000, ns / 1000);
    } else if (result != expected && result != -EINTR)
        violation("%s with registers: %ld", name, result);
}

void register_wait_once(uint64_t *seed) {
    long ns = between(seed, 1, 20) * MS;
    struct timespec t = timespec(ns);
    struct timeval v = {0, ns / 1000};
    struct epoll_event event;
    _Atomic int word = 0;
    uint64_t timeout = (uint64_t)&t, any = draw(seed), ms = (uint64_t)(ns / MS);
    const struct {
        const char *name;
        long number, expected;
        uint64_t words[6];
    } calls[] = {
        {"nanosleep", SYS_nanosleep, 0, {timeout, 0, any, any + 1, any + 2, any + 3}},
        {"clock_nanosleep", SYS_clock_nanosleep, 0, {CLOCK_MONOTONIC, 0, timeout, 0, any, any + 1}},
        {"poll", SYS_poll, 0, {0, 0, ms, any, any + 1, any + 2}},
        {"select", SYS_select, 0, {0, 0, 0, 0, (uint64_t)&v, any}},
        {"futex", SYS_futex, -ETIMEDOUT, {(uint64_t)&word, 128, 0, timeout, any, any + 1}},
        {"epoll_wait", SYS_epoll_wait, 0, {(uint64_t)nothing, (uint64_t)&event, 1, ms, any, any + 1}},
    }, *c = &calls[draw(seed) % (sizeof calls / sizeof *calls)];
    unsigned long handled = handled_here;
    long began = now(CLOCK_MONOTONIC);
    long result = call_with(c->name, c->number, c->words, seed);
    judge(c->name, result, c->expected, now(CLOCK_MONOTONIC) - began, ns, handled);
    progress();
}

void registers_run(struct worker *w, void *seed) {
    uint64_t s = (uintptr_t)seed;
    receive((int[]){SIGUSR1, s % 2 ? 0 : SIGALRM, 0});
    while (!is_stopping(w->phase)) register_wait_once(&s);
}

/* Reads from a pipe. This thread only receives signals whose handlers restart the call, so it never
 * ends with EINTR. */
void reader_run(struct worker *w, void *unused) {
    (void)unused;
    uint64_t s = 4711;
    receive((int[]){SIGUSR1, 0});
    while (!is_stopping(w->phase)) {
        char byte = 0;
        uint64_t words[6] = {(uint64_t)fed[0], (uint64_t)&byte, 1, draw(&s), draw(&s), draw(&s)};
        long result = call_with("read", SYS_read, words, &s);
        if (result == -EINTR) shared->eintr++;
        if (result != 1 || byte != 'f') violation("read with registers: %ld, byte %02x", result, byte);
        progress();
    }
}

void reader_feed(void) {
    if (write(fed[1], "f", 1) != 1 && errno != EAGAIN) violation("write to the reader: errno %d", errno);
}

void reader_open(void) {
    nothing = epoll_create1(EPOLL_CLOEXEC);
    if (pipe2(fed, O_CLOEXEC)) violation("pipe: errno %d", errno);
    fcntl(fed[1], F_SETFL, O_NONBLOCK);
}
