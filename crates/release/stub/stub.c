/* The code that runs inside the target: it takes an allocator's lock, verifies the ranges that the walk from outside
 * has found, returns their pages to the kernel, and unlocks.
 *
 * There are two builds of it: for the heap of glibc (ptmalloc.h), and with LOWTIDE_GUARDED for the heaps of other
 * allocators (guarded.h).
 *
 * It fits one page, at any address, and the shared block follows it. Of thread-local storage, it reads the address only;
 * it touches no vector register. It reads the program's memory only after the kernel has confirmed that it is mapped.
 * Three things need no confirmation: an arena with its lock, top and bins, since the C library never frees an arena;
 * the C library's data (`single_threaded`); and the `info` of a heap, for the reason given at is_of_arena.
 *
 * When it drops pages, it calls no function of the C library. It writes to the program's memory
 * only under a lock of the allocator, or in the thread that owns the memory, and to the bits of the
 * slices that it claims. There are two exceptions. For `--method trim` and `--method purge`,
 * work_borrowed calls a function of the allocator, which does the same as if the
 * program called it. And write_timeout writes the remaining timeout of a borrowed thread to where
 * its interrupted call reads it: that thread's own memory.
 *
 * With LOWTIDE_ON_HOST it is compiled into a test (tests/programs/stub_on_host.c), which makes its system calls. With
 * LOWTIDE_IN_PROCESS it is linked into a program that releases its own memory (src/own.rs): a thread of the program
 * calls lowtide_run_own. */

#include "shared.h"
#ifndef LOWTIDE_ON_HOST
#include "offsets.h" /* by build.rs */
#endif

#define PAGE 4096UL
#define SERIAL_BITS (64 - (ADDRESS_BITS - 12)) /* of the number of a lock hold, beside the page */
#define SIGCANCEL 32
#define EFAULT 14

/* What depends on the processor: the entry of the code (`enter`), how it makes a system call (call3, call4, call6), how
 * the worker thread ends, the counter, and the address of a thread's own data. */
#include "code.h"

