/* Every waiting system call with a timeout, in threads that no signal may reach. Each must end as
 * if it had not been disturbed, and never too early. The lateness is recorded. */
#include "torture.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#define NEVER_SENT (SIGRTMIN + 5)
enum { QUEUE_OPEN = 240, QUEUE_UNLINK = 241, QUEUE_RECEIVE = 243, EPOLL_PWAIT2 = 441 };

int ended_with(long result, int expected) {
    if (result == -1 && errno != 0) return errno == expected ? 0 : errno;
    return result == 0 && expected == 0 ? 0 : -1;
}

static bool always(struct waiter *w) { (void)w; return true; }

static bool epoll_open(struct waiter *w) { return (w->fd = epoll_create1(EPOLL_CLOEXEC)) >= 0; }

static int nanosleep_wait(struct waiter *w, long ns) {
    (void)w;
    struct timespec t = timespec(ns);
    return ended_with(nanosleep(&t, 0), 0);
}
static int relative_wait(struct waiter *w, long ns) {
    (void)w;
    struct timespec t = timespec(ns), left;
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &left);
}
static int absolute_wait(struct waiter *w, long ns) {
    struct timespec t = timespec(w->began + ns);
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
}
static int poll_wait(struct waiter *w, long ns) {
    (void)w;
    return ended_with(poll(0, 0, (int)(ns / MS)), 0);
}
static int ppoll_wait(struct waiter *w, long ns) {
    (void)w;
    struct timespec t = timespec(ns);
    return ended_with(ppoll(0, 0, &t, 0), 0);
}
static int select_wait(struct waiter *w, long ns) {
    (void)w;
    struct timeval t = {ns / SECOND, ns % SECOND / 1000};
    return ended_with(select(0, 0, 0, 0, &t), 0);
}
static int pselect_wait(struct waiter *w, long ns) {
    (void)w;
    struct timespec t = timespec(ns);
    return ended_with(pselect(0, 0, 0, 0, &t, 0), 0);
}
static int epoll_wait_wait(struct waiter *w, long ns) {
    struct epoll_event event;
    return ended_with(epoll_wait(w->fd, &event, 1, (int)(ns / MS)), 0);
}
static int epoll_pwait_wait(struct waiter *w, long ns) {
    struct epoll_event event;
    sigset_t all;
    sigfillset(&all);
    return ended_with(epoll_pwait(w->fd, &event, 1, (int)(ns / MS), &all), 0);
}
static bool epoll_pwait2_open(struct waiter *w) {
    struct epoll_event event;
    struct timespec none = {0, 0};
    return epoll_open(w) && syscall(EPOLL_PWAIT2, w->fd, &event, 1, &none, 0, 0) == 0;
}
static int epoll_pwait2_wait(struct waiter *w, long ns) {
    struct epoll_event event;
    struct timespec t = timespec(ns);
    return ended_with(syscall(EPOLL_PWAIT2, w->fd, &event, 1, &t, 0, 0), 0);
}

static int futex_wait(struct waiter *w, long ns) {
    struct timespec t = timespec(ns);
    return ended_with(syscall(SYS_futex, &w->word, FUTEX_WAIT_PRIVATE, w->word, &t), ETIMEDOUT);
}
static int futex_bitset_wait(struct waiter *w, long ns) {
    struct timespec t = timespec(w->began + ns);
    return ended_with(syscall(SYS_futex, &w->word, FUTEX_WAIT_BITSET_PRIVATE, w->word, &t, 0, ~0), ETIMEDOUT);
}

struct conditional {
    pthread_mutex_t lock;
    pthread_cond_t cond;
};
static bool cond_open(struct waiter *w) {
    struct conditional *c = w->memory = pages(sizeof *c, true);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, 0);
    return pthread_cond_init(&c->cond, &attributes) == 0;
}
static int cond_wait(struct waiter *w, long ns) {
    struct conditional *c = w->memory;
    struct timespec t = timespec(w->began + ns);
    pthread_mutex_lock(&c->lock);
    int error;
    /* By its contract, it may end without a reason. */
    do error = pthread_cond_timedwait(&c->cond, &c->lock, &t);
    while (error == 0);
    pthread_mutex_unlock(&c->lock);
    return error == ETIMEDOUT ? 0 : error;
}

static bool sem_open_here(struct waiter *w) {
    w->memory = pages(sizeof(sem_t), true);
    return sem_init(w->memory, 0, 0) == 0;
}
static int sem_wait_until(struct waiter *w, long ns) {
    struct timespec t = timespec(w->began + ns);
    return ended_with(sem_timedwait(w->memory, &t), ETIMEDOUT);
}

static int sigtimedwait_wait(struct waiter *w, long ns) {
    (void)w;
    struct timespec t = timespec(ns);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, NEVER_SENT);
    return ended_with(sigtimedwait(&set, 0, &t), EAGAIN);
}

