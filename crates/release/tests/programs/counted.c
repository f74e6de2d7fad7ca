// A hoard: blocks of many sizes, of which most are freed. It knows what each block contains.
//
//   counted THREADS UNCOUNTED SEED [turns|alone]
//
// THREADS threads wait, and UNCOUNTED ones that the C library does not know, because a clone has started them. For each
// byte on stdin, it checks every block, frees and allocates many, and checks them again; then it prints `sound`.
//
// With `turns`, it works until there is such a byte: the first thread and another one in turn, and both at once. The
// other thread ends each time, so that musl again and again ceases to take locks, and takes them again. With `alone`,
// the first thread alone works.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 12000, STACK = 64 << 10 };
static struct block { unsigned char *at; size_t bytes; unsigned char tag; } blocks[BLOCKS];
static __thread uint64_t state;

static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void fill(struct block *block) {
    uint64_t kind = next() % 64, x = next();
    block->bytes = 1 + (kind < 40 ? x % 6000 : kind < 60 ? x % 300 : kind < 63 ? x % 60000 : x % 300000);
    block->tag = 1 + next() % 255;
    block->at = kind % 8 == 0 ? calloc(1, block->bytes) : malloc(block->bytes);
    for (size_t i = 0; kind % 8 == 0 && i < block->bytes; i++)
        if (block->at[i]) exit(7);
    memset(block->at, block->tag, block->bytes);
}

static void clear(struct block *block) {
    free(block->at);
    block->at = 0;
}

static void check(int from, int end) {
    for (int i = from; i < end; i++)
        for (size_t j = 0; blocks[i].at && j < blocks[i].bytes; j++)
            if (blocks[i].at[j] != blocks[i].tag) exit(8);
}

static void churn(int from, int end, int percent) {
    for (int i = from; i < end; i++)
        if (!blocks[i].at) fill(&blocks[i]);
    for (int i = from; i < end; i++)
        if (blocks[i].at && (int)(next() % 100) < percent) clear(&blocks[i]);
}

static void seed(uint64_t number) { state = 88172645463325252ull + number * 7919; }

// Works on a part of the second half of the blocks, and ends.
static void *work_once(void *number) {
    int part = BLOCKS / 16, from = BLOCKS / 2 + (int)((uintptr_t)number % 8) * part;
    seed((uintptr_t)number);
    check(from, from + part);
    churn(from, from + part, 85);
    return 0;
}

static void take_turns(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (uintptr_t turn = 1; poll(&input, 1, 0) == 0; turn++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, work_once, (void *)turn)) exit(5);
        if (turn % 3 == 0) poll(0, 0, 1);
        else churn((int)(turn % 8) * (BLOCKS / 16), (int)(turn % 8 + 1) * (BLOCKS / 16), 85);
        pthread_join(thread, 0);
        // Alone.
        poll(0, 0, (int)(turn % 4));
        check(0, BLOCKS / 2);
    }
    check(0, BLOCKS);
    write(1, "sound\n", 6);
}

static void work_alone(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 0) == 0) {
        churn(0, BLOCKS, 85);
        check(0, BLOCKS);
    }
    write(1, "sound\n", 6);
}

static void *wait_here(void *unused) {
    for (;;) poll(0, 0, -1);
    return unused;
}

static int wait_uncounted(void *unused) {
    wait_here(unused);
    return 0;
}

int main(int count, char **words) {
    if (count < 4) return 2;
    signal(SIGPIPE, SIG_IGN);
    seed(strtoull(words[3], 0, 10));
    pthread_t thread;
    for (int i = atoi(words[1]); i > 0; i--)
        if (pthread_create(&thread, 0, wait_here, 0)) return 3;
    for (int i = atoi(words[2]); i > 0; i--) {
        char *stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
        if (clone(wait_uncounted, stack + STACK, flags, 0) < 0) return 4;
    }
    churn(0, BLOCKS, 85);
    write(1, "ready\n", 6);
    if (count > 4) return strcmp(words[4], "alone") ? take_turns() : work_alone(), 0;
    for (char byte; read(0, &byte, 1) == 1;) {
        check(0, BLOCKS);
        churn(0, BLOCKS, 85);
        check(0, BLOCKS);
        write(1, "sound\n", 6);
    }
    return 0;
}
