/* Blocks of all sizes, each with its own pattern. The pattern is verified to the last byte before
 * the block is freed or resized, and in sweeps. These are the bytes that a release must never
 * touch. */
#include "torture.h"
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { EXCHANGE = 512, TABLE = 1 << 19 };
static struct block exchange[EXCHANGE];
static pthread_mutex_t exchange_lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns a word of a pattern. Words are rarely zero: a page that was returned to the OS reads as
 * zeros. */
static uint64_t word(uint64_t seed, size_t i) { return (seed + i) * 0x9e3779b97f4a7c15; }

static void fill(const struct block *b) {
    size_t words = b->size / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t w = word(b->seed, i);
        memcpy(b->at + 8 * i, &w, 8);
    }
    uint64_t last = word(b->seed, words);
    memcpy(b->at + 8 * words, &last, b->size % 8);
}

/* Returns the index of the first of `bytes` bytes that differs from the block's pattern, or -1. */
static long difference(const struct block *b, size_t bytes) {
    size_t words = bytes / 8;
    uint64_t wrong = 0, w;
    for (size_t i = 0; i < words; i++) {
        memcpy(&w, b->at + 8 * i, 8);
        wrong |= w ^ word(b->seed, i);
    }
    w = word(b->seed, words);
    if (!wrong && !memcmp(b->at + 8 * words, &w, bytes % 8)) return -1;
    for (size_t i = 0; i < bytes; i++) {
        w = word(b->seed, i / 8);
        if (b->at[i] != (unsigned char)(w >> 8 * (i % 8))) return (long)i;
    }
    return 0;
}

static void verify(const struct block *b, size_t bytes, const char *when) {
    long at = difference(b, bytes);
    if (at >= 0)
        violation("%s: block %p of %zu bytes differs at %ld: %02x", when, (void *)b->at, b->size, at, b->at[at]);
    atomic_fetch_add_explicit(&shared->checks, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&shared->bytes, bytes, memory_order_relaxed);
}

static void verify_zero(const unsigned char *at, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (at[i]) {
            violation("calloc: block %p of %zu bytes has %02x at %zu", (void *)at, size, at[i], i);
            return;
        }
    atomic_fetch_add_explicit(&shared->checks, 1, memory_order_relaxed);
}

/* Returns a size from 1 byte to 4 MB. All powers of two are equally likely, but large ones less
 * often because of their bytes. */
static size_t any_size(uint64_t *s) {
    size_t low = (size_t)1 << draw(s) % (draw(s) % 16 ? 14 : 22);
    return low + draw(s) % low;
}
static size_t small_size(uint64_t *s) { return 16 + draw(s) % 145; }

static void *new_bytes(uint64_t *s, size_t size) {
    size_t alignment = (size_t)16 << draw(s) % 13;
    unsigned char *p;
    switch (draw(s) % 8) {
    case 0:
        p = calloc(1 + size / 8, 8);
        if (p) verify_zero(p, 8 * (1 + size / 8));
        return p;
    case 1: p = memalign(alignment, size); break;
    case 2: p = aligned_alloc(alignment, (size + alignment - 1) & -alignment); break;
    default: return malloc(size);
    }
    if ((uintptr_t)p % alignment) violation("alignment: %p is no multiple of %zu", (void *)p, alignment);
    return p;
}

/* Fills a new block. Every second block is used as far as malloc permits, up to the next chunk's
 * header. */
static struct block taken(uint64_t *s, void *p, size_t size) {
    struct block b = {p, draw(s) % 2 ? malloc_usable_size(p) : size, draw(s) ^ (uintptr_t)p};
    fill(&b);
    return b;
}

static bool new_block(uint64_t *s, size_t size, struct block *b) {
    void *p = new_bytes(s, size);
    if (!p) {
        violation("no memory for %zu bytes", size);
        return false;
    }
    *b = taken(s, p, size);
    return true;
}

static void end_block(const struct block *b, const char *when) {
    verify(b, b->size, when);
    free(b->at);
}

static void add(struct mutator *m, size_t size) {
    struct block b;
    if (m->count == m->most || !new_block(&m->seed, size, &b)) return;
    m->blocks[m->count++] = b;
    m->bytes += b.size;
    progress();
}

static struct block taken_out(struct mutator *m) {
    size_t i = draw(&m->seed) % m->count;
    struct block b = m->blocks[i];
    m->blocks[i] = m->blocks[--m->count];
    m->bytes -= b.size;
    progress();
    return b;
}

