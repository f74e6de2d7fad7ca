/* The interface between lowtide and its code in the target. `build.rs` generates Rust constants from the numbers
 * here, and AT below asserts that they match the fields. */

typedef unsigned int u32;
typedef unsigned long u64;

#define S_(x) #x
#define S(x) S_(x)

/* System calls of the code, by their numbers on x86-64, and their arguments. lowtide checks them against the seccomp
 * filters of a thread (`code_calls` in calls.rs); a test asserts that it knows each name with NR_, FUTEX_, PR_ and
 * the like that stub.c uses. */
#define NR_RT_SIGACTION 13
#define NR_RT_SIGPROCMASK 14
#define NR_RT_SIGRETURN 15
#define NR_MADVISE 28
#define NR_CLONE 56
#define NR_EXIT 60
#define NR_RT_SIGPENDING 127
#define NR_PRCTL 157
#define NR_FUTEX 202
#define NR_CLOCK_GETTIME 228
#define SIGPROCMASK_INVALID 77 /* not a valid `how`: the call fails after it has read the set */
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129
#define FUTEX_CMP_REQUEUE_PRIVATE 132
#define MADV_DONTNEED 4
#define PR_GET_TSC 25
#define PR_GET_MDWE 66
#define CLOCK_MONOTONIC 1
#define TSC_ENABLED 1 /* PR_TSC_ENABLE: the answer of PR_GET_TSC if the thread may read the counter */

#define CODE_BYTES 4096 /* of the mapping of the code; the shared block follows */
#define MAX_PAGES 512   /* per lock hold, whatever the parameters are */

#define CLASSES 256
#define KNOWN_PAGES 128

/* Offsets of fields in bytes, for the code in assembler. */
#define OFF_BACK_AT 0
#define OFF_BROKEN_AT 8
#define OFF_MASK 16
#define OFF_ALL_SIGNALS 24
#define OFF_TIMESPEC 32
#define OFF_BORROWED 48
#define OFF_TASK 52
#define OFF_CLONE_FLAGS 56
#define OFF_CLONED 64
#define OFF_SYSCALL_AT 72
#define OFF_TID 80
#define OFF_CLOCK 84
#define OPS_END 0x34000          /* after the operations */
#define STACK_END 0x3c000        /* of a borrowed thread */
#define THREAD_STACK_END 0x40000 /* of the worker thread */

#define TASK_CLONE 1
#define TASK_SLICE 2
#define TASK_CALL 3

#define STATE_BACK 1 /* the borrowed thread has returned, except for its last two instructions */

#define STATE_RUNNING 1
#define STATE_ENDED 2

#define BATCH_LEAVE 0xffffffffu

/* Whether the interrupted call restarts after a handler: always, if the handler has SA_RESTART, or never. */
#define RESTARTS_ALWAYS 0
#define RESTARTS_IF_ASKED 1
#define RESTARTS_NEVER 2

#define TIMEOUT_KEPT 0
#define TIMEOUT_MS 1
#define TIMEOUT_TIMESPEC 2

/* The clock of the worker thread. All of its times are in ticks of this clock. */
#define CLOCK_KERNEL 0 /* nanoseconds of CLOCK_MONOTONIC */
#define CLOCK_TSC 1    /* the time stamp counter: a thread that reads it makes no system call */

#define ERROR_SINGLE 1 /* the process has become single-threaded */
#define ERROR_TSC 2    /* the thread must not read the time stamp counter: no worker thread was started */

#define OP_CHUNK 0       /* drop pages of a free chunk */
#define OP_TOP 1         /* drop pages of the top chunk */
#define OP_CONSOLIDATE 2 /* consolidate the chunks of the fast bin at `chunk`, at most `bytes` of them */

/* Operations of the code for other allocators (guarded.h). */
#define OP_LOCKED 3   /* drop pages under a lock, if all checks hold */
#define OP_CLAIM 4    /* claim free slices by their bits, and drop pages of them */
#define OP_OWNED 5    /* drop pages in the thread that owns them, if all checks hold */
#define MAX_LISTED 512 /* blocks of a list that are followed */
#define MAX_CHECKS 17 /* of one operation, with the summary of a claim, or the list of a block */

/* One operation. For OP_CHUNK and OP_TOP, `bytes` from `from` on are dropped, which lie in the free chunk at `chunk`
 * of `size` bytes. */
struct op {
    u64 arena, chunk, size, from, bytes, kind;
};
#define OP_BYTES 48

struct shared_block {
    /* Two signal frames on the stack of the borrowed thread, by either of which it returns: with its call restarted,
     * and with its call interrupted. */
    u64 back_at, broken_at, mask, all_signals, timespec[2];
    u32 borrowed, task;
    /* `syscall_at` is the address of a `syscall; ret` of the C library, by which all calls are made. */
    u64 clone_flags, cloned, syscall_at;
    u32 tid, clock;
    u64 restarts, slice_ns, function, result, worked_ns;
    /* The worker thread. lowtide changes `heartbeat` as long as it is there. `parked` is the futex on which it sleeps,
     * and always 0. */
    u32 state, error, batch, done, heartbeat, parked;
    u64 former_name[2]; /* of the worker thread */
    u64 mdwe, bytes, main_arena, bins_at, mixed_links, single_threaded;
    u64 pages_per_hold, hold_ticks, gap_ns, lock_timeout_ticks, heartbeat_timeout_ticks;
    /* Operations to do, and counts. Lock hold times are counted in classes, eight for a power of two. */
    u64 count, next, lock_holds, returned, skipped, busy, consolidated, longest_ticks;
    u64 classes[CLASSES];
    /* The lowtide process that has mapped this: PID, start time and PID namespace. */
    u64 injector_pid, injector_start, injector_namespace;
    /* The interrupted call: the signals that it blocks while it waits, and its remaining timeout, if that must be
     * rewritten: at the address `timeout_at`, in milliseconds or as a timespec. */
    u64 wait_mask, timeout_form, timeout_at, timeout_ns;
    /* The serial number of the current lock hold, and the pages that were found to be mapped during it. */
    u64 lock_serial, pages[KNOWN_PAGES];
    /* The argument of the function call. */
    u64 argument;
    struct op ops[];
};