/* The calls of contract.def, each as a function of what differs between two of them. */
struct borrowed {}; /* Evidence that the calling thread is a borrowed one. */
typedef u64 address, value, length, signal_number;
#define CALL_FUNCTION static inline __attribute__((always_inline, unused)) long
#define CALL3(name, number, parameters, a, b, c) \
    CALL_FUNCTION name parameters { \
        return call3(NR_##number, a, b, c); \
    }
#define CALL4(name, number, parameters, a, b, c, d) \
    CALL_FUNCTION name parameters { \
        return call4(NR_##number, a, b, c, d); \
    }
#define CALL6(name, number, parameters, a, b, c, d, e, f) \
    CALL_FUNCTION name parameters { \
        return call6(NR_##number, a, b, c, d, e, f); \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "contract.def"
#pragma GCC diagnostic pop
#undef call3
#undef call4
#ifndef LOWTIDE_ON_HOST
#pragma GCC poison call6
#endif

static u64 clock_ns(void) {
    u64 time[2] = {0, 0};
    read_clock((u64)time);
    return time[0] * 1000000000UL + time[1];
}

/* Returns the time of a lock hold, in ticks of the block's clock. The counters of two processors may differ a little. */
static u64 now(const struct shared_block *s) {
    return s->clock == CLOCK_TSC ? counter() : clock_ns();
}

static int has_elapsed(const struct shared_block *s, u64 begin, u64 ticks) {
    return (long)(now(s) - begin) >= (long)ticks;
}

/* Returns whether a word can be read: the kernel copies it before it finds that the first argument is invalid. */
static int is_word(u64 at) {
    return read_set(at) != -EFAULT;
}

/* Returns whether a page is mapped. It then stays mapped as long as the lock is held, so it is not checked again.
 * A slot has few bits for a page, so addresses of more than ADDRESS_BITS must be excluded: one whose lower bits are
 * those of a known page would pass for that page, and reading from it would kill the process. The C library has no
 * memory there. */
static int is_page(struct shared_block *s, u64 at) {
    if (at >> ADDRESS_BITS)
        return 0;
    u64 page = at / PAGE, known = page << SERIAL_BITS | (s->lock_serial & ((1UL << SERIAL_BITS) - 1));
    u64 *slot = &s->pages[page % KNOWN_PAGES];
    if (*slot == known)
        return 1;
    if (!is_word(at))
        return 0;
    *slot = known;
    return 1;
}

/* The results of taking a lock. */
#define BUSY 0
#define TAKEN 1
#define NOT_NEEDED 2

/* --- A lock, in the protocol of lll_lock and lll_unlock. */

static int lock(struct shared_block *s, u32 *futex, int may_wait) {
#ifdef LOWTIDE_CONTROL_UNGUARDED
    return 1;
#endif
    u32 free = 0;
    if (__atomic_compare_exchange_n(futex, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return 1;
    if (!may_wait)
        return 0;
    u64 begin = now(s);
    while (__atomic_exchange_n(futex, 2, __ATOMIC_ACQUIRE) != 0) {
        if (has_elapsed(s, begin, s->lock_timeout_ticks))
            return 0; /* the only effect is one superfluous wake-up by the owner */
        u64 time[2] = {0, 1000000};
        wait_for_lock((u64)futex, (u64)time);
    }
    return 1;
}

static void unlock(u32 *futex) {
#ifdef LOWTIDE_CONTROL_UNGUARDED
    return;
#endif
    if (__atomic_exchange_n(futex, 0, __ATOMIC_RELEASE) > 1)
        wake_one((u64)futex);
}

/* --- The operations of this build. */

static int drop_pages(struct shared_block *s, const struct op *o) {
    if (o->bytes > MAX_PAGES * PAGE)
        return 0;
    if (drop(o->from, o->bytes) != 0)
        return 0;
    s->returned += o->bytes;
    return 1;
}

#ifdef LOWTIDE_GUARDED
#include "guarded.h"
#else
#include "ptmalloc.h"
#endif

/* --- Lock holds. */

/* Records the time of a lock hold, in eight classes for every power of two. */
static void record_hold(struct shared_block *s, u64 ticks) {
    u64 power = 63 - __builtin_clzl(ticks | 8);
    u64 class = (power - 3) * 8 + ((ticks >> (power - 3)) & 7);
    s->classes[class < CLASSES ? class : CLASSES - 1]++;
    s->lock_holds++;
    if (ticks > s->longest_ticks)
        s->longest_ticks = ticks;
}

#ifdef LOWTIDE_GUARDED
#ifdef LOWTIDE_ON_HOST
static u64 own_thread(const struct shared_block *s);
#else
/* Returns the address of the thread's own data, by which mimalloc knows it (`_mi_prim_thread_id`). */
static u64 own_thread(const struct shared_block *s) {
    (void)s;
    return own_data();
}
#endif

/* Runs the next operation, which needs no lock. The worker thread has the segment register of another thread, which runs
 * at the same time: only a borrowed thread is the owner of what belongs to it. */
static void run_unlocked(struct shared_block *s, int is_worker) {
    u64 begin = now(s);
    struct op *o = &s->ops[s->next];
    s->lock_serial++;
    if (o->kind == OP_MUSL || (o->kind == OP_OWNED && (is_worker || o->owned.thread != own_thread(s))))
        s->skipped++;
    else
        run_op(s, o, 0);
    s->next += slots_of(o);
    record_hold(s, now(s) - begin);
}
#endif

/* Takes the lock of an operation. */
static int take(struct shared_block *s, const struct op *o, int may_wait) {
#if defined(LOWTIDE_GUARDED) && !defined(LOWTIDE_CONTROL_UNGUARDED)
    if (o->kind == OP_MUSL)
        return take_musl(s, o);
#endif
    return lock(s, (u32 *)o->guard, may_wait) ? TAKEN : BUSY;
}

/* Releases the lock of operations of a kind. */
static void give(u32 *futex, u64 kind) {
#if defined(LOWTIDE_GUARDED) && !defined(LOWTIDE_CONTROL_UNGUARDED)
    if (kind == OP_MUSL)
        return unlock_musl(futex);
#endif
    (void)kind;
    unlock(futex);
}

/* Runs the next operations, as many as one lock hold allows. A borrowed thread takes the lock as
 * well, but never waits for it: a process with one thread ignores locks, and one with more threads
 * takes them. */
static void run_locked(struct shared_block *s, int may_wait) {
    u64 guard = s->ops[s->next].guard; /* an arena, which begins with its lock, or a lock */
    u64 kind = s->ops[s->next].kind;
    u32 *futex = (u32 *)guard;
#ifdef LOWTIDE_GUARDED
    int is_of_musl = kind == OP_MUSL && !may_wait; /* only a borrowed thread is one that musl counts */
    if (kind != OP_LOCKED && !is_of_musl)
        return run_unlocked(s, may_wait);
    /* A lock may be gone, or may be another one now: the program can destroy an arena of jemalloc
     * (arena.<i>.destroy). So it is not written to before the checks hold. */
    s->lock_serial++;
    int is_right = (is_word(guard) || (is_of_musl && !guard)) && is_sound(s, &s->ops[s->next]) &&
                   all_hold(s, &s->ops[s->next], 0);
#else
    /* The lock is mapped, but the thread's protection keys may deny access to it. */
    int is_right = is_word(guard);
#endif
    if (!is_right) {
        s->skipped++;
        s->next += slots_of(&s->ops[s->next]);
        return;
    }
    int taken = take(s, &s->ops[s->next], may_wait);
    if (taken == BUSY) {
        s->busy++;
        s->next += slots_of(&s->ops[s->next]);
        return;
    }
    if (may_wait && s->single_threaded && *(volatile unsigned char *)s->single_threaded) {
        /* From now on, no thread takes locks: only a borrowed thread may continue. */
        unlock(futex);
        s->error = ERROR_SINGLE;
        s->next = s->count;
        return;
    }
    s->lock_serial++;
    u64 begin = now(s), pages = 0;
    while (s->next < s->count) {
        struct op *o = &s->ops[s->next];
        u64 more = pages_of(o);
        int is_other = o->guard != guard;
#ifdef LOWTIDE_GUARDED
        is_other |= o->kind != kind; /* and with it another protocol */
#endif
        if (is_other || (pages && pages + more > s->pages_per_hold))
            break;
        if (!run_op(s, o, begin))
            break;
        pages += more;
        s->next += slots_of(o);
        if (has_elapsed(s, begin, s->hold_ticks))
            break;
    }
    u64 took = now(s) - begin;
    if (taken == TAKEN)
        give(futex, kind);
    record_hold(s, took);
}

/* --- Entry points. */

#ifdef LOWTIDE_IN_PROCESS

/* Runs in a thread of the program itself, with all signals blocked: runs the next operations, in
 * one lock hold. */
void lowtide_run_own(struct shared_block *s) {
    run_locked(s, 1);
}

#elif !defined(LOWTIDE_ON_HOST)

/* Sleeps for less than a second. */
static void sleep_ns(struct shared_block *s, u64 ns) {
    u64 time[2] = {0, ns};
    sleep_on((u64)&s->parked, (u64)time);
}

/* Runs in a borrowed thread before anything else: returns whether it starts the worker thread, which has the same
 * rights. */
__attribute__((used)) static int may_clone(struct shared_block *s) {
    struct borrowed thread = {};
    u32 tsc = 0;
    s->mdwe = get_mdwe(thread);
    if (s->clock == CLOCK_TSC && (get_tsc(thread, (u64)&tsc) != 0 || tsc != TSC_ENABLED))
        s->error = ERROR_TSC;
    return s->task == TASK_CLONE && (long)s->mdwe <= 0 && !s->error;
}

/* The worker thread: runs batch after batch until lowtide requests its exit or the heartbeat stops.
 *
 * The process may install a seccomp filter that also applies to this thread. So from its start on, it makes only calls
 * that any program with threads and malloc makes: futex, madvise, rt_sigprocmask, exit (with CLOCK_TSC). It does not
 * even set its name: `tid` identifies it, which the kernel clears at its end. */
__attribute__((used, noreturn)) static void work_in_thread(struct shared_block *s) {
    __atomic_store_n(&s->state, STATE_RUNNING, __ATOMIC_RELEASE);
    u64 heard = now(s);
    u32 last_heartbeat = 0;
    for (;;) {
        u32 batch = __atomic_load_n(&s->batch, __ATOMIC_ACQUIRE);
        u32 heartbeat = __atomic_load_n(&s->heartbeat, __ATOMIC_RELAXED);
        if (heartbeat != last_heartbeat) {
            last_heartbeat = heartbeat;
            heard = now(s);
        }
        if (batch == BATCH_LEAVE || has_elapsed(s, heard, s->heartbeat_timeout_ticks))
            break;
        if (batch == s->done || s->next >= s->count) {
            __atomic_store_n(&s->done, batch, __ATOMIC_RELEASE);
            sleep_ns(s, s->gap_ns * 3); /* every check takes a processor from another thread */
            continue;
        }
        run_locked(s, 1);
        sleep_ns(s, s->gap_ns);
    }
    u32 must_leave = __atomic_load_n(&s->batch, __ATOMIC_ACQUIRE) == BATCH_LEAVE;
    __atomic_store_n(&s->state, STATE_ENDED, __ATOMIC_RELEASE);
    /* Without lowtide, nothing else cleans up. All memory is returned except this page and the one
     * that a borrowed thread needs. The addresses stay ours until a later release unmaps them. This
     * includes our stack. */
    end_thread((u64)s + CODE_BYTES, must_leave ? 0 : s->bytes - CODE_BYTES);
}

/* Returns whether pending signals would have ended the interrupted call: then it must not restart. */
static int is_interrupted(struct shared_block *s) {
    struct borrowed thread = {};
    u64 pending = 0;
    get_pending(thread, (u64)&pending);
    /* The signals that the call itself blocks would not have ended it. */
    pending &= ~(s->mask | s->wait_mask);
    for (u64 signal = 1; pending; signal++, pending >>= 1) {
        u64 action[4] = {0, 0, 0, 0}; /* handler, flags, restorer, mask */
        if (!(pending & 1) || get_action(thread, signal, (u64)action) != 0 || action[0] <= 1)
            continue;
        /* glibc's own handler for cancelling a thread has SA_RESTART, but checks whether the thread waits. */
        int restarts = signal != SIGCANCEL && action[1] & 0x10000000 /* SA_RESTART */;
        if (s->restarts == RESTARTS_NEVER || !restarts)
            return s->restarts != RESTARTS_ALWAYS;
    }
    return 0;
}

/* Subtracts the time spent here from the timeout of the interrupted call. `timeout_at` is in the frame by which the
 * thread returns, in the block, or where its interrupted call reads its timeout. lowtide has read it there, so it is
 * written without a check, as the kernel itself would write there. */
static void write_timeout(struct shared_block *s, u64 spent) {
    u64 left = s->timeout_ns > spent ? s->timeout_ns - spent : 0;
    if (s->timeout_form == TIMEOUT_MS) {
        *(u64 *)s->timeout_at = (left + 999999) / 1000000;
    } else if (s->timeout_form == TIMEOUT_TIMESPEC) {
        u64 *time = (u64 *)s->timeout_at;
        time[0] = left / 1000000000UL;
        time[1] = left % 1000000000UL;
    }
}

/* Runs in a borrowed thread of the target, with all signals blocked: does its task, and returns
 * whether its interrupted call must fail with EINTR. */
__attribute__((used)) static int work_borrowed(struct shared_block *s) {
    u64 begin = clock_ns();
    if (s->task == TASK_SLICE) {
        u64 until = begin + s->slice_ns;
        while (s->next < s->count && clock_ns() < until)
            run_locked(s, 0);
    } else if (s->task == TASK_CALL) {
        /* A function with fewer parameters ignores the zeros. */
        s->result = ((int (*)(u64, u64, u64, u64, u64))s->function)(s->argument, 0, 0, 0, 0);
    }
    s->worked_ns = clock_ns() - begin + 1;
    write_timeout(s, s->worked_ns);
    return is_interrupted(s);
}

#endif
