// Programs that leak, and programs that do not, each by its name. Each works until its standard input ends, and answers each
// line with its own count: blocks and bytes that it has lost so far, blocks that it keeps, steps of its work, and the seconds
// since it started.
//
//   subject NAME [RATE [ONE_OF]]
//
// RATE is the number of allocations in a second in each of two threads, of which one of ONE_OF is lost.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_size_t lost, lost_bytes, kept, steps;
static size_t rate = 20000, one_of = 1000;
static struct timespec start;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9;
}

// Waits until it is time for the next of so many in a second. Counts the steps.
static void pace(size_t done, double per_second) {
    steps++;
    double ahead = (double)done / per_second - seconds();
    if (ahead > 0.002) usleep((unsigned)(ahead * 1e6));
}

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static void *filled(size_t size, uint64_t with) {
    uint64_t *block = malloc(size);
    for (size_t i = 0; i < size / 8; i++) block[i] = with + i;
    return block;
}

static void lose(size_t size, uint64_t with) {
    void *volatile block = filled(size, with);
    lost_bytes += malloc_usable_size(block) + 8;
    lost++;
    block = 0;
}

struct node { struct node *next; uint64_t number; char rest[48]; };

// Keeps some blocks for a while, and loses one of many.
static void *mix(void *seed) {
    uint64_t state = 88172645463325252ull + (uintptr_t)seed * 7919;
    enum { LIVE = 50000 };
    void **live = calloc(LIVE, sizeof *live);
    static const size_t sizes[] = {24, 40, 72, 72, 72, 72, 200, 1000};
    for (size_t done = 0;; done++) {
        size_t slot = next(&state) % LIVE;
        free(live[slot]);
        live[slot] = filled(sizes[next(&state) % 8], next(&state));
        if (next(&state) % one_of == 0) lose(72, next(&state));
        if (done % 64 == 0) pace(done, (double)rate);
    }
    return 0;
}

// Two blocks that lead to each other, and that nothing else leads to.
static void *cycles(void *unused) {
    for (size_t done = 0;; done++) {
        struct node *one = filled(sizeof *one, done), *two = filled(sizeof *two, done);
        one->next = two, two->next = one;
        lost += 2;
        lost_bytes += 2 * (malloc_usable_size(one) + 8);
        one = two = 0;
        pace(done, (double)rate / 2);
    }
    return unused;
}

static struct node *volatile head;

// A list that only grows.
static void *list(void *unused) {
    for (size_t done = 0;; done++) {
        struct node *node = filled(sizeof *node, done);
        node->next = head, head = node, kept++;
        pace(done, (double)rate);
    }
    return unused;
}

// The same, but only a local variable leads to it.
static void *local_list(void *unused) {
    struct node *own = 0;
    for (size_t done = 0;; done++) {
        struct node *node = filled(sizeof *node, done);
        node->next = own, own = node, kept++;
        pace(done, (double)rate);
    }
    return own ? own : unused;
}

// A list whose blocks begin with two links, as free chunks do.
static struct double_node { struct double_node *next, *previous; uint64_t number; char rest[40]; } *volatile ends[2];

static void *double_list(void *unused) {
    for (size_t done = 0;; done++) {
        struct double_node *node = filled(sizeof *node, done * 16 + 0x21);
        node->previous = 0, node->next = ends[0];
        if (ends[0]) ends[0]->previous = node;
        else ends[1] = node;
        ends[0] = node, kept++;
        pace(done, (double)rate);
    }
    return unused;
}

static void *volatile table[1 << 20];

// Pointers with other bits above the address.
static void *tagged(void *unused) {
    for (size_t done = 0; done < 1 << 20; done++) {
        table[done] = (void *)((uintptr_t)filled(56, done) | (done % 0xfff + 1) << 48), kept++;
        pace(done, (double)rate);
    }
    for (;;) usleep(1000), steps++;
    return unused;
}

// A cache of the most recent blocks, which is full. `fill` decides what is in them: zeros are all alike.
static void ring(size_t room, uint64_t fill) {
    for (size_t done = 0;; done++) {
        free(table[done % room]);
        table[done % room] = fill ? filled(56, fill + done) : calloc(1, 56);
        kept = done < room ? done : room;
        if (done >= room) pace(done - room, (double)rate);
    }
}
static void *recent(void *unused) { ring(20 * rate, 1); return unused; }
static void *zeroed(void *unused) { ring(5 * rate, 0); return unused; }

// A cache that is emptied from time to time, and whose blocks are written to when they are used.
static void *refill(void *unused) {
    uint64_t state = 88172645463325252ull;
    for (size_t done = 0;; done++) {
        size_t place = done % (6 * rate);
        if (place == 0) for (size_t i = 0; i < 6 * rate; i++) free(table[i]), table[i] = 0;
        table[place] = filled(104, done);
        for (int hits = 0; hits < 2; hits++) {
            uint64_t *hit = table[next(&state) % (place + 1)];
            hit[next(&state) % 6]++;
        }
        pace(done, (double)rate);
    }
    return unused;
}

// Grows for some seconds, and then no more.
static void *warm_up(void *unused) {
    for (size_t done = 0; done < 5 * rate; done++) {
        table[done] = filled(120, done), kept++;
        pace(done, (double)rate);
    }
    for (;;) usleep(1000), steps++;
    return unused;
}

