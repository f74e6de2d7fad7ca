/* io_uring by its raw system calls: one submission at a time, and a wait for its completion. */
#include "torture.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ring {
    struct io_uring_params params;
    char *submissions, *completions;
    struct io_uring_sqe *entries;
};

static _Atomic unsigned *at(char *ring, unsigned offset) { return (_Atomic unsigned *)(ring + offset); }

bool uring_open(struct waiter *w) {
    struct ring *r = w->memory = pages(sizeof *r, true);
    struct io_uring_params *p = &r->params;
    w->id = (int)syscall(SYS_io_uring_setup, 4, p);
    if (w->id < 0 || !(p->features & IORING_FEAT_EXT_ARG)) return false;
    fcntl(w->id, F_SETFD, FD_CLOEXEC);
    size_t submissions = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    size_t completions = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    r->submissions = mmap(0, submissions, PROT_READ | PROT_WRITE, MAP_SHARED, w->id, IORING_OFF_SQ_RING);
    r->completions = mmap(0, completions, PROT_READ | PROT_WRITE, MAP_SHARED, w->id, IORING_OFF_CQ_RING);
    r->entries = mmap(0, p->sq_entries * sizeof *r->entries, PROT_READ | PROT_WRITE, MAP_SHARED, w->id,
                      IORING_OFF_SQES);
    return r->submissions != MAP_FAILED && r->completions != MAP_FAILED && r->entries != MAP_FAILED;
}

bool uring_pipe_open(struct waiter *w) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return false;
    w->fd = ends[0], w->other = ends[1];
    return uring_open(w);
}

/* Waits without a submission: only the timeout ends it. */
int uring_enter_wait(struct waiter *w, long ns) {
    struct __kernel_timespec t = {ns / SECOND, ns % SECOND};
    struct io_uring_getevents_arg argument = {.ts = (uint64_t)&t};
    return ended_with(syscall(SYS_io_uring_enter, w->id, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                              &argument, sizeof argument), ETIME);
}

/* Submits, waits, and returns the result of the completion. A wait that was interrupted after a
 * submission returns 1, like a complete one, but there is no completion: this is its EINTR. */
static int submit_and_wait(struct waiter *w, const struct io_uring_sqe *entry, int expected) {
    struct ring *r = w->memory;
    const struct io_sqring_offsets *s = &r->params.sq_off;
    const struct io_cqring_offsets *c = &r->params.cq_off;
    unsigned tail = *at(r->submissions, s->tail), i = tail & *at(r->submissions, s->ring_mask);
    r->entries[i] = *entry;
    at(r->submissions, s->array)[i] = i;
    *at(r->submissions, s->tail) = tail + 1;
    long result = syscall(SYS_io_uring_enter, w->id, 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
    if (result != 1) return result < 0 ? errno : -1;
    unsigned head = *at(r->completions, c->head);
    while (*at(r->completions, c->tail) == head) {
        shared->eintr++;
        violation("%s: cut short, no completion", w->name);
        syscall(SYS_io_uring_enter, w->id, 0, 1, IORING_ENTER_GETEVENTS, 0, 0);
    }
    struct io_uring_cqe *all = (struct io_uring_cqe *)(r->completions + c->cqes);
    int got = all[head & *at(r->completions, c->ring_mask)].res;
    *at(r->completions, c->head) = head + 1;
    return got == expected ? 0 : got < 0 ? -got : -1;
}

int uring_timeout_wait(struct waiter *w, long ns) {
    struct __kernel_timespec t = {ns / SECOND, ns % SECOND};
    struct io_uring_sqe entry = {.opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (uint64_t)&t, .len = 1};
    return submit_and_wait(w, &entry, -ETIME);
}

/* Requests an asynchronous read: the kernel then has a thread of its own in this process's list of
 * tasks. */
int uring_read_wait(struct waiter *w, long ns) {
    (void)ns;
    long number = 0;
    struct io_uring_sqe entry = {.opcode = IORING_OP_READ, .flags = IOSQE_ASYNC, .fd = w->fd,
                                 .addr = (uint64_t)&number, .len = sizeof number, .off = (uint64_t)-1};
    int error = submit_and_wait(w, &entry, sizeof number);
    return error ? error : number == w->number ? 0 : -1;
}