#define OFF_RESTARTS 88
#define OFF_SLICE_NS 96
#define OFF_FUNCTION 104
#define OFF_RESULT 112
#define OFF_WORKED_NS 120
#define OFF_STATE 128
#define OFF_ERROR 132
#define OFF_BATCH 136
#define OFF_DONE 140
#define OFF_HEARTBEAT 144
#define OFF_MDWE 168
#define OFF_BYTES 176
#define OFF_MAIN_ARENA 184
#define OFF_BINS_AT 192
#define OFF_MIXED_LINKS 200
#define OFF_SINGLE_THREADED 208
#define OFF_PAGES_PER_HOLD 216
#define OFF_HOLD_TICKS 224
#define OFF_GAP_NS 232
#define OFF_LOCK_TIMEOUT_TICKS 240
#define OFF_HEARTBEAT_TIMEOUT_TICKS 248
#define OFF_COUNT 256
#define OFF_NEXT 264
#define OFF_LOCK_HOLDS 272
#define OFF_RETURNED 280
#define OFF_SKIPPED 288
#define OFF_BUSY 296
#define OFF_CONSOLIDATED 304
#define OFF_LONGEST_TICKS 312
#define OFF_CLASSES 320
#define OFF_INJECTOR 2368
#define OFF_WAIT_MASK 2392
#define OFF_TIMEOUT_FORM 2400
#define OFF_TIMEOUT_AT 2408
#define OFF_TIMEOUT_NS 2416
#define OFF_LOCK_SERIAL 2424
#define OFF_ARGUMENT 3456
#define OFF_OPS 3464

#define AT(field, offset) \
    _Static_assert(__builtin_offsetof(struct shared_block, field) == offset, #field " has another offset")
AT(back_at, OFF_BACK_AT);
AT(broken_at, OFF_BROKEN_AT);
AT(mask, OFF_MASK);
AT(all_signals, OFF_ALL_SIGNALS);
AT(timespec, OFF_TIMESPEC);
AT(borrowed, OFF_BORROWED);
AT(task, OFF_TASK);
AT(clone_flags, OFF_CLONE_FLAGS);
AT(cloned, OFF_CLONED);
AT(syscall_at, OFF_SYSCALL_AT);
AT(tid, OFF_TID);
AT(clock, OFF_CLOCK);
AT(restarts, OFF_RESTARTS);
AT(slice_ns, OFF_SLICE_NS);
AT(function, OFF_FUNCTION);
AT(result, OFF_RESULT);
AT(worked_ns, OFF_WORKED_NS);
AT(state, OFF_STATE);
AT(error, OFF_ERROR);
AT(batch, OFF_BATCH);
AT(done, OFF_DONE);
AT(heartbeat, OFF_HEARTBEAT);
AT(mdwe, OFF_MDWE);
AT(bytes, OFF_BYTES);
AT(main_arena, OFF_MAIN_ARENA);
AT(bins_at, OFF_BINS_AT);
AT(mixed_links, OFF_MIXED_LINKS);
AT(single_threaded, OFF_SINGLE_THREADED);
AT(pages_per_hold, OFF_PAGES_PER_HOLD);
AT(hold_ticks, OFF_HOLD_TICKS);
AT(gap_ns, OFF_GAP_NS);
AT(lock_timeout_ticks, OFF_LOCK_TIMEOUT_TICKS);
AT(heartbeat_timeout_ticks, OFF_HEARTBEAT_TIMEOUT_TICKS);
AT(count, OFF_COUNT);
AT(next, OFF_NEXT);
AT(lock_holds, OFF_LOCK_HOLDS);
AT(returned, OFF_RETURNED);
AT(skipped, OFF_SKIPPED);
AT(busy, OFF_BUSY);
AT(consolidated, OFF_CONSOLIDATED);
AT(longest_ticks, OFF_LONGEST_TICKS);
AT(classes, OFF_CLASSES);
AT(injector_pid, OFF_INJECTOR);
AT(wait_mask, OFF_WAIT_MASK);
AT(timeout_form, OFF_TIMEOUT_FORM);
AT(timeout_at, OFF_TIMEOUT_AT);
AT(timeout_ns, OFF_TIMEOUT_NS);
AT(lock_serial, OFF_LOCK_SERIAL);
AT(argument, OFF_ARGUMENT);
AT(ops, OFF_OPS);
_Static_assert(OPS_END < STACK_END && STACK_END < THREAD_STACK_END, "the parts of the block overlap");
_Static_assert(sizeof(struct op) == OP_BYTES, "one operation has another size");