static bool semtimedop_open(struct waiter *w) {
    w->id = semget(IPC_PRIVATE, 1, 0600);
    return w->id >= 0;
}
static int semtimedop_wait(struct waiter *w, long ns) {
    struct timespec t = timespec(ns);
    struct sembuf less = {0, -1, 0};
    return ended_with(semtimedop(w->id, &less, 1, &t), EAGAIN);
}

static bool queue_open(struct waiter *w) {
    char name[40];
    struct { long flags, most, size, now, reserved[4]; } limits = {0, 1, 64, 0, {0}};
    snprintf(name, sizeof name, "lowtide-torture-%d", torture);
    w->fd = (int)syscall(QUEUE_OPEN, name, 0102 /* O_CREAT | O_RDWR */, 0600, &limits);
    syscall(QUEUE_UNLINK, name);
    return w->fd >= 0;
}
static int queue_wait(struct waiter *w, long ns) {
    char message[64];
    struct timespec t = timespec(w->began + ns);
    return ended_with(syscall(QUEUE_RECEIVE, w->fd, message, sizeof message, 0, &t), ETIMEDOUT);
}

static void limit(int fd, long ns) {
    struct timeval t = {ns / SECOND, ns % SECOND / 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
}
static bool recv_open(struct waiter *w) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return false;
    w->fd = pair[0], w->other = pair[1];
    return true;
}
static int recv_wait(struct waiter *w, long ns) {
    char byte;
    limit(w->fd, ns);
    return ended_with(recv(w->fd, &byte, 1, 0), EAGAIN);
}
/* The kernel chooses an abstract name for a socket that is bound without a name. */
static bool accept_open(struct waiter *w) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    w->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return w->fd >= 0 && !bind(w->fd, (struct sockaddr *)&name, sizeof(sa_family_t)) && !listen(w->fd, 1);
}
static int accept_wait(struct waiter *w, long ns) {
    limit(w->fd, ns);
    return ended_with(accept(w->fd, 0, 0), EAGAIN);
}

static bool timerfd_open(struct waiter *w) {
    return (w->fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) >= 0;
}
static void arm(struct waiter *w, long ns) {
    struct itimerspec once = {{0, 0}, timespec(ns)};
    timerfd_settime(w->fd, 0, &once, 0);
}
static int timerfd_end(struct waiter *w) {
    uint64_t times = 0;
    long result = read(w->fd, &times, sizeof times);
    return result == sizeof times ? (times == 1 ? 0 : -1) : ended_with(result, 0);
}
static int timerfd_wait(struct waiter *w, long ns) {
    arm(w, ns);
    return timerfd_end(w);
}
/* Has no timeout of its own; the timer ends it. */
static int poll_timer_wait(struct waiter *w, long ns) {
    struct pollfd fd = {w->fd, POLLIN, 0};
    arm(w, ns);
    int result = poll(&fd, 1, -1);
    return result == 1 ? timerfd_end(w) : ended_with(result, 0);
}

const struct waiter timed_waits[] = {
    {"nanosleep", always, nanosleep_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"clock_nanosleep", always, relative_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"clock_nanosleep_absolute", always, absolute_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"poll", always, poll_wait, 0, MS, 0, CLOCK_MONOTONIC},
    {"ppoll", always, ppoll_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"select", always, select_wait, 0, 1000, 0, CLOCK_MONOTONIC},
    {"pselect", always, pselect_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"epoll_wait", epoll_open, epoll_wait_wait, 0, MS, 0, CLOCK_MONOTONIC},
    {"epoll_pwait", epoll_open, epoll_pwait_wait, 0, MS, 0, CLOCK_MONOTONIC},
    {"epoll_pwait2", epoll_pwait2_open, epoll_pwait2_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"futex", always, futex_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"futex_absolute", always, futex_bitset_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"pthread_cond_timedwait", cond_open, cond_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"sem_timedwait", sem_open_here, sem_wait_until, 0, 1, 0, CLOCK_REALTIME},
    {"sigtimedwait", always, sigtimedwait_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"semtimedop", semtimedop_open, semtimedop_wait, 0, 1, 1, CLOCK_MONOTONIC},
    {"mq_timedreceive", queue_open, queue_wait, 0, 1, 0, CLOCK_REALTIME},
    {"recv_rcvtimeo", recv_open, recv_wait, 0, 1000, 1, CLOCK_MONOTONIC},
    {"accept_rcvtimeo", accept_open, accept_wait, 0, 1000, 1, CLOCK_MONOTONIC},
    {"read_timerfd", timerfd_open, timerfd_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"poll_timerfd", timerfd_open, poll_timer_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"io_uring_enter_timeout", uring_open, uring_enter_wait, 0, 1, 0, CLOCK_MONOTONIC},
    {"io_uring_op_timeout", uring_open, uring_timeout_wait, 0, 1, 0, CLOCK_MONOTONIC},
};
const int timed_wait_count = sizeof timed_waits / sizeof *timed_waits;
