/* Operations on the heap of glibc: under an arena's lock, pages of free chunks are dropped, and the chunks of fast bins
 * are consolidated.
 *
 * The rules of the heap are those of malloc/malloc.c and arena.c of glibc 2.26 to 2.44. */

#define HEAP_MAX (64UL << 20) /* HEAP_MAX_SIZE: heaps of thread arenas begin at multiples of it */
#define LIST_BYTES 48UL       /* sizeof (struct malloc_chunk): what a free chunk keeps for its lists */
#define MINSIZE 32UL
#define PREV_INUSE 1UL
#define IS_MMAPPED 2UL
#define SIZE(head) ((head) & ~7UL)

struct chunk {
    u64 prev_size, head;
    struct chunk *fd, *bk, *fd_nextsize, *bk_nextsize;
};

/* --- Checks of a chunk before anything is done to it. */

/* Returns whether a word is mapped and has this value. The kernel compares it, and wakes and moves no waiter. The word
 * may be unmapped at any moment by a thread whose lock we do not hold. */
static int has_value(u64 at, u64 word) {
    for (u64 end = at + 8; at < end; at += 4, word >>= 32) {
        if (compare_futex(at, (u32)word) != 0)
            return 0;
    }
    return 1;
}

static int is_readable(struct shared_block *s, u64 at, u64 bytes) {
    return is_page(s, at) && (at / PAGE == (at + bytes - 1) / PAGE || is_page(s, at + bytes - 8));
}

/* Returns whether memory of a thread's arena is still in one of its heaps. The main arena's memory is not unmapped
 * while its lock is held.
 *
 * The other words of `info` are read without a check: a heap's first word is its arena, whose lock we hold if it
 * is `arena`, and the C library unmaps or shrinks a heap only under that lock (heap_trim). So the page that
 * `has_value` has found stays mapped until we unlock. The sum cannot overflow: `heap` is below 2^47 if it was read. */
static int is_of_arena(struct shared_block *s, u64 arena, u64 at, u64 end) {
    if (end < at)
        return 0;
    if (arena == s->main_arena)
        return 1;
    u64 heap = at & ~(HEAP_MAX - 1);
    const u64 *info = (const u64 *)heap; /* ar_ptr, prev, size */
    return has_value(heap, arena) && info[2] <= HEAP_MAX && end <= heap + info[2];
}

/* Returns whether a chunk is linked into a list, as unlink_chunk requires. */
static int is_linked(struct shared_block *s, const struct chunk *p) {
    u64 fd = (u64)p->fd, bk = (u64)p->bk;
    if (fd % 8 || bk % 8 || !is_readable(s, fd, 32) || !is_readable(s, bk, 32))
        return 0;
    return p->fd->bk == p && p->bk->fd == p;
}

/* Returns whether a free chunk of this size is here, in one of the bins. */
static int is_binned(struct shared_block *s, u64 arena, u64 at, u64 size) {
    const struct chunk *p = (const struct chunk *)at;
    if (at % 16 || size % 16 || size < MINSIZE || !is_of_arena(s, arena, at, at + size))
        return 0;
    if (!is_readable(s, at, LIST_BYTES) || !is_readable(s, at + size, 16))
        return 0;
    const struct chunk *next = (const struct chunk *)(at + size);
    if (SIZE(p->head) != size || p->head & IS_MMAPPED || !(p->head & PREV_INUSE))
        return 0;
    return next->prev_size == size && !(next->head & PREV_INUSE) && is_linked(s, p);
}

static struct chunk **top_of(struct shared_block *s, u64 arena) {
    return (struct chunk **)(arena + s->bins_at - 16);
}

/* --- Operations. */

static int are_within(const struct shared_block *s, const struct op *o, u64 from, u64 to) {
    (void)s;
    u64 end = o->from + o->bytes, last = PAGE_BYTES(s) - 1;
    return !((o->from | o->bytes) & last) && o->from < end && from <= o->from && end <= to;
}

/* Drops pages of a free chunk. */
static int drop_chunk(struct shared_block *s, const struct op *o) {
    if (!is_binned(s, o->chunk.arena, o->chunk.chunk, o->chunk.chunk_bytes))
        return 0;
    u64 end = o->chunk.chunk + o->chunk.chunk_bytes;
    return are_within(s, o, o->chunk.chunk + LIST_BYTES, end) && drop_pages(s, o);
}

/* Drops pages of the top chunk, wherever it is by now. */
static int drop_top(struct shared_block *s, const struct op *o) {
    u64 at = (u64)*top_of(s, o->top.arena);
    if (at % 16 || !is_readable(s, at, 16))
        return 0;
    u64 end = at + SIZE(((const struct chunk *)at)->head);
    if (end < at || !is_of_arena(s, o->top.arena, at, end))
        return 0;
    return are_within(s, o, at + LIST_BYTES, end) && drop_pages(s, o);
}

/* Unlinks a chunk from its lists, as glibc's unlink_chunk does. */
static void unlink_chunk(struct chunk *p) {
    struct chunk *fd = p->fd, *bk = p->bk;
    fd->bk = bk;
    bk->fd = fd;
    if (SIZE(p->head) < 1024 || !p->fd_nextsize)
        return;
    if (fd->fd_nextsize) {
        p->fd_nextsize->bk_nextsize = p->bk_nextsize;
        p->bk_nextsize->fd_nextsize = p->fd_nextsize;
    } else if (p->fd_nextsize == p) {
        fd->fd_nextsize = fd->bk_nextsize = fd;
    } else {
        fd->fd_nextsize = p->fd_nextsize;
        fd->bk_nextsize = p->bk_nextsize;
        p->fd_nextsize->bk_nextsize = fd;
        p->bk_nextsize->fd_nextsize = fd;
    }
}

