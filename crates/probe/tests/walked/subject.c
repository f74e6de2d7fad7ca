// A heap of glibc, or of the jemalloc, mimalloc or tcmalloc that is preloaded or named: threads allocate blocks of many sizes, free most of
// them, and wait. A named LIBRARY serves these blocks alone, and `malloc` stays what it is.
// The program then answers "statistics" with its own count of usable bytes and the allocator's statistics, and "purge" with the
// bytes by which its RSS fell.
//
//   subject BYTES KEPT_PERCENT THREADS [LIBRARY]
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*control)(const char *, void *, size_t *, void *, size_t);
static void (*collect)(int), (*release)(void);
static int (*property)(const char *, size_t *);
static void *(*get)(size_t) = malloc, *(*resize)(void *, size_t) = realloc;
static void (*put)(void *) = free;
static size_t (*usable_size)(void *) = malloc_usable_size;
static _Atomic size_t usable;
static size_t bytes_per_thread;
static double kept;
static pthread_barrier_t all;

static double next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return (*state >> 11) * 0x1p-53;
}

static void *work(void *number) {
    uint64_t state = 88172645463325252ull + (uintptr_t)number * 7919;
    size_t room = 1 << 12, count = 0;
    char **blocks = get(room * sizeof *blocks);
    for (size_t got = 0; got < bytes_per_thread;) {
        // Small sizes are frequent, and the largest are 1 MiB.
        double u = next(&state);
        size_t size = 16 * pow(65536, u * u);
        if (count == room) blocks = resize(blocks, (room *= 2) * sizeof *blocks);
        memset(blocks[count++] = get(size), 1, size);
        got += size;
    }
    size_t live = usable_size(blocks);
    for (size_t i = 0; i < count; i++)
        if (next(&state) >= kept) put(blocks[i]);
        else live += usable_size(blocks[i]);
    usable += live;
    pthread_barrier_wait(&all);
    for (;;) pause();
    return blocks;
}

static size_t statistic(const char *name, const char *of_gperftools) {
    size_t value = 0, length = sizeof value;
    if (property) return property(of_gperftools, &value) ? value : 0;
    if (!control) return 0;
    if (control(name, &value, &length, 0, 0)) exit(2);
    return value;
}

static long resident(void) {
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (fgets(line, sizeof line, file) && sscanf(line, "Rss: %ld", &kib) != 1);
    fclose(file);
    return kib * 1024;
}

int main(int count, char **words) {
    if (count < 4) return 2;
    int threads = atoi(words[3]);
    bytes_per_thread = strtoull(words[1], 0, 10) / threads, kept = atof(words[2]) / 100;
    void *library = count > 4 ? dlopen(words[4], RTLD_NOW | RTLD_LOCAL) : RTLD_DEFAULT;
    if (count > 4 && !library) return fprintf(stderr, "%s\n", dlerror()), 5;
    if (count > 4) get = dlsym(library, "malloc"), put = dlsym(library, "free");
    if (count > 4) resize = dlsym(library, "realloc"), usable_size = dlsym(library, "malloc_usable_size");
    control = dlsym(library, "mallctl");
    collect = dlsym(library, "mi_collect");
    property = dlsym(library, "MallocExtension_GetNumericProperty");
    release = dlsym(library, "MallocExtension_ReleaseFreeMemory");
    usable += usable_size(memset(get(1000), 1, 1000));
    pthread_barrier_init(&all, 0, threads + 1);
    for (pthread_t thread; threads-- > 0;)
        if (pthread_create(&thread, 0, work, (void *)(uintptr_t)threads)) return 4;
    pthread_barrier_wait(&all);
    resident();
    puts("ready");
    fflush(stdout);
    for (char line[64]; fgets(line, sizeof line, stdin);) {
        if (*line == 's') {
            uint64_t epoch = 1;
            size_t length = sizeof epoch;
            if (control) control("epoch", &epoch, &length, &epoch, length);
            printf("{\"usable\": %zu, \"allocated\": %zu, \"active\": %zu, \"dirty_pages\": %zu, \"muzzy_pages\": %zu, \"cached\": %zu, "
                   "\"central\": %zu, \"transfer\": %zu, \"free\": %zu, \"returned\": %zu, \"page_bytes\": %zu}\n",
                   usable, statistic("stats.allocated", "generic.current_allocated_bytes"),
                   statistic("stats.active", "generic.heap_size"),
                   statistic("stats.arenas.4096.pdirty", "tcmalloc.pageheap_free_bytes"),
                   statistic("stats.arenas.4096.pmuzzy", "tcmalloc.pageheap_unmapped_bytes"),
                   statistic("stats.arenas.4096.tcache_bytes", "tcmalloc.current_total_thread_cache_bytes"),
                   statistic("stats.active", "tcmalloc.central_cache_free_bytes"),
                   statistic("stats.active", "tcmalloc.transfer_cache_free_bytes"),
                   statistic("stats.active", "tcmalloc.pageheap_free_bytes"),
                   statistic("stats.active", "tcmalloc.pageheap_unmapped_bytes"),
                   statistic("arenas.page", "tcmalloc.page_size"));
        } else {
            long before = resident();
            if (control) control("arena.4096.purge", 0, 0, 0, 0);
            else if (collect) collect(1);
            else if (release) release();
            else malloc_trim(0);
            printf("%ld\n", before - resident());
        }
        fflush(stdout);
    }
    return 0;
}
