/* Frees memory by commands on stdin. The answer to each is the number of bytes that the library must count.
 *
 * With -DNO_PLUGIN it loads no library, so that it can be linked for older versions of glibc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#ifdef NO_PLUGIN
#include <gnu/libc-version.h>
#endif
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../src/freed.h"

enum { BLOCKS = 4000, THREADS = 4 };

static size_t free_blocks(unsigned blocks) {
    void **all = calloc(blocks, sizeof *all);
    size_t freed = malloc_usable_size(all);
    for (unsigned i = 0; i < blocks; i++) {
        all[i] = malloc(16 + i * 37 % 3000);
        freed += malloc_usable_size(all[i]);
    }
    for (unsigned i = 0; i < blocks; i++) {
        errno = (int)i;
        free(all[i]);
        if (errno != (int)i) abort();
    }
    free(all);
    free(NULL);
    return freed;
}

static void *thread(void *argument) {
    *(size_t *)argument = free_blocks(BLOCKS);
    return NULL;
}

static void *short_thread(void *argument) {
    *(size_t *)argument = free_blocks(10);
    return NULL;
}

static size_t run_threads(void *(*body)(void *), int rounds) {
    size_t freed = 0, part[THREADS];
    for (int round = 0; round < rounds; round++) {
        pthread_t all[THREADS];
        for (int i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, body, &part[i]);
        for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL), freed += part[i];
    }
    return freed;
}

/* Resizes blocks: some move, some shrink in place, and some are freed by a size of 0 if realloc
 * does so. */
static size_t resize_blocks(void) {
    size_t freed = 0;
    for (int i = 0; i < BLOCKS; i++) {
        char *block = malloc(500), *fence = malloc(500);
        size_t old = malloc_usable_size(block);
        char *larger = realloc(block, 5000);
        if (larger != block) freed += old;
        old = malloc_usable_size(larger);
        char *smaller = realloc(larger, 700);
        freed += smaller != larger ? old : old - malloc_usable_size(smaller);
        freed += malloc_usable_size(smaller) + malloc_usable_size(fence);
        free(smaller);
        free(fence);
    }
    void *block = realloc(NULL, 100000);
    freed += malloc_usable_size(block);
    block = realloc(block, 0); /* frees, or returns a block of minimal size */
    if (block) freed += malloc_usable_size(block), free(block);
    return freed;
}

static size_t use_plugin(const char *path) {
#ifdef NO_PLUGIN
    return !path;
#else
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    size_t (*run)(void) = plugin ? (size_t (*)(void))dlsym(plugin, "free_in_plugin") : NULL;
    size_t freed = run ? run() : 0;
    if (plugin) dlclose(plugin);
    return freed;
#endif
}

/* Starts a child that waits. Prints its PID and the number of bytes that it has freed itself. */
static size_t start_child(void) {
    int ready[2];
    if (pipe(ready)) abort();
    pid_t child = fork();
    if (!child) {
        size_t freed = run_threads(thread, 1);
        if (write(ready[1], &freed, sizeof freed) < 0) abort();
        pause();
    }
    size_t freed;
    if (read(ready[0], &freed, sizeof freed) != sizeof freed) abort();
    printf("%d %zu ", (int)child, freed);
    return 0;
}

#ifndef NO_PLUGIN
static void *free_until(void *stop) {
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) free_blocks(BLOCKS);
    return NULL;
}

/* Forks. Returns the number of trims of the child if its parent was trimming, else -1. */
static long trims_of_child(void) {
    struct lowtide_freed *counter = dlsym(RTLD_DEFAULT, "lowtide_freed");
    int result[2];
    if (pipe(result)) abort();
    while (!*(volatile uint32_t *)&counter->trimming) {}
    pid_t child = fork();
    if (!child) {
        uint64_t before = counter->trims;
        int is_amid = counter->trimming != 0;
        if (is_amid) free_blocks(BLOCKS);
        long trims = is_amid ? (long)(counter->trims - before) : -1;
        if (write(result[1], &trims, sizeof trims) < 0) abort();
        _exit(0);
    }
    long trims;
    if (read(result[0], &trims, sizeof trims) != sizeof trims) abort();
    waitpid(child, NULL, 0);
    close(result[0]), close(result[1]);
    return trims;
}
#endif

/* Forks while another thread trims. Returns the number of trims of the child. */
static size_t fork_amid_trim(void) {
#ifdef NO_PLUGIN
    return 0;
#else
    int stop = 0;
    long trims;
    pthread_t thread;
    pthread_create(&thread, NULL, free_until, &stop);
    while ((trims = trims_of_child()) < 0) {}
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    return (size_t)trims;
#endif
}

#ifdef NO_PLUGIN
__asm__(".symver old_free_hook, __free_hook@GLIBC_2.2.5");
extern void (*volatile old_free_hook)(void *, const void *);

static void keep(void *block, const void *caller) { (void)block, (void)caller; }

/* Replaces the allocator's `free`. Returns the minor version of glibc: from 34 on, the hook has no effect. */
static size_t set_free_hook(void) {
    old_free_hook = keep;
    return (size_t)atoi(strchr(gnu_get_libc_version(), '.') + 1);
}
#else
static size_t set_free_hook(void) { return 0; }
#endif

/* Leaves pages that only malloc_trim returns, between blocks that stay. */
static size_t hoard(void) {
    size_t freed = 0;
    void **all = malloc(64000 * sizeof *all);
    for (int i = 0; i < 64000; i++) all[i] = memset(malloc(1000), 1, 1000);
    for (int i = 0; i < 64000; i++)
        if (i % 64) freed += malloc_usable_size(all[i]), free(all[i]);
    return freed;
}

int main(void) {
    char line[4096];
    setvbuf(stdin, NULL, _IONBF, 0);
    for (puts("ready"), fflush(stdout); fgets(line, sizeof line, stdin); fflush(stdout)) {
        line[strcspn(line, "\n")] = 0;
        size_t freed = 0;
        if (!strcmp(line, "blocks")) freed = free_blocks(BLOCKS);
        else if (!strcmp(line, "threads")) freed = run_threads(thread, 1);
        else if (!strcmp(line, "short threads")) freed = run_threads(short_thread, 500);
        else if (!strcmp(line, "realloc")) freed = resize_blocks();
        else if (!strcmp(line, "fork")) freed = start_child();
        else if (!strcmp(line, "fork amid trim")) freed = fork_amid_trim();
        else if (!strcmp(line, "set free hook")) freed = set_free_hook();
        else if (!strcmp(line, "hoard")) freed = hoard();
        else freed = use_plugin(line);
        printf("%zu\n", freed);
    }
    return 0;
}
