/* What lowtide and its code in the target tell each other. `build.rs` makes Rust's constants of the numbers
 * here, and AT below holds them to where the fields really are. */

typedef unsigned int u32;
typedef unsigned long u64;

#define S_(x) #x
#define S(x) S_(x)

/* System calls of the code, by their numbers on x86-64, and what it gives them. lowtide asks the seccomp filters
 * of a thread about them (`code_calls` in calls.rs); a test holds that it knows each name with NR_, FUTEX_, PR_
 * and the like that stub.c has. */
#define NR_RT_SIGACTION 13
#define NR_RT_SIGPROCMASK 14
#define NR_RT_SIGRETURN 15
#define NR_MADVISE 28
#define NR_NANOSLEEP 35
#define NR_CLONE 56
#define NR_EXIT 60
#define NR_RT_SIGPENDING 127
#define NR_PRCTL 157
#define NR_FUTEX 202
#define NR_CLOCK_GETTIME 228
#define SIGPROCMASK_INVALID 77 /* no way to set a mask: the call fails after it has read the set */
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129
#define FUTEX_CMP_REQUEUE_PRIVATE 132
#define MADV_DONTNEED 4
#define PR_SET_NAME 15
#define PR_GET_MDWE 66
#define CLOCK_MONOTONIC 1

#define CODE_BYTES 4096 /* of the mapping of the code; the shared block follows */
#define MOST_PAGES 512  /* whatever the parameters are, no lock is held for more pages */

#define CLASSES 256
#define PAGES_KNOWN 128

/* Where things stand, in bytes, for the code that is written in assembler. */
#define OFF_BACK_AT 0
#define OFF_BROKEN_AT 8
#define OFF_MASK 16
#define OFF_ALL 24
#define OFF_TIMESPEC 32
#define OFF_BORROWED 48
#define OFF_WANTED 52
#define OFF_CLONE_FLAGS 56
#define OFF_CLONED 64
#define OFF_TLS 72
#define OFF_TID 80
#define OFF_TRIMS 84
#define STORAGE_AT 0x30000       /* thread-local storage of a thread that trims: it has no acts, whose place this is */
#define STORAGE_BYTES 0x880      /* of it, from STORAGE_AT on, with what aligns it */
#define OPS_END 0x34000          /* after the acts */
#define STACK_END 0x3c000        /* of a borrowed thread */
#define THREAD_STACK_END 0x40000 /* of our own */

#define WANTED_CLONE 1
#define WANTED_SLICE 2
#define WANTED_TRIM 3

#define STATE_BACK 1 /* the borrowed thread is itself again, but for its last two instructions */

#define STATE_THERE 1
#define STATE_LEFT 2

#define BATCH_LEAVE 0xffffffffu

/* The interrupted call after a handler: begun again whatever happens, by SA_RESTART, or never. */
#define RESTARTS_ALWAYS 0
#define RESTARTS_IF_ASKED 1
#define RESTARTS_NEVER 2

#define LEFT_NOT_TOLD 0
#define LEFT_IN_MS 1
#define LEFT_AS_TIMESPEC 2

#define ERROR_SINGLE 1 /* the process has become single-threaded */

#define OP_CHUNK 0 /* give back pages of a free chunk */
#define OP_TOP 1   /* give back pages of the top */
#define OP_JOIN 2  /* join the chunks of a fast bin: `chunk` is where the bin is, `bytes` how many */

/* One act. Of OP_CHUNK and OP_TOP: `bytes` from `from` on are given back, which lie in the free chunk at
 * `chunk` of `size` bytes. */
struct op {
    u64 arena, chunk, size, from, bytes, kind;
};
#define OP_BYTES 48