/* Returns whether a chunk can be unlinked: for a large chunk, the list of sizes must be sound as well. */
static int can_be_unlinked(struct shared_block *s, u64 arena, u64 at, u64 size) {
    if (!is_binned(s, arena, at, size))
        return 0;
    const struct chunk *p = (const struct chunk *)at;
    if (size < 1024 || !p->fd_nextsize)
        return 1;
    u64 fd = (u64)p->fd_nextsize, bk = (u64)p->bk_nextsize;
    if (fd % 16 || bk % 16 || !is_readable(s, fd, LIST_BYTES) || !is_readable(s, bk, LIST_BYTES))
        return 0;
    return p->fd_nextsize->bk_nextsize == p && p->bk_nextsize->fd_nextsize == p &&
           is_readable(s, (u64)p->fd, LIST_BYTES);
}

/* Takes one chunk from a fast bin and consolidates it with its free neighbours, as malloc_consolidate does.
 * Everything is checked before anything is changed. Returns 1 if it was done, 0 if the bin is empty, -1 if a check
 * fails. */
static int consolidate_one(struct shared_block *s, const struct op *o) {
    struct chunk **bin = (struct chunk **)o->consolidate.bin;
    struct chunk *p = __atomic_load_n(bin, __ATOMIC_RELAXED);
    u64 at = (u64)p, size = o->consolidate.chunk_bytes, total = size;
    if (!p)
        return 0;
    if (at % 16 || !is_of_arena(s, o->consolidate.arena, at, at + size) || !is_readable(s, at, MINSIZE) ||
        !is_readable(s, at + size, 16) || SIZE(p->head) != size || p->head & IS_MMAPPED)
        return -1;
    struct chunk *next = (struct chunk *)(at + size), *previous = 0;
    struct chunk **top = top_of(s, o->consolidate.arena);
    u64 next_size = SIZE(next->head);
    int is_at_top = next == *top, is_next_free = 0;
    if (!(next->head & PREV_INUSE) || next->head & IS_MMAPPED)
        return -1; /* a fast chunk counts as used */
    if (!(p->head & PREV_INUSE)) {
        previous = (struct chunk *)(at - p->prev_size);
        if (!can_be_unlinked(s, o->consolidate.arena, (u64)previous, p->prev_size))
            return -1;
        total += p->prev_size;
    }
    if (!is_at_top) {
        u64 after_next = (u64)next + next_size;
        if (!is_of_arena(s, o->consolidate.arena, (u64)next, after_next) || !is_readable(s, after_next, 16))
            return -1;
        is_next_free = !(((struct chunk *)after_next)->head & PREV_INUSE);
        if (is_next_free && !can_be_unlinked(s, o->consolidate.arena, (u64)next, next_size))
            return -1;
    }
    struct chunk *unsorted = (struct chunk *)(o->consolidate.arena + s->bins_at - 16);
    if (!is_readable(s, (u64)unsorted->fd, 32) || unsorted->fd->bk != unsorted)
        return -1;
    u64 link = (u64)p->fd;
    struct chunk *tail = (struct chunk *)(s->mixed_links ? link ^ ((at + 16) >> 12) : link);
    if ((u64)tail % 16 || (tail && (!is_readable(s, (u64)tail, 16) || SIZE(tail->head) != size)))
        return -1;
    /* Without the lock, other threads may push chunks meanwhile, but none pops any. */
    struct chunk *expected = p;
    if (!__atomic_compare_exchange_n(bin, &expected, tail, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return 1;
    if (previous) {
        unlink_chunk(previous);
        p = previous;
    }
    if (is_at_top) {
        total += next_size;
        p->head = total | PREV_INUSE;
        *top = p;
        return 1;
    }
    if (is_next_free) {
        total += next_size;
        unlink_chunk(next);
    } else {
        next->head &= ~PREV_INUSE;
    }
    struct chunk *first = unsorted->fd;
    unsorted->fd = p;
    first->bk = p;
    if (total >= 1024)
        p->fd_nextsize = p->bk_nextsize = 0;
    p->head = total | PREV_INUSE;
    p->bk = unsorted;
    p->fd = first;
    ((struct chunk *)((u64)p + total))->prev_size = total;
    return 1;
}

/* Consolidates chunks of a fast bin until it is empty or the time of a lock hold, which began at `begin`, is up. Returns
 * whether the operation is complete. */
static int consolidate(struct shared_block *s, struct op *o, u64 begin) {
    for (u64 i = 0; o->consolidate.max_chunks > 0; i++) {
        if (i % 8 == 7 && has_elapsed(s, begin, s->hold_ticks))
            return 0;
        int done = consolidate_one(s, o);
        if (done <= 0) {
            s->skipped += done < 0;
            return 1;
        }
        o->consolidate.max_chunks--;
        s->consolidated++;
    }
    return 1;
}

/* Returns the slots of an operation in the table. */
static u64 slots_of(const struct op *o) {
    (void)o;
    return 1;
}

/* Returns the number of pages that an operation drops. */
static u64 pages_of(const struct op *o) {
    return o->kind == OP_CONSOLIDATE ? 0 : o->bytes / PAGE;
}

/* Runs an operation under the lock of its arena, which is held since `begin`. Returns whether it is complete. */
static int run_op(struct shared_block *s, struct op *o, u64 begin) {
    if (o->kind == OP_CONSOLIDATE)
        return consolidate(s, o, begin);
    int done = pages_of(o) <= s->pages_per_hold && (o->kind == OP_TOP ? drop_top(s, o) : drop_chunk(s, o));
    s->skipped += !done;
    return 1;
}
