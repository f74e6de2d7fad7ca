/*
 * Makes a heap of a known shape, and does what it is told by lines on stdin:
 *   info   prints malloc_info(0, stdout)
 *   trim   calls malloc_trim(0) and prints its anonymous memory before and after, in bytes
 *   stop   ends the churn
 * and how long that took. Each answer ends with a line "done". What it does between the answers allocates nothing.
 *
 *   cc -O1 -o subject subject.c -lpthread        for the libc at hand
 *   cc -O1 -DOLDEST -nostartfiles ...            for every libc from 2.31 on (see subject.rs)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef OLDEST
/* The names of the oldest library, not of the one that this is linked against. */
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver old_start_main, __libc_start_main@GLIBC_2.2.5");
int old_start_main(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void),
                   void (*)(void), void *);
int main(int, char **, char **);
__attribute__((used)) void start_here(long *stack, void (*end)(void)) {
    old_start_main(main, (int)*stack, (char **)(stack + 1), 0, 0, end, stack);
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\nmov %rsp, %rdi\nmov %rdx, %rsi\n"
        "and $-16, %rsp\ncall start_here\nhlt\n");
#endif

static char out[1 << 16];
static volatile int churning = 1;
static volatile unsigned long operations;
static int ready[2], never[2];

struct work {
    const char *kind;
    unsigned long bytes;
    uint64_t seed;
};

