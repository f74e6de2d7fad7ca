/* An allocator that never reuses freed memory. Its `realloc` moves each block and calls `free`. With
 * -DSIZES it reports the size of a block. */
#include <stddef.h>
#include <string.h>

static char memory[256 << 20] __attribute__((aligned(16)));
static size_t used;

void *malloc(size_t size) {
    size_t at = __atomic_fetch_add(&used, (size + 31) & ~(size_t)15, __ATOMIC_RELAXED);
    if (at + size + 16 > sizeof memory) return NULL;
    *(size_t *)(memory + at) = size;
    return memory + at + 16;
}

void free(void *block) { (void)block; }

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void *realloc(void *block, size_t size) {
    void *moved = malloc(size);
    size_t old = block ? ((size_t *)block)[-2] : 0;
    if (moved && block) memcpy(moved, block, old < size ? old : size), free(block);
    return moved;
}

#ifdef SIZES
size_t malloc_usable_size(void *block) { return block ? ((size_t *)block)[-2] : 0; }
#endif
