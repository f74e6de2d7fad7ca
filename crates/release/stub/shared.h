/* The interface between lowtide and its code in the target: numbers, and the types that contract.def describes.
 * `build.rs` generates Rust from both. A number with the suffix `u` is that of a field of 32 bits. */

typedef unsigned int u32;
typedef unsigned long u64;

#define S_(x) #x
#define S(x) S_(x)

/* The numbers that depend on the processor: of system calls, and CODE_BYTES. contract.def lists each call that is made,
 * with its arguments. */
#include "numbers.h"

#define SIGPROCMASK_SETMASK 2
#define SIGPROCMASK_INVALID 77 /* not a valid `how`: the call fails after it has read the set */
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129
#define FUTEX_CMP_REQUEUE_PRIVATE 132
#define MADV_DONTNEED 4
#define PR_GET_TSC 25
#define PR_GET_MDWE 66
#define CLOCK_MONOTONIC 1
#define TSC_ENABLED 1 /* PR_TSC_ENABLE: the answer of PR_GET_TSC if the thread may read the counter */

#define MAX_PAGES 512 /* per lock hold, whatever the parameters are */

#define CLASSES 256
#define KNOWN_PAGES 128

/* Places in the block, in bytes. */
#define OPS_END 0x34000          /* after the operations */
#define STACK_END 0x3c000        /* of a borrowed thread */
#define THREAD_STACK_END 0x40000 /* of the worker thread */

#define TASK_CLONE 1u
#define TASK_SLICE 2u
#define TASK_CALL 3u

#define STATE_BACK 1 /* for the assembler, without suffix: the borrowed thread has returned, except for its last two instructions */

#define STATE_RUNNING 1u
#define STATE_ENDED 2u

#define BATCH_LEAVE 0xffffffffu

/* Whether the interrupted call restarts after a handler: always, if the handler has SA_RESTART, or never. */
#define RESTARTS_ALWAYS 0
#define RESTARTS_IF_ASKED 1
#define RESTARTS_NEVER 2

#define TIMEOUT_KEPT 0
#define TIMEOUT_MS 1
#define TIMEOUT_TIMESPEC 2

/* The clock of the worker thread. All of its times are in ticks of this clock. */
#define CLOCK_KERNEL 0u /* nanoseconds of CLOCK_MONOTONIC */
#define CLOCK_TSC 1u    /* the time stamp counter: a thread that reads it makes no system call */

#define ERROR_SINGLE 1u /* the process has become single-threaded */
#define ERROR_TSC 2u    /* the thread must not read the time stamp counter: no worker thread was started */

#define MAX_LISTED 512 /* blocks of a list that are followed */
#define MAX_CHECKS 17 /* of one operation, with the summary of a claim, or the list of a block */

/* One operation. Each kind has its own names for the first five words. */
struct op {
    union {
        struct {
            u64 guard, second, third, from, bytes;
        };
#define OP(KIND, name, number, a, b, c, d, e) \
    struct { \
        u64 a, b, c, d, e; \
    } name;
#include "contract.def"
    };
    u64 kind;
};
#define OP_BYTES 48

enum {
#define OP(KIND, name, number, a, b, c, d, e) OP_##KIND = number,
#include "contract.def"
};

struct shared_block {
#define FIELD(type, name) type name;
#define FIELDS(type, name, count) type name[count];
#include "contract.def"
    struct op ops[];
};

_Static_assert(OPS_END < STACK_END && STACK_END < THREAD_STACK_END, "the parts of the block overlap");
_Static_assert(sizeof(struct op) == OP_BYTES, "one operation has another size");