static uint64_t draw(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long anonymous(void) {
    static char text[8192];
    int file = open("/proc/self/smaps_rollup", O_RDONLY);
    long length = read(file, text, sizeof text - 1), kilobytes = 0;
    close(file);
    text[length > 0 ? length : 0] = 0;
    char *at = strstr(text, "Anonymous:");
    for (at = at ? at + 10 : ""; *at && *at != 'k'; at++)
        if (*at >= '0' && *at <= '9') kilobytes = kilobytes * 10 + (*at - '0');
    return kilobytes * 1024;
}

/* A place to keep pointers in that is no part of the heap. */
static void **table(unsigned long count) {
    void *at = mmap(0, count * sizeof(void *), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) _exit(3);
    return at;
}

static void *block(unsigned long size) {
    char *p = malloc(size);
    if (!p) _exit(4);
    memset(p, 0x5a, size);
    return p;
}

/* Fills `bytes` with blocks of drawn sizes and frees so many percent of them. */
static void fill_and_free(struct work *w, unsigned long (*size)(uint64_t *), int percent, int shuffled) {
    unsigned long most = w->bytes / 16 + 1, count = 0, sum = 0;
    void **p = table(most);
    while (sum < w->bytes && count < most) {
        unsigned long s = size(&w->seed);
        p[count++] = block(s);
        sum += s + 8;
    }
    if (shuffled)
        for (unsigned long i = count; i > 1; i--) {
            unsigned long j = draw(&w->seed) % i;
            void *t = p[i - 1];
            p[i - 1] = p[j], p[j] = t;
        }
    for (unsigned long i = 0; i < count; i++)
        if (draw(&w->seed) % 100 < (unsigned)percent) free(p[i]);
}

static unsigned long uniform(uint64_t *s) { return 16 + draw(s) % 65521; }
static unsigned long of_200(uint64_t *s) { (void)s; return 200; }
static unsigned long of_100(uint64_t *s) { (void)s; return 100; }
static unsigned long medium(uint64_t *s) { return 1000 + draw(s) % 30000; }
static unsigned long log_uniform(uint64_t *s) {
    unsigned long low = 16UL << draw(s) % 13;
    return low + draw(s) % low;
}

static void realloc_and_align(struct work *w) {
    enum { PLACES = 1000 };
    void **p = table(PLACES);
    for (unsigned long i = 0; i < w->bytes / 4096; i++) {
        unsigned long place = draw(&w->seed) % PLACES, size = log_uniform(&w->seed);
        switch (draw(&w->seed) % 4) {
        case 0: free(p[place]); p[place] = 0; break;
        case 1: free(p[place]); p[place] = memalign(16UL << draw(&w->seed) % 9, size); break;
        default: p[place] = realloc(p[place], size);
        }
        if (p[place]) memset(p[place], 1, malloc_usable_size(p[place]));
    }
}

static void mmapped(struct work *w) {
    unsigned long sum = 0;
    for (int i = 0; sum < w->bytes; i++) {
        unsigned long size = (140UL << 10) + draw(&w->seed) % (400UL << 10);
        char *p = i % 5 == 4 ? memalign(64UL << draw(&w->seed) % 10, size) : malloc(size);
        memset(p, 1, i % 3 == 2 ? size / 2 : size);
        sum += size;
    }
}

static void churn(struct work *w) {
    enum { PLACES = 4096 };
    void **p = table(PLACES);
    fill_and_free(w, log_uniform, 90, 1);
    for (unsigned long i = 0; churning; i++) {
        unsigned long place = draw(&w->seed) % PLACES;
        free(p[place]);
        p[place] = malloc(16 + draw(&w->seed) % 4000);
        memset(p[place], 1, 16);
        if (i == 10 * PLACES && write(ready[1], "r", 1) != 1) _exit(5);
        if (i % 1024 == 0) __sync_fetch_and_add(&operations, 1024);
    }
}

/* Takes blocks from a long fast bin and gives them back in another order, again and again. */
static void fast_churn(struct work *w) {
    enum { TAKEN = 3000 };
    void **p = table(TAKEN);
    fill_and_free(w, of_100, 50, 1);
    for (unsigned long i = 0; churning; i++) {
        for (int j = 0; j < TAKEN; j++) p[j] = block(100);
        for (int j = TAKEN; j > 1; j--) {
            unsigned long k = draw(&w->seed) % j;
            void *t = p[j - 1];
            p[j - 1] = p[k], p[k] = t;
        }
        for (int j = 0; j < TAKEN; j++) free(p[j]);
        if (i == 10 && write(ready[1], "r", 1) != 1) _exit(5);
    }
}

static void make(struct work *w) {
    const char *kind = w->kind;
    if (!strcmp(kind, "uniform") || !strcmp(kind, "single") || !strcmp(kind, "pieces"))
        fill_and_free(w, uniform, 90, 1);
    else if (!strcmp(kind, "log_uniform")) fill_and_free(w, log_uniform, 90, 1);
    else if (!strcmp(kind, "small")) fill_and_free(w, of_200, 50, 0);
    else if (!strcmp(kind, "fast")) fill_and_free(w, of_100, 50, 0);
    else if (!strcmp(kind, "fast_shuffled")) fill_and_free(w, of_100, 50, 1);
    else if (!strcmp(kind, "fast_all")) fill_and_free(w, of_100, 100, 0);
    else if (!strcmp(kind, "heaps")) fill_and_free(w, medium, 60, 1);
    else if (!strcmp(kind, "kept")) fill_and_free(w, log_uniform, 0, 0);
    else if (!strcmp(kind, "mmapped")) mmapped(w);
    else if (!strcmp(kind, "realloc")) realloc_and_align(w);
    else if (!strcmp(kind, "churn")) churn(w);
    else if (!strcmp(kind, "fast_churn")) fast_churn(w);
    else if (!strcmp(kind, "sbrk"))
        for (int i = 0; i < 4; i++) {
            struct work part = {kind, w->bytes / 4, w->seed + i};
            fill_and_free(&part, uniform, 80, 1);
            memset(sbrk(5000 + 100 * i), 0x77, 5000);
        }
    else if (!strcmp(kind, "empty")) free(block(1));
    else if (strcmp(kind, "none")) _exit(2);
}

static void *thread(void *argument) {
    char byte;
    make(argument);
    if (!strstr(((struct work *)argument)->kind, "churn") && write(ready[1], "r", 1) != 1) _exit(5);
    while (read(never[0], &byte, 1) > 0) {}
    return 0;
}

/* subject KIND THREADS BYTES: with 0 threads, the main thread does it. */
int main(int count, char **arguments, char **environment) {
    static struct work works[64];
    (void)environment;
    if (count < 4) return 2;
    const char *kind = arguments[1];
    int threads = atoi(arguments[2]);
    unsigned long bytes = (unsigned long)atol(arguments[3]);
    char byte, line[64];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    if (pipe(ready) || pipe(never) || threads > 64) return 2;
    if (!strcmp(kind, "pieces")) {
        /* What stands behind the heap keeps brk from growing. */
        free(malloc(1));
        char *end = (char *)sbrk(0);
        char *wall = (char *)(((uintptr_t)end + 4095) & ~4095UL);
        if (mmap(wall, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != wall)
            return 3;
    }
    for (int i = 0; i < (threads ? threads : 1); i++) {
        works[i] = (struct work){kind, bytes / (unsigned)(threads ? threads : 1), 88172645463325252UL + 7919UL * (unsigned)i};
        pthread_t id;
        if (!threads) make(&works[0]);
        else if (pthread_create(&id, 0, thread, &works[i])) return 3;
    }
    for (int i = 0; i < threads; i++)
        if (read(ready[0], &byte, 1) != 1) return 5;
    anonymous();
    printf("ready\ndone\n");
    fflush(stdout);
    for (;;) {
        long length = 0;
        while (length < 63 && read(0, line + length, 1) == 1 && line[length] != '\n') length++;
        if (length == 0) _exit(0);
        line[length] = 0;
        long begin = now(), took = -1;
        if (!strcmp(line, "info")) malloc_info(0, stdout);
        else if (!strcmp(line, "stop")) churning = 0;
        else if (!strcmp(line, "trim")) {
            long before = anonymous();
            begin = now();
            malloc_trim(0);
            took = now() - begin;
            long after = anonymous();
            printf("anonymous %ld %ld\n", before, after);
        }
        printf("nanoseconds %ld\noperations %lu\ndone\n", took < 0 ? now() - begin : took, operations);
        fflush(stdout);
    }
}
