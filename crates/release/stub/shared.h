/* What lowtide and its code in the target tell each other. `build.rs` makes Rust's constants of the numbers
 * here, and AT below holds them to where the fields really are. */

typedef unsigned int u32;
typedef unsigned long u64;

#define S_(x) #x
#define S(x) S_(x)

#define CLASSES 256
#define PAGES_KNOWN 128

/* Where things stand, in bytes, for the code that is written in assembler. */
#define OFF_R15 0
#define OFF_R14 8
#define OFF_R13 16
#define OFF_R12 24
#define OFF_RBP 32
#define OFF_RBX 40
#define OFF_R11 48
#define OFF_R10 56
#define OFF_R9 64
#define OFF_R8 72
#define OFF_RAX 80
#define OFF_RCX 88
#define OFF_RDX 96
#define OFF_RSI 104
#define OFF_RDI 112
#define OFF_RSP 120
#define OFF_RIP 128
#define OFF_FLAGS 136
#define OFF_BROKEN_RIP 144
#define OFF_BROKEN_RAX 152
#define OFF_SAFE_RSP 160
#define OFF_MASK 168
#define OFF_ALL 176
#define OFF_BORROWED 184
#define OFF_WANTED 188
#define OFF_CLONE_FLAGS 192
#define OFF_CLONED 200
#define OFF_TLS 208
#define OFF_TID 216
#define OFF_TRIMS 220
#define VECTORS_AT 0x34000       /* where a borrowed thread's vector registers are kept */
#define STACK_END 0x3c000        /* of a borrowed thread */
#define THREAD_STACK_END 0x40000 /* of our own */

#define WANTED_CLONE 1
#define WANTED_SLICE 2
#define WANTED_TRIM 3

#define STATE_BACK 1 /* the borrowed thread is itself again, but for its last few instructions */

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
    /* The registers of the borrowed thread, and how it goes on. */
    u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, rsp, rip, flags;
    u64 broken_rip, broken_rax, safe_rsp, mask, all;
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
     * where that must be told anew: as milliseconds at `left_at` from here, or as a timespec at that
     * address. */
    u64 waits_with, left_how, left_at, left_ns;
    /* Which hold of a lock it is, and pages that were found to be there in it. */
    u64 hold, pages[PAGES_KNOWN];
    struct op ops[];
};

#define OFF_RESTARTS 224
#define OFF_SLICE_NS 232
#define OFF_FUNCTION 240
#define OFF_RESULT 248
#define OFF_WORKED_NS 256
#define OFF_STATE 264
#define OFF_ERROR 268
#define OFF_BATCH 272
#define OFF_DONE 276
#define OFF_BEAT 280
#define OFF_NAME 288
#define OFF_MDWE 304
#define OFF_BYTES 312
#define OFF_MAIN_ARENA 320
#define OFF_BINS_AT 328
#define OFF_MIXED_LINKS 336
#define OFF_SINGLE_THREADED 344
#define OFF_PAGES_PER_HOLD 352
#define OFF_HOLD_NS 360
#define OFF_REST_NS 368
#define OFF_PATIENCE_NS 376
#define OFF_ABANDON_NS 384
#define OFF_COUNT 392
#define OFF_NEXT 400
#define OFF_HOLDS 408
#define OFF_RETURNED 416
#define OFF_SKIPPED 424
#define OFF_BUSY 432
#define OFF_JOINED 440
#define OFF_LONGEST_NS 448
#define OFF_CLASSES 456
#define OFF_OWNER 2504
#define OFF_WAITS_WITH 2528
#define OFF_LEFT_HOW 2536
#define OFF_LEFT_AT 2544
#define OFF_LEFT_NS 2552
#define OFF_HOLD 2560
#define OFF_OPS 3592

#define AT(field, offset) \
    _Static_assert(__builtin_offsetof(struct shared, field) == offset, #field " stands elsewhere")
AT(r15, OFF_R15);
AT(r14, OFF_R14);
AT(r13, OFF_R13);
AT(r12, OFF_R12);
AT(rbp, OFF_RBP);
AT(rbx, OFF_RBX);
AT(r11, OFF_R11);
AT(r10, OFF_R10);
AT(r9, OFF_R9);
AT(r8, OFF_R8);
AT(rax, OFF_RAX);
AT(rcx, OFF_RCX);
AT(rdx, OFF_RDX);
AT(rsi, OFF_RSI);
AT(rdi, OFF_RDI);
AT(rsp, OFF_RSP);
AT(rip, OFF_RIP);
AT(flags, OFF_FLAGS);
AT(broken_rip, OFF_BROKEN_RIP);
AT(broken_rax, OFF_BROKEN_RAX);
AT(safe_rsp, OFF_SAFE_RSP);
AT(mask, OFF_MASK);
AT(all, OFF_ALL);
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
_Static_assert(sizeof(struct op) == OP_BYTES, "one act has another size");
