/* Counts the bytes that a program frees. The program preloads it (LD_PRELOAD).
 *
 * It defines `free` and `realloc`, which forward to the allocator that the program would use without it. It
 * allocates nothing, starts no thread, and links to no library, so that it works on glibc and musl. If anything
 * about the allocator is unusual, it forwards and does not count.
 *
 * A thread counts down the bytes that it may free before it adds STEP to the common count. The first
 * count-down of a thread is shorter: the lengths are spread evenly over 1..STEP. So the count is within STEP per
 * live thread, and for threads that end before they have freed STEP bytes, it is right on average.
 *
 * C++'s `operator delete` is counted where it calls `free`, and not hooked (OWN_DELETE; src/lib.rs has the reason).
 * `realloc` counts the old block if it moved, and the difference if it shrank in place.
 *
 * With LOWTIDE_TRIM_AT=BYTES, the thread whose free reaches that count since the last trim calls
 * malloc_trim(0), which has no time limit. */

#define _GNU_SOURCE /* struct dl_phdr_info */

#include "freed.h"
#include "next.h"

#define PUBLIC __attribute__((visibility("default")))
#define WEAK __attribute__((weak))
#define COLD __attribute__((noinline, cold))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Number of bytes left while the allocator moves a block, if it calls the `free` here to do so. */
#define QUIET (__LONG_MAX__ / 2)

#define AT_SECURE 23

extern char **environ WEAK;
/* The program's own copy, if it has one. */
extern void *__free_hook WEAK;
extern const char *gnu_get_libc_version(void) WEAK;
extern unsigned long getauxval(unsigned long) WEAK;
extern int getpid(void) WEAK;
extern int *__errno_location(void) WEAK;
extern void __asan_init(void) WEAK, __hwasan_init(void) WEAK, __lsan_init(void) WEAK, __memprof_init(void) WEAK,
    __msan_init(void) WEAK, __tsan_init(void) WEAK;
/* Start of this library's file in memory. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));

PUBLIC struct lowtide_freed lowtide_freed __attribute__((aligned(64))) = {.magic = MAGIC, .version = VERSION};

static void *const no_hook;

/* The allocator. `usable_size` is set last, and only if frees are counted. */
static struct {
    size_t (*usable_size)(void *);
    void (*free)(void *);
    /* If it is set, a program replaces the allocator of glibc before 2.34. The blocks are not
     * glibc's then. */
    void *const *free_hook;
    void *(*realloc)(void *, size_t);
    int (*trim)(size_t);
    int is_prepared;
} next __attribute__((aligned(64))) = {.free_hook = &no_hook};

/* Bytes that this thread may free before the next addition; 0 before its first one. */
static __thread long left __attribute__((tls_model("initial-exec")));

static struct {
    uint64_t threads;
    uint64_t trimmed_at;
} shared __attribute__((aligned(64)));

static void set_flags(uint32_t flags) { __atomic_fetch_or(&lowtide_freed.flags, flags, __ATOMIC_RELEASE); }

/* The definitions in the objects of the program. */
struct search {
    int is_after_us;
    uint32_t flags;
    int is_glibc;
    void *free, *usable_size, *realloc, *trim;
};

static int search_object(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *s = data;
    struct object o;
    if (info->dlpi_addr == (ElfW(Addr))__ehdr_start) {
        s->is_after_us = 1;
        return 0;
    }
    if (!open_object(info, &o))
        return 0;
    if (!s->is_after_us) {
        s->flags |= find(&o, "free") ? PRECEDED : 0;
        return 0;
    }
    if (!s->realloc)
        s->realloc = find(&o, "realloc");
    if (!s->free && (s->free = find(&o, "free"))) {
        s->usable_size = find(&o, "malloc_usable_size");
        s->trim = find(&o, "malloc_trim");
        s->is_glibc = find(&o, "gnu_get_libc_version") != 0;
        int is_whole = s->usable_size && find(&o, "malloc") && s->realloc && s->realloc == find(&o, "realloc");
        s->flags |= (is_whole ? 0 : NO_SIZES) | (find(&o, "_ZdlPv") ? OWN_DELETE : 0);
    }
    return s->free && s->realloc;
}

static int has_sanitizer(void) {
    return __asan_init || __hwasan_init || __lsan_init || __memprof_init || __msan_init || __tsan_init;
}

/* Finds the allocator. If several threads do this, all find the same one. */
static COLD void prepare(void) {
    struct search s = {0};
    dl_iterate_phdr(search_object, &s);
    s.flags |= has_sanitizer() ? SANITIZED : 0;
    s.flags |= !getauxval || getauxval(AT_SECURE) ? PRIVILEGED : 0;
    int counts = s.free && !(s.flags & (SANITIZED | PRIVILEGED | NO_SIZES));
    next.free = s.free;
    next.realloc = s.realloc;
    next.trim = s.trim;
    /* Other objects define it as well, for glibc to call them. */
    if (s.is_glibc && &__free_hook)
        next.free_hook = &__free_hook;
    __atomic_store_n(&next.usable_size, counts ? s.usable_size : 0, __ATOMIC_RELEASE);
    __atomic_store_n(&next.is_prepared, 1, __ATOMIC_RELEASE);
    set_flags(s.flags | (counts ? COUNTS : 0));
}

