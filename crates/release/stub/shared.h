/* What lowtide and its code in the target tell each other. `src/stub.rs` has the same in Rust, and a test
 * holds both together. */

typedef unsigned int u32;
typedef unsigned long u64;

#define S_(x) #x
#define S(x) S_(x)

#define CLASSES 256

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

#define ERROR_SINGLE 1 /* the process has become single-threaded */

#define OP_CHUNK 0 /* give back pages of a free chunk */
#define OP_TOP 1   /* give back pages of the top */
#define OP_JOIN 2  /* join the chunks of a fast bin: `chunk` is where the bin is, `bytes` how many */

struct op {
    u64 arena, chunk, size, from, bytes, kind;
};

struct shared {
    /* The registers of the borrowed thread, and how it goes on. */
    u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, rsp, rip, flags;
    u64 broken_rip, broken_rax, safe_rsp, mask, all;
    u32 borrowed, wanted;
    u64 clone_flags, cloned, tls;
    u32 tid, trims;
    u64 restarts, slice_ns, function, result, worked_ns;
    /* The thread of our own. */
    u32 state, error, batch, done, beat, unused;
    char name[16];
    u64 mdwe, bytes, main_arena, bins_at, mixed_links, single_threaded;
    u64 pages_per_hold, hold_ns, rest_ns, patience_ns, abandon_ns;
    /* What is to be done, and what was. */
    u64 count, next, holds, returned, skipped, busy, joined, longest_ns;
    u64 classes[CLASSES];
    struct op ops[];
};