struct shared {
    /* Two frames of signals on the stack of the borrowed thread, by either of which it goes back: with its call
     * begun again, and with its call broken off. */
    u64 back_at, broken_at, mask, all, timespec[2];
    u32 borrowed, wanted;
    u64 clone_flags, cloned, tls;
    u32 tid, trims;
    u64 restarts, slice_ns, function, result, worked_ns;
    /* The thread of our own. `beat` is what tells it that somebody is still there. */
    u32 state, error, batch, done, beat, unused;
    char name[16];
    u64 mdwe, bytes, main_arena, bins_at, mixed_links, single_threaded;
    u64 pages_per_hold, hold_ns, rest_ns, patience_ns, abandon_ns;
    /* What is to be done, and what was. Hold times are counted in classes, eight for a power of two. */
    u64 count, next, holds, returned, skipped, busy, joined, longest_ns;
    u64 classes[CLASSES];
    /* Who put all this here: number, beginning and PID namespace. */
    u64 owner_pid, owner_start, owner_namespace;
    /* Of the interrupted call: the signals that it blocks while it waits, and what is left of its time-out,
     * where that must be told anew: at the address `left_at`, in milliseconds or as a timespec. */
    u64 waits_with, left_how, left_at, left_ns;
    /* Which hold of a lock it is, and pages that were found to be there in it. */
    u64 hold, pages[PAGES_KNOWN];
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
#define OFF_BEAT 144
#define OFF_NAME 152
#define OFF_MDWE 168
#define OFF_BYTES 176
#define OFF_MAIN_ARENA 184
#define OFF_BINS_AT 192
#define OFF_MIXED_LINKS 200
#define OFF_SINGLE_THREADED 208
#define OFF_PAGES_PER_HOLD 216
#define OFF_HOLD_NS 224
#define OFF_REST_NS 232
#define OFF_PATIENCE_NS 240
#define OFF_ABANDON_NS 248
#define OFF_COUNT 256
#define OFF_NEXT 264
#define OFF_HOLDS 272
#define OFF_RETURNED 280
#define OFF_SKIPPED 288
#define OFF_BUSY 296
#define OFF_JOINED 304
#define OFF_LONGEST_NS 312
#define OFF_CLASSES 320
#define OFF_OWNER 2368
#define OFF_WAITS_WITH 2392
#define OFF_LEFT_HOW 2400
#define OFF_LEFT_AT 2408
#define OFF_LEFT_NS 2416
#define OFF_HOLD 2424
#define OFF_OPS 3456

#define AT(field, offset) \
    _Static_assert(__builtin_offsetof(struct shared, field) == offset, #field " stands elsewhere")
AT(back_at, OFF_BACK_AT);
AT(broken_at, OFF_BROKEN_AT);
AT(mask, OFF_MASK);
AT(all, OFF_ALL);
AT(timespec, OFF_TIMESPEC);
AT(borrowed, OFF_BORROWED);
AT(wanted, OFF_WANTED);
AT(clone_flags, OFF_CLONE_FLAGS);
AT(cloned, OFF_CLONED);
AT(tls, OFF_TLS);
AT(tid, OFF_TID);
AT(trims, OFF_TRIMS);
AT(restarts, OFF_RESTARTS);
AT(slice_ns, OFF_SLICE_NS);
AT(function, OFF_FUNCTION);
AT(result, OFF_RESULT);
AT(worked_ns, OFF_WORKED_NS);
AT(state, OFF_STATE);
AT(error, OFF_ERROR);
AT(batch, OFF_BATCH);
AT(done, OFF_DONE);
AT(beat, OFF_BEAT);
AT(name, OFF_NAME);
AT(mdwe, OFF_MDWE);
AT(bytes, OFF_BYTES);
AT(main_arena, OFF_MAIN_ARENA);
AT(bins_at, OFF_BINS_AT);
AT(mixed_links, OFF_MIXED_LINKS);
AT(single_threaded, OFF_SINGLE_THREADED);
AT(pages_per_hold, OFF_PAGES_PER_HOLD);
AT(hold_ns, OFF_HOLD_NS);
AT(rest_ns, OFF_REST_NS);
AT(patience_ns, OFF_PATIENCE_NS);
AT(abandon_ns, OFF_ABANDON_NS);
AT(count, OFF_COUNT);
AT(next, OFF_NEXT);
AT(holds, OFF_HOLDS);
AT(returned, OFF_RETURNED);
AT(skipped, OFF_SKIPPED);
AT(busy, OFF_BUSY);
AT(joined, OFF_JOINED);
AT(longest_ns, OFF_LONGEST_NS);
AT(classes, OFF_CLASSES);
AT(owner_pid, OFF_OWNER);
AT(waits_with, OFF_WAITS_WITH);
AT(left_how, OFF_LEFT_HOW);
AT(left_at, OFF_LEFT_AT);
AT(left_ns, OFF_LEFT_NS);
AT(hold, OFF_HOLD);
AT(ops, OFF_OPS);
_Static_assert(OFF_OPS + 4096 < STORAGE_AT && STORAGE_AT + STORAGE_BYTES <= OPS_END,
               "the storage of a thread that trims is not in the place of the acts");
_Static_assert(OPS_END < STACK_END && STACK_END < THREAD_STACK_END, "the parts of the block overlap");
_Static_assert(sizeof(struct op) == OP_BYTES, "one act has another size");
