/* Operations on the free memory of other allocators. lowtide has found each range together with its guard: a
 * lock, bits of a bitmap of free slices, or a thread that is the only one to allocate it. Under the guard, every
 * condition that the walk has recorded is checked, and then the pages are dropped. The conditions for each
 * allocator are in crates/heap (`droppable`).
 *
 * The words of the conditions are in the allocators' own structures, which they never unmap. Nevertheless, each
 * is read only after the kernel has confirmed that it is mapped. */

#define DIFFERS 1UL /* the lowest bit of `at`: the bits must have another value */

/* A condition on the bits of a word. The conditions follow their operation in the table, two per slot. */
struct check {
    u64 at, mask, value;
};

#define MUSL_HELD 0x80000000u /* in a lock of musl */

#define CHECKS(o) ((o)->locked.checks) /* at the same place for each kind */

static u64 slots_of(const struct op *o) {
    return 1 + (CHECKS(o) + 1) / 2;
}

static u64 pages_of(const struct op *o) {
    return o->bytes / PAGE;
}

/* Returns whether the checks of an operation hold, starting with `first`. */
static int all_hold(struct shared_block *s, const struct op *o, u64 first) {
#ifdef LOWTIDE_CONTROL_UNCHECKED
    return 1;
#endif
    const struct check *checks = (const struct check *)(o + 1);
    for (u64 i = first; i < CHECKS(o); i++) {
        u64 at = checks[i].at & ~DIFFERS, differs = checks[i].at & DIFFERS;
        if (at % 8 || !is_page(s, at))
            return 0;
        u64 bits = __atomic_load_n((u64 *)at, __ATOMIC_RELAXED) & checks[i].mask;
        if ((bits == checks[i].value) == differs)
            return 0;
    }
    return 1;
}

#ifdef LOWTIDE_CONTROL_UNGUARDED
static void sleep_ns(struct shared_block *s, u64 ns);
#endif

/* Drops pages that no thread can allocate now. */
static int drop_guarded(struct shared_block *s, const struct op *o) {
#ifdef LOWTIDE_CONTROL_UNGUARDED
    sleep_ns(s, 1000000); /* so that the program can allocate them between the checks and here */
#endif
    return drop_pages(s, o);
}

static int is_sound(struct shared_block *s, const struct op *o) {
    return CHECKS(o) <= MAX_CHECKS && s->next + slots_of(o) <= s->count && !((o->from | o->bytes) & (PAGE_BYTES(s) - 1)) &&
           pages_of(o) <= s->pages_per_hold;
}

/* Claims slices, drops pages of them, and returns them, as mimalloc's own purge does
 * (mi_arena_try_purge_range). No thread waits for a claim: a thread that allocates meanwhile takes
 * other slices. */
static int drop_claimed(struct shared_block *s, const struct op *o) {
    const struct check *summary = (const struct check *)(o + 1);
    u64 *word = (u64 *)o->claim.word, bits = o->claim.bits;
    if (!bits || o->claim.word % 8 || o->claim.checks == 0 || summary->at % 8 || !is_page(s, o->claim.word) ||
        !is_page(s, summary->at) || !all_hold(s, o, 1))
        return 0;
#if defined(LOWTIDE_CONTROL_UNCHECKED) || defined(LOWTIDE_CONTROL_UNGUARDED)
    (void)word;
    return drop_guarded(s, o);
#endif
    u64 seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    do {
        if ((seen & bits) != bits)
            return 0;
    } while (!__atomic_compare_exchange_n(word, &seen, seen & ~bits, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    int done = drop_guarded(s, o);
    __atomic_fetch_or(word, bits, __ATOMIC_RELEASE);
    __atomic_fetch_or((u64 *)summary->at, summary->mask, __ATOMIC_RELEASE);
    return done;
}

/* Returns whether a block is in a list, in which each block starts with the address of the next.
 * Only the calling thread changes the list. */
static int is_listed(struct shared_block *s, const struct check *list, u64 block) {
    u64 at = list->at;
#ifdef LOWTIDE_CONTROL_UNCHECKED
    return 1;
#endif
    for (u64 n = 0; n < MAX_LISTED; n++) {
        if (at % 8 || !is_page(s, at))
            return 0;
        at = *(const u64 *)at;
        if (at == block)
            return 1;
        if (at < list->mask || at >= list->value)
            return 0;
    }
    return 0;
}

static int drop_owned(struct shared_block *s, const struct op *o) {
    if (o->owned.block && (o->owned.checks == 0 || !is_listed(s, (const struct check *)(o + 1), o->owned.block)))
        return 0;
    return all_hold(s, o, o->owned.block != 0) && drop_guarded(s, o);
}

/* Takes the lock of musl's malloc as its `__lock` does, and does not wait for it. musl counts the calling thread, so
 * it takes locks as long as another thread lives. Where it takes none, the calling thread must be the only one of the
 * process: it waits outside of the allocator. */
static int take_musl(struct shared_block *s, const struct op *o) {
    u64 threads = o->musl.threads;
    u32 *lock = (u32 *)o->guard;
    if (s->alone)
        return NOT_NEEDED;
    if (!lock || o->guard % 4 || threads % 8 || !is_word(threads))
        return BUSY;
    u64 state = __atomic_load_n((u64 *)threads, __ATOMIC_ACQUIRE);
    if ((signed char)(state >> 24) <= 0 || (int)(state >> 32) <= 0)
        return BUSY;
    u32 seen = __atomic_load_n(lock, __ATOMIC_RELAXED);
    if (seen & MUSL_HELD ||
        !__atomic_compare_exchange_n(lock, &seen, seen + MUSL_HELD + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return BUSY;
    return TAKEN;
}

/* Releases it as `__unlock` does: others are counted in it if they wait. */
static void unlock_musl(u32 *lock) {
    if (__atomic_load_n(lock, __ATOMIC_RELAXED) & MUSL_HELD &&
        __atomic_fetch_sub(lock, MUSL_HELD + 1, __ATOMIC_RELEASE) != MUSL_HELD + 1)
        wake_one((u64)lock);
}

/* Runs an operation. Returns whether it is complete. */
static int run_op(struct shared_block *s, struct op *o, u64 begin) {
    (void)begin;
    int done = 0;
    if (is_sound(s, o) && o->kind == OP_CLAIM)
        done = drop_claimed(s, o);
    else if (is_sound(s, o) && o->kind == OP_OWNED)
        done = drop_owned(s, o);
    else if (is_sound(s, o) && (o->kind == OP_LOCKED || o->kind == OP_MUSL))
        done = all_hold(s, o, 0) && drop_guarded(s, o);
    s->skipped += !done;
    return 1;
}