/* Calls malloc_trim if it is due and no other thread is calling it. */
static COLD void trim_if_due(uint64_t freed) {
    uint64_t threshold = __atomic_load_n(&lowtide_freed.threshold, __ATOMIC_ACQUIRE);
    if (!threshold || freed - __atomic_load_n(&shared.trimmed_at, __ATOMIC_RELAXED) < threshold)
        return;
    uint32_t pid = (uint32_t)getpid(), owner = __atomic_load_n(&lowtide_freed.trimming, __ATOMIC_RELAXED);
    if (owner == pid
        || !__atomic_compare_exchange_n(
            &lowtide_freed.trimming, &owner, pid, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    freed = __atomic_load_n(&lowtide_freed.freed_bytes, __ATOMIC_RELAXED);
    if (freed - __atomic_load_n(&shared.trimmed_at, __ATOMIC_RELAXED) >= threshold) {
        int saved_errno = *__errno_location();
        __atomic_store_n(&shared.trimmed_at, freed, __ATOMIC_RELAXED);
        next.trim(0);
        __atomic_fetch_add(&lowtide_freed.trims, 1, __ATOMIC_RELEASE);
        *__errno_location() = saved_errno;
    }
    __atomic_store_n(&lowtide_freed.trimming, 0, __ATOMIC_RELEASE);
}

/* Returns the first count-down of a thread: multiples of the golden ratio spread evenly. */
static long first_count_down(void) {
    uint64_t thread = __atomic_fetch_add(&shared.threads, 1, __ATOMIC_RELAXED);
    return STEP - (long)((thread * 0x9e3779b97f4a7c15UL) >> 48) * STEP / (1L << 16);
}

/* Counts bytes that have been freed. */
static COLD void add(size_t size) {
    if (!left)
        left = first_count_down();
    left -= (long)size;
    if (left > 0)
        return;
    uint64_t added = (uint64_t)(-left / STEP + 1) * STEP;
    left += (long)added;
    trim_if_due(__atomic_add_fetch(&lowtide_freed.freed_bytes, added, __ATOMIC_RELAXED));
}

static COLD void free_and_add(void *block, size_t size) {
    next.free(block);
    add(size);
}

static COLD void free_uncounted(void *block) {
    if (!__atomic_load_n(&next.is_prepared, __ATOMIC_ACQUIRE))
        prepare();
    if (next.free)
        next.free(block);
}

PUBLIC void free(void *block) {
    size_t (*usable_size)(void *) = __atomic_load_n(&next.usable_size, __ATOMIC_ACQUIRE);
    if (!block)
        return;
    if (UNLIKELY(!usable_size || *next.free_hook)) {
        free_uncounted(block);
        return;
    }
    size_t size = usable_size(block);
    long then = left - (long)size;
    if (UNLIKELY(then <= 0)) {
        free_and_add(block, size);
        return;
    }
    left = then;
    next.free(block);
}

static COLD void *realloc_uncounted(void *block, size_t size) {
    if (!__atomic_load_n(&next.is_prepared, __ATOMIC_ACQUIRE))
        prepare();
    return next.realloc ? next.realloc(block, size) : 0;
}

PUBLIC void *realloc(void *block, size_t size) {
    size_t (*usable_size)(void *) = __atomic_load_n(&next.usable_size, __ATOMIC_ACQUIRE);
    if (UNLIKELY(!usable_size || !block || *next.free_hook))
        return realloc_uncounted(block, size);
    size_t old = usable_size(block), freed = 0;
    long before = left;
    left = QUIET;
    void *result = next.realloc(block, size);
    left = before;
    if (result != block && (result || !size)) {
        freed = old;
    } else if (result) {
        size_t now = usable_size(result);
        freed = now < old ? old - now : 0;
    }
    if (freed)
        add(freed);
    return result;
}

/* Reads a decimal number of bytes; returns 0 if it is not valid. */
static uint64_t parse_bytes(const char *text) {
    uint64_t value = 0;
    for (const char *c = text; *c; c++) {
        if (*c < '0' || *c > '9' || value > (1UL << 59))
            return 0;
        value = value * 10 + (uint64_t)(*c - '0');
    }
    return value;
}

/* Returns the value of LOWTIDE_TRIM_AT, or 0. */
static const char *wanted_threshold(char **variables) {
    static const char name[] = "LOWTIDE_TRIM_AT=";
    for (; variables && *variables; variables++) {
        size_t i = 0;
        while (name[i] && (*variables)[i] == name[i])
            i++;
        if (!name[i])
            return *variables + i;
    }
    return 0;
}

/* glibc passes the environment, and may set `environ` later; musl has set it, and passes nothing. */
static __attribute__((constructor)) void start(int count, char **arguments, char **variables) {
    (void)count, (void)arguments;
    if (!__atomic_load_n(&next.is_prepared, __ATOMIC_ACQUIRE))
        prepare();
    const char *text = wanted_threshold(gnu_get_libc_version ? variables : &environ ? environ : 0);
    if (!text || !next.usable_size)
        return;
    uint64_t threshold = parse_bytes(text);
    if (!threshold) {
        set_flags(BAD_THRESHOLD);
    } else if (!next.trim || !getpid || !__errno_location) {
        set_flags(NO_TRIM);
    } else {
        set_flags(TRIMS);
        __atomic_store_n(&lowtide_freed.threshold, threshold, __ATOMIC_RELEASE);
    }
}
