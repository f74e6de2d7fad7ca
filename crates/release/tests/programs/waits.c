/* A program with one thread, which hoards free memory and then waits for years: waits WAIT [KILLED]...
 *
 * The wait is one call with a timeout, which does not end unless a signal handler runs or the timeout starts anew
 * wrongly. A filter kills the process at a call whose number is given. It prints "ready" before it waits, and exits
 * with 1 when the wait ends. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "filter.h"

enum { YEARS = 100000000, BLOCKS = 2000, BYTES = 4000 };

int main(int argument_count, char **arguments) {
    static void *blocks[BLOCKS];
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
    for (int i = 0; i < BLOCKS - 1; i++) free(blocks[i]);
    for (int i = 2; i < argument_count; i++) filter(atol(arguments[i]), SECCOMP_RET_KILL_PROCESS);
    const char *wait = arguments[1];
    struct timespec years = {YEARS, 0}, left = {0, 0}, now;
    struct timeval as_timeval = {YEARS, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    now.tv_sec += YEARS;
    int word = 0, epoll = epoll_create1(EPOLL_CLOEXEC);
    sigset_t none;
    sigemptyset(&none);
    sigaddset(&none, SIGUSR2);
    if (write(1, "ready\n", 6) != 6) _exit(2);
#define IS(name) !strcmp(wait, name)
    if (IS("sleep")) syscall(SYS_nanosleep, &years, &years);
    if (IS("sleep-left")) syscall(SYS_nanosleep, &years, &left);
    if (IS("sleep-only")) syscall(SYS_nanosleep, &years, 0);
    if (IS("clock")) syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &years, &years);
    if (IS("clock-until")) syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &now, 0);
    if (IS("poll")) syscall(SYS_poll, 0, 0, 2000000000);
    if (IS("poll-forever")) syscall(SYS_poll, 0, 0, -1);
    if (IS("ppoll")) syscall(SYS_ppoll, 0, 0, &years, 0, 8);
    if (IS("select")) syscall(SYS_select, 0, 0, 0, 0, &as_timeval);
    if (IS("pselect")) syscall(SYS_pselect6, 0, 0, 0, 0, &years, 0);
    if (IS("epoll")) syscall(SYS_epoll_wait, epoll, &none, 1, 2000000000);
    if (IS("futex")) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &years, 0, 0);
    if (IS("futex-until")) syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 0, &now, 0, ~0u);
    if (IS("futex-forever")) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
    if (IS("signals")) syscall(SYS_rt_sigtimedwait, &none, 0, &years, 8);
    return 1;
}
