/* Threads that wait with known values in all their registers, under signals. */
#include "torture.h"
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __aarch64__
#include "registers_aarch64.h"
#else
#include "registers_x86_64.h"
#endif
long wait_with_registers(const struct registers *given, struct registers *found, int width);

static int fed[2], nothing;

/* Makes the call and returns its result; `words` are its arguments. */
static long call_with(const char *name, long number, const uint64_t words[6], uint64_t *seed) {
    struct registers given, found;
    int width = vector_width();
    draw_registers(&given, seed);
    for (int i = 0; i < 6; i++) given.general[argument[i]] = words[i];
    given.general[NUMBER] = (uint64_t)number;
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
        if (shares_signals && !strncmp(name, "epoll_", 6)) return;
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
#ifdef SYS_poll
    struct timeval v = {0, ns / 1000};
#endif
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
#ifdef SYS_poll
        {"poll", SYS_poll, 0, {0, 0, ms, any, any + 1, any + 2}},
        {"select", SYS_select, 0, {0, 0, 0, 0, (uint64_t)&v, any}},
        {"epoll_wait", SYS_epoll_wait, 0, {(uint64_t)nothing, (uint64_t)&event, 1, ms, any, any + 1}},
#else
        {"ppoll", SYS_ppoll, 0, {0, 0, timeout, 0, 8, any}},
        {"epoll_pwait", SYS_epoll_pwait, 0, {(uint64_t)nothing, (uint64_t)&event, 1, ms, 0, 8}},
#endif
        {"futex", SYS_futex, -ETIMEDOUT, {(uint64_t)&word, 128, 0, timeout, any, any + 1}},
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
