/* Signals a thousand times a second, with handlers that restart a call and handlers that do not; a
 * thread that each signal must wake; and a thread with its own signal stack. */
#include "torture.h"
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#define WAKES_SLEEPER (SIGRTMIN + 2)
#define ON_OWN_STACK (SIGRTMIN + 3)
enum { STACK = 64 << 10 };

__thread unsigned long handled_here;
__thread bool shares_signals; /* signals to the whole process */

/* The state that the sleeper and the sender share; each of the three counts only grows. */
static struct sleeper {
    _Atomic long due, wanted, sent, woken, sent_at, lost;
    _Atomic int tid;
    int nothing;
} *sleeper;

static char own_stack[STACK] __attribute__((aligned(16)));
static _Atomic int own_stack_tid;

static void handle(int signal) {
    (void)signal;
    handled_here++;
    shared->handled++;
}

static void handle_waking(int signal) {
    handle(signal);
    sleeper->woken++;
}

static void handle_on_own_stack(int signal) {
    char here;
    if (&here < own_stack || &here >= own_stack + STACK) violation("a handler is not on its signal stack");
    handle(signal);
}

static void install(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    if (sigaction(signal, &action, 0)) violation("sigaction: errno %d", errno);
}

void signals_open(void) {
    sleeper = pages(sizeof *sleeper, true);
    sleeper->nothing = epoll_create1(EPOLL_CLOEXEC);
    install(SIGUSR1, handle, SA_RESTART);
    install(SIGALRM, handle, 0);
    install(WAKES_SLEEPER, handle_waking, 0);
    install(ON_OWN_STACK, handle_on_own_stack, SA_ONSTACK);
    if (!options.signals) return;
    struct itimerval each_ms = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &each_ms, 0);
}

/* Sends signals by a timer, if no other thread may send them. */
void signals_by_timers(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec each_ms = {{0, MS}, {0, MS}};
    int timer;
    if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) ||
        syscall(SYS_timer_settime, timer, 0, &each_ms, 0))
        violation("timer: errno %d", errno);
}

void signals_end(void) {
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, 0);
}

/* Unblocks signals in the calling thread. All others are blocked in all threads, from the start. */
void receive(const int *signals) {
    sigset_t set;
    sigfillset(&set);
    for (; *signals; signals++) {
        sigdelset(&set, *signals);
        if (*signals == SIGUSR1 && self) self->receives = 1;
        if (*signals == SIGALRM && !options.single) shares_signals = true;
    }
    sigprocmask(SIG_SETMASK, &set, 0);
}

static void send(int tid, int signal) {
    if (tid && syscall(SYS_tgkill, torture, tid, signal) == 0) shared->sent++;
}

void sender_run(struct worker *w, void *unused) {
    (void)unused;
    for (unsigned i = 0; !is_stopping(w->phase); i++) {
        rest(MS);
        for (int tries = 0; tries < WORKERS; tries++) {
            struct worker *to = &shared->worker[(i + (unsigned)tries) % WORKERS];
            if (!to->receives || to->ended) continue;
            send(to->tid, SIGUSR1);
            break;
        }
        if (i % 5 == 0 && !is_stopping(1)) send(own_stack_tid, ON_OWN_STACK);
        if (i % 7 == 0) reader_feed();
        progress();
    }
}

void own_stack_run(struct worker *w, void *unused) {
    (void)unused;
    uint64_t seed = 99;
    stack_t mine = {.ss_sp = own_stack, .ss_size = STACK}, found;
    sigaltstack(&mine, 0);
    receive((int[]){ON_OWN_STACK, 0});
    own_stack_tid = w->tid;
    while (!is_stopping(w->phase)) {
        register_wait_once(&seed);
        if (sigaltstack(0, &found) || found.ss_sp != own_stack || found.ss_size != STACK || found.ss_flags)
            violation("the signal stack is %p, %zu bytes, flags %x", found.ss_sp, found.ss_size,
                      (unsigned)found.ss_flags);
        shared->checks++;
    }
    own_stack_tid = 0;
}

/* Waits by one of the calls that unblock signals while they wait. */
static int sleep_with(unsigned kind, const sigset_t *mask) {
    struct epoll_event event;
    struct timespec limit = {8, 0};
    switch (kind % 4) {
    case 0: return sigsuspend(mask);
    case 1: return ppoll(0, 0, &limit, mask);
    case 2: return pselect(0, 0, 0, 0, &limit, mask);
    default: return epoll_pwait(sleeper->nothing, &event, 1, 8000, mask);
    }
}

void sleeper_once(uint64_t *seed) {
    sigset_t open, before, after;
    sigprocmask(SIG_SETMASK, 0, &before);
    sigfillset(&open);
    sigdelset(&open, WAKES_SLEEPER);
    unsigned kind = (unsigned)draw(seed);
    long expected = sleeper->woken + 1;
    sleeper->tid = (int)syscall(SYS_gettid);
    sleeper->due = now(CLOCK_MONOTONIC) + between(seed, 0, 40) * MS;
    sleeper->wanted = expected;
    int result = sleep_with(kind, &open), error = errno;
    if (result != -1 || error != EINTR || sleeper->woken != expected) {
        if (sleeper->woken < expected && result < 0) shared->eintr++;
        violation("sleeper, call %u: result %d, errno %d, woken %ld of %ld", kind % 4, result, error,
                  sleeper->woken, expected);
        while (sleeper->woken < expected) sigsuspend(&open);
    }
    sigprocmask(SIG_SETMASK, 0, &after);
    if (memcmp(&before, &after, 8)) violation("sleeper, call %u: the signal mask is another", kind % 4);
    shared->wakeups++;
    shared->checks++;
    progress();
}

void sleeper_run(struct worker *w, void *seed) {
    uint64_t s = (uintptr_t)seed;
    while (!is_stopping(w->phase)) sleeper_once(&s);
}

/* Sends one signal for each wait, and reports a lost wake-up after 5 s. */
void send_to_sleeper(void) {
    long t = now(CLOCK_MONOTONIC);
    if (sleeper->sent < sleeper->wanted) {
        if (t < sleeper->due) return;
        sleeper->sent_at = t;
        sleeper->sent = sleeper->wanted;
        send(sleeper->tid, WAKES_SLEEPER);
    } else if (sleeper->woken < sleeper->sent && t - sleeper->sent_at > 5 * SECOND && sleeper->lost < sleeper->sent) {
        sleeper->lost = sleeper->sent;
        violation("lost wake-up: no answer to signal %ld in 5 s", sleeper->sent);
    }
}