static void resize(struct mutator *m) {
    struct block b = taken_out(m);
    size_t size = any_size(&m->seed), kept = size < b.size ? size : b.size;
    verify(&b, b.size, "before realloc");
    unsigned char *p = realloc(b.at, size);
    if (!p) {
        violation("no memory to resize to %zu bytes", size);
        return;
    }
    b.at = p;
    verify(&b, kept, "after realloc");
    b = taken(&m->seed, p, size);
    m->blocks[m->count++] = b;
    m->bytes += b.size;
}

/* Exchanges a block for one that another thread has left. */
static void swap_blocks(struct mutator *m) {
    struct block mine = taken_out(m);
    size_t place = draw(&m->seed) % EXCHANGE;
    pthread_mutex_lock(&exchange_lock);
    struct block theirs = exchange[place];
    exchange[place] = mine;
    pthread_mutex_unlock(&exchange_lock);
    if (theirs.at) end_block(&theirs, "free of another's");
}

static void churn(struct mutator *m) {
    for (long i = between(&m->seed, 200, 4000); i > 0; i--) {
        unsigned kind = draw(&m->seed) % 16;
        if (m->count == 0 || (kind < 7 && m->bytes < m->budget)) add(m, any_size(&m->seed));
        else if (kind < 9) resize(m);
        else if (kind < 10) swap_blocks(m);
        else {
            struct block b = taken_out(m);
            end_block(&b, "free");
        }
    }
}

void mutator_shrink(struct mutator *m, size_t blocks) {
    while (m->count > blocks) {
        struct block b = taken_out(m);
        end_block(&b, "free");
    }
}

void mutator_grow(struct mutator *m, size_t blocks) {
    while (m->count < blocks && m->bytes < m->budget) add(m, any_size(&m->seed));
}

/* Grows to the budget and frees 90 % in random order, so that free memory lies between blocks in
 * use. */
static void burst(struct mutator *m) {
    while (m->bytes < m->budget && m->count < m->most && !is_stopping(1)) add(m, any_size(&m->seed));
    mutator_shrink(m, m->count / 10);
}

/* Does the same with small blocks, which are kept in the fast bins. */
static void small_burst(struct mutator *m) {
    size_t end = m->bytes + m->budget / 8;
    while (m->bytes < end && m->count < m->most && !is_stopping(1)) add(m, small_size(&m->seed));
    mutator_shrink(m, m->count / 10);
}

void mutator_sweep(struct mutator *m) {
    for (size_t i = 0; i < m->count; i++) {
        verify(&m->blocks[i], m->blocks[i].size, "sweep");
        progress();
    }
}

void mutator_open(struct mutator *m, size_t budget, uint64_t seed) {
    *m = (struct mutator){pages(TABLE * sizeof(struct block), false), 0, TABLE, 0, budget, seed * 2 + 1};
    for (int i = 0; i < 8; i++) draw(&m->seed);
}

void mutator_warm(struct mutator *m) {
    burst(m);
    small_burst(m);
}

void mutator_step(struct mutator *m) {
    switch (draw(&m->seed) % 8) {
    case 0: burst(m); break;
    case 1: small_burst(m); break;
    case 2: mutator_sweep(m); break;
    case 3:
    case 4: rest(between(&m->seed, 0, 100) * MS); break;
    default:
        if (options.churn) churn(m);
        else rest(20 * MS);
    }
}

void mutator_run(struct worker *w, void *mutator) {
    struct mutator *m = mutator;
    if (options.signals) receive((int[]){SIGUSR1, SIGALRM, 0});
    mutator_warm(m);
    shared->warm++;
    while (!is_stopping(w->phase)) mutator_step(m);
    mutator_sweep(m);
    mutator_shrink(m, 0);
}

/* Runs a short-lived thread, with blocks of its own arena that other threads will free. */
static void *brief(void *seed) {
    static __thread struct block mine[800];
    struct mutator m = {mine, 0, 800, 0, 1 << 21, (uintptr_t)seed | 1};
    mutator_grow(&m, 100 + draw(&m.seed) % 700);
    for (int i = 0; i < 60 && m.count; i++) swap_blocks(&m);
    if (draw(&m.seed) % 4 == 0) rest(5 * MS);
    mutator_shrink(&m, 0);
    return 0;
}

void births_run(struct worker *w, void *unused) {
    (void)unused;
    uint64_t seed = (uint64_t)options.seed * 77 + 5;
    while (!is_stopping(w->phase)) {
        pthread_t ids[3];
        int count = (int)between(&seed, 1, 3);
        for (int i = 0; i < count; i++) {
            int error = pthread_create(&ids[i], 0, brief, (void *)(uintptr_t)draw(&seed));
            if (error) {
                violation("pthread_create: errno %d", error);
                count = i;
            } else shared->born++;
        }
        for (int i = 0; i < count; i++) pthread_join(ids[i], 0);
        progress();
        rest(between(&seed, 1, 30) * MS);
    }
}
