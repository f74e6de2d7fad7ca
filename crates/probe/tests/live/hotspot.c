/* A program that describes itself as HotSpot does, unless HIDDEN is defined. It has a Java heap of 64 MiB, a
 * part of which is mapped from a file, and a full heap of a glibc arena, whose size fits the performance data
 * better. The argument is the path of these data. It waits for its input to end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1 << 20)
#define HEAP ((char *)0xfc000000)
#define HEAP_BYTES (64 * MIB)
#define ARCHIVE (HEAP + 60 * MIB)

int JVM_GetVersionInfo(void) { return 0; }

#ifndef HIDDEN
static uint64_t heap[8];
static void *collected_heap = heap;
static struct {
    const char *type, *field, *kind;
    int32_t is_static;
    uint64_t offset;
    void *address;
} table[] = {
    {"Universe", "_collectedHeap", "CollectedHeap*", 1, 0, &collected_heap},
    {"CollectedHeap", "_reserved", "MemRegion", 0, 32, 0},
    {"MemRegion", "_start", "HeapWord*", 0, 0, 0},
    {"MemRegion", "_word_size", "size_t", 0, 8, 0},
    {0, 0, 0, 0, 0, 0},
};
void *gHotSpotVMStructs = table;
#endif

static void put(int file, const void *bytes, size_t size) {
    if (write(file, bytes, size) != (ssize_t)size) exit(1);
}

static void entry(int file, const char *name, uint64_t value) {
    char text[64] = {0};
    strcpy(text, name);
    uint32_t head[5] = {20 + sizeof text + 8, 20, 0, 'J', 20 + sizeof text};
    put(file, head, sizeof head);
    put(file, text, sizeof text);
    put(file, &value, sizeof value);
}

static void *fill_a_heap(void *barrier) {
    uintptr_t first = (uintptr_t)malloc(60000) >> 26, block;
    do {
        block = (uintptr_t)malloc(60000);
        memset((char *)block, 1, 60000);
    } while (block >> 26 == first);
    pthread_barrier_wait(barrier);
    for (;;) pause();
}

int main(int count, char **arguments) {
    int data = open(arguments[count - 1], O_RDWR | O_CREAT, 0600);
    uint32_t prologue[8] = {0xc0c0feca, 1u | 1u << 24, 0, 0, 0, 0, 32, 3};
    put(data, prologue, sizeof prologue);
    entry(data, "sun.gc.generation.0.capacity", HEAP_BYTES);
    entry(data, "sun.gc.generation.0.maxCapacity", HEAP_BYTES);
    entry(data, "sun.gc.generation.0.space.1.used", MIB);
    if (ftruncate(data, 32 << 10)) return 1;
    char *shared = mmap(0, 32 << 10, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
    if (shared == MAP_FAILED) return 1;
    shared[6] = 1; /* Resident, as after a write of HotSpot's. */
    int archive = open("/bin/sh", O_RDONLY), flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE;
    if (mmap(HEAP, HEAP_BYTES, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0) != HEAP) return 1;
    if (mmap(ARCHIVE, MIB, PROT_READ, MAP_PRIVATE | MAP_FIXED, archive, 0) != ARCHIVE) return 1;
    memset(HEAP, 1, 4 * MIB);
#ifndef HIDDEN
    heap[4] = (uintptr_t)HEAP;
    heap[5] = HEAP_BYTES / 8;
#endif
    pthread_barrier_t barrier;
    pthread_t thread;
    pthread_barrier_init(&barrier, 0, 2);
    if (pthread_create(&thread, 0, fill_a_heap, &barrier)) return 1;
    pthread_barrier_wait(&barrier);
    puts("ready");
    fflush(stdout);
    return read(0, arguments[0], 1) < 0;
}