// Two sets of blocks, of which one is made anew while the other is in use.
static void *double_buffer(void *unused) {
    for (size_t round = 0;; round++) {
        size_t half = round % 2 * rate;
        for (size_t i = 0; i < rate; i++) free(table[half + i]), table[half + i] = filled(88, round * rate + i);
        pace((round + 1) * rate, (double)rate);
    }
    return unused;
}

static void *request(void *unused) {
    void *blocks[2000];
    for (size_t i = 0; i < 2000; i++) blocks[i] = filled(16 + i % 20 * 24, i);
    for (size_t i = 0; i < 2000; i++) free(blocks[i]);
    return unused;
}

// A thread for each request: arenas come and go.
static void *arenas(void *unused) {
    for (size_t done = 0;; done++) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, request, 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
        pace(done, 20);
    }
    return unused;
}

// Arrays that grow by `realloc`, up to a size.
static void *grow(void *unused) {
    for (size_t done = 0;; done++) {
        size_t slot = done % 200, size = 64 + done / 200 % 400 * 64;
        char *block = realloc(table[slot], size);
        memset(block, (int)done, size);
        table[slot] = block;
        pace(done, (double)rate);
    }
    return unused;
}

static struct node *volatile oldest;

// A queue that fills twice as fast as it drains.
static void *queue(void *unused) {
    struct node *newest = oldest = filled(sizeof *newest, 0);
    newest->next = 0;
    for (size_t done = 1;; done++) {
        struct node *node = filled(sizeof *node, done);
        node->next = 0, newest->next = node, newest = node, kept++;
        if (done % 2 == 0) {
            node = oldest, oldest = node->next, kept--;
            free(node);
        }
        pace(done, (double)rate);
    }
    return unused;
}

static char *volatile everything;

// One buffer that grows, beside others with the same content. After some time it grows slowly, so that it rarely moves
// while it is searched for.
static void *buffer(void *unused) {
    size_t room = 4 << 20;
    double until = 0;
    for (size_t i = 0; i < 40; i++) table[i] = memset(malloc(256 << 10), 'x', 256 << 10);
    for (size_t done = 0;; done++) {
        room += 512 << 10;
        everything = memset(realloc(everything, room), 'x', room);
        kept = room;
        steps++;
        until += (done < 12 ? 1 : 20) / (double)rate;
        while (seconds() < until) usleep(1000);
    }
    return unused;
}

// Half a gigabyte that was lost before anything else, or so many bytes.
static void *lost_before(void *unused) {
    while (lost_bytes < one_of) lose(100, lost);
    for (size_t done = 0;; done++) {
        free(table[done % 1000]), table[done % 1000] = filled(40, done);
        pace(done, (double)rate);
    }
    return unused;
}

static void *wait_for_ever(void *unused) { for (;;) pause(); return unused; }
static void *spin(void *unused) { for (volatile size_t turn = 0;; turn++); return unused; }

static void start_threads(int count, void *(*work)(void *)) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, work, 0)) exit(4);
    }
}

// A thousand threads that wait, beside a list that grows.
static void *crowd(void *unused) { start_threads(1000, wait_for_ever); return list(unused); }
// Threads that keep all processors busy, beside lost blocks.
static void *busy(void *unused) { start_threads((int)sysconf(_SC_NPROCESSORS_ONLN), spin); return cycles(unused); }

// Forks children, and loads and unloads a library.
static void *fork_and_load(void *unused) {
    for (;;) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, 0, 0);
        void *library = dlopen("libresolv.so.2", RTLD_NOW);
        if (library) dlclose(library);
        usleep(2000);
    }
    return unused;
}
static void *restless(void *unused) { start_threads(1, fork_and_load); return cycles(unused); }

static const struct { const char *name; void *(*work)(void *); int threads; } programs[] = {
    {"mix", mix, 2}, {"cycles", cycles, 1}, {"list", list, 1}, {"local_list", local_list, 1},
    {"double_list", double_list, 1},
    {"tagged", tagged, 1}, {"recent", recent, 1}, {"zeroed", zeroed, 1}, {"refill", refill, 1},
    {"warm_up", warm_up, 1}, {"double_buffer", double_buffer, 1}, {"arenas", arenas, 1},
    {"grow", grow, 1}, {"lost_before", lost_before, 1}, {"crowd", crowd, 1}, {"busy", busy, 1},
    {"restless", restless, 1}, {"queue", queue, 1}, {"buffer", buffer, 1},
};

int main(int count, char **words) {
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (count > 2) rate = strtoull(words[2], 0, 10);
    if (count > 3) one_of = strtoull(words[3], 0, 10);
    size_t found = 0, all = sizeof programs / sizeof *programs;
    while (found < all && (count < 2 || strcmp(words[1], programs[found].name))) found++;
    if (found == all) return 2;
    for (int i = 0; i < programs[found].threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, programs[found].work, (void *)(uintptr_t)(i + 1))) return 4;
    }
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        printf("{\"lost\": %zu, \"lost_bytes\": %zu, \"kept\": %zu, \"steps\": %zu, \"seconds\": %.6f}\n", (size_t)lost,
               (size_t)lost_bytes, (size_t)kept, (size_t)steps, seconds());
        fflush(stdout);
    }
    return 0;
}
