/* Waits without a timeout, which must end when they are woken, and not before. */
#include "torture.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define CARRIES_NUMBER (SIGRTMIN + 6)

static int is_number(struct waiter *w, long result, long bytes, long number) {
    if (result < 0) return errno;
    return result == bytes && number == w->number ? 0 : -1;
}
static void must(struct waiter *w, bool done) {
    if (!done) violation("%s: the wake-up failed: errno %d", w->name, errno);
}

static bool pipe_open(struct waiter *w) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return false;
    w->fd = ends[0], w->other = ends[1];
    return true;
}
static int read_wait(struct waiter *w, long ns) {
    (void)ns;
    long number = 0, result = read(w->fd, &number, sizeof number);
    return is_number(w, result, sizeof number, number);
}
static void write_wake(struct waiter *w) {
    long number = w->number;
    must(w, write(w->other, &number, sizeof number) == sizeof number);
}

static bool pair_open(struct waiter *w) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return false;
    w->fd = ends[0], w->other = ends[1];
    return true;
}
static int recv_wait(struct waiter *w, long ns) {
    (void)ns;
    long number = 0, result = recv(w->fd, &number, sizeof number, MSG_WAITALL);
    return is_number(w, result, sizeof number, number);
}

/* A full pipe of one page: the writer waits for a reader. */
static char page[4096];
static bool full_open(struct waiter *w) {
    return pipe_open(w) && fcntl(w->other, F_SETPIPE_SZ, sizeof page) == sizeof page &&
           write(w->other, page, sizeof page) == sizeof page;
}
static int full_wait(struct waiter *w, long ns) {
    (void)ns;
    long result = write(w->other, page, sizeof page);
    return result == sizeof page ? 0 : result < 0 ? errno : -1;
}
static void full_wake(struct waiter *w) {
    char into[sizeof page];
    must(w, read(w->fd, into, sizeof into) == sizeof into);
}

static bool event_open(struct waiter *w) { return (w->fd = w->other = eventfd(0, EFD_CLOEXEC)) >= 0; }
static bool epoll_open(struct waiter *w) {
    struct epoll_event event = {.events = EPOLLIN};
    w->id = epoll_create1(EPOLL_CLOEXEC);
    return event_open(w) && w->id >= 0 && !epoll_ctl(w->id, EPOLL_CTL_ADD, w->fd, &event);
}
static int epoll_wait_wait(struct waiter *w, long ns) {
    struct epoll_event event;
    int result = epoll_wait(w->id, &event, 1, -1);
    return result == 1 ? read_wait(w, ns) : result < 0 ? errno : -1;
}
static int poll_wait(struct waiter *w, long ns) {
    struct pollfd fd = {w->fd, POLLIN, 0};
    int result = poll(&fd, 1, -1);
    return result == 1 ? read_wait(w, ns) : result < 0 ? errno : -1;
}

static bool always(struct waiter *w) { (void)w; return true; }
static int futex_wait(struct waiter *w, long ns) {
    (void)ns;
    long result = syscall(SYS_futex, &w->word, FUTEX_WAIT, (int)w->number - 1, 0);
    if (result < 0 && errno != EAGAIN) return errno;
    return w->word == (int)w->number ? 0 : -1;
}
static void futex_wake(struct waiter *w) {
    w->word = (int)w->number;
    must(w, syscall(SYS_futex, &w->word, FUTEX_WAKE, 1) >= 0);
}

struct conditional {
    pthread_mutex_t lock;
    pthread_cond_t cond;
};
static bool cond_open(struct waiter *w) {
    struct conditional *c = w->memory = pages(sizeof *c, true);
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    pthread_mutexattr_init(&mutex);
    pthread_condattr_init(&cond);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
    return !pthread_mutex_init(&c->lock, &mutex) && !pthread_cond_init(&c->cond, &cond);
}
static int cond_wait(struct waiter *w, long ns) {
    (void)ns;
    struct conditional *c = w->memory;
    int error = 0;
    pthread_mutex_lock(&c->lock);
    while (!error && w->word != (int)w->number) error = pthread_cond_wait(&c->cond, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return error;
}
static void cond_wake(struct waiter *w) {
    struct conditional *c = w->memory;
    pthread_mutex_lock(&c->lock);
    w->word = (int)w->number;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->lock);
}

struct message { long type, number; };
static bool message_open(struct waiter *w) { return (w->id = msgget(IPC_PRIVATE, 0600)) >= 0; }
static int message_wait(struct waiter *w, long ns) {
    (void)ns;
    struct message m = {0, 0};
    long result = msgrcv(w->id, &m, sizeof m.number, 1, 0);
    return is_number(w, result, sizeof m.number, m.number);
}
static void message_wake(struct waiter *w) {
    struct message m = {1, w->number};
    must(w, !msgsnd(w->id, &m, sizeof m.number, 0));
}

static bool semaphore_open(struct waiter *w) { return (w->id = semget(IPC_PRIVATE, 1, 0600)) >= 0; }
static int semaphore_wait(struct waiter *w, long ns) {
    (void)ns;
    struct sembuf less = {0, -1, 0};
    return ended_with(semop(w->id, &less, 1), 0);
}
static void semaphore_wake(struct waiter *w) {
    struct sembuf more = {0, 1, 0};
    must(w, !semop(w->id, &more, 1));
}

static bool listen_open(struct waiter *w) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    w->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return w->fd >= 0 && !bind(w->fd, (struct sockaddr *)&name, sizeof(sa_family_t)) && !listen(w->fd, 4);
}
static int accept_wait(struct waiter *w, long ns) {
    (void)ns;
    int fd = accept(w->fd, 0, 0);
    if (fd < 0) return errno;
    close(fd);
    return 0;
}
static void accept_wake(struct waiter *w) {
    struct sockaddr_un name;
    socklen_t length = sizeof name;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(w, !getsockname(w->fd, (struct sockaddr *)&name, &length) && !connect(fd, (struct sockaddr *)&name, length));
    close(fd);
}

static int signal_wait(struct waiter *w, long ns) {
    (void)ns;
    sigset_t set;
    siginfo_t info;
    sigemptyset(&set);
    sigaddset(&set, CARRIES_NUMBER);
    int result = sigwaitinfo(&set, &info);
    return is_number(w, result, CARRIES_NUMBER, result < 0 ? 0 : info.si_value.sival_int);
}
static void signal_wake(struct waiter *w) {
    must(w, !sigqueue(torture, CARRIES_NUMBER, (union sigval){.sival_int = (int)w->number}));
}

const struct waiter woken_waits[] = {
    {"woken_read_pipe", pipe_open, read_wait, write_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_write_pipe", full_open, full_wait, full_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_recv", pair_open, recv_wait, write_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_read_eventfd", event_open, read_wait, write_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_epoll_wait", epoll_open, epoll_wait_wait, write_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_poll", event_open, poll_wait, write_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_futex", always, futex_wait, futex_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_pthread_cond_wait", cond_open, cond_wait, cond_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_msgrcv", message_open, message_wait, message_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_semop", semaphore_open, semaphore_wait, semaphore_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_accept", listen_open, accept_wait, accept_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_sigwaitinfo", always, signal_wait, signal_wake, 1, 0, CLOCK_MONOTONIC},
    {"woken_io_uring_read", uring_pipe_open, uring_read_wait, write_wake, 1, 0, CLOCK_MONOTONIC},
};
const int woken_wait_count = sizeof woken_waits / sizeof *woken_waits;
