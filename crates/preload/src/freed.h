/* What lowtide reads from outside: the symbol `lowtide_freed`. src/freed.rs reads it. */

#include <stdint.h>

#define MAGIC 0x4445455246574f4cUL /* "LOWFREED" */
#define VERSION 1

/* Bytes that a thread frees before it adds them to the count. */
#define STEP 65536L

/* Bits of `flags`. None is set before the library has looked for the allocator. */
#define COUNTS 1u         /* frees are counted */
#define TRIMS 2u          /* malloc_trim is called at the threshold */
#define PRECEDED 4u       /* an object before this library defines `free`: only what it passes on is counted */
#define SANITIZED 8u      /* not counted: the program has a sanitizer */
#define PRIVILEGED 16u    /* not counted: the program has more privileges than its caller (AT_SECURE) */
#define NO_SIZES 32u      /* not counted: what serves `free` lacks `malloc`, `realloc` or `malloc_usable_size` */
#define OWN_DELETE 64u    /* the allocator has an `operator delete`, whose frees are not counted */
#define BAD_THRESHOLD 128u /* LOWTIDE_TRIM_AT is not a number of bytes */
#define NO_TRIM 256u      /* LOWTIDE_TRIM_AT is set, but the allocator has no `malloc_trim` */

struct lowtide_freed {
    uint64_t magic;
    uint32_t version, flags;
    uint64_t freed_bytes; /* a multiple of STEP */
    uint64_t threshold;   /* freed bytes between two trims; 0: none */
    uint64_t trims;
    /* PID of the process of which a thread trims, or 0. A child inherits its parent's, which then means nothing. */
    uint32_t trimming;
    uint32_t reserved[5];
};
