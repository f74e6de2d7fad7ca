/* Hoards memory, and measures how long its request threads are delayed: the subject of the measured pauses.
 *
 *   cc -O2 -pthread -o hoard hoard.c
 *   hoard mb=3000 arenas=one|many threads=4 work=malloc|none seed=1
 *
 * Each request thread allocates its share of `mb` in blocks of 16 B to 64 KB (log-uniform), frees 90 % of
 * them in random order, and then runs requests. With work=malloc, a request allocates, writes and frees some
 * small and medium blocks, from the arena of the hoard; with work=none, it computes. All threads share one
 * arena, or each has its own. malloc returns nothing to the OS by itself. Two more threads wait in a futex
 * forever, as in real servers. It prints `ready`, and then runs the commands in its input, one per line,
 * until `quit` or the end of the input:
 *
 *   begin   starts a new measurement
 *   end     {"longest_gap_us":..,"gaps_over_1ms":..,"iterations":..,"rss_kb":..,"live_kb":..}; a gap is the
 *           time from one request to the next, without the planned sleep between them; live_kb is the memory
 *           that is allocated and not freed
 *   hoard   stops the requests, fills the hoard again and frees it again; prints `ready`
 *   trim    makes a thread of its own call malloc_trim(0); {"trim_us":..,"rss_kb":..}
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000L
enum { THREADS = 64, SMALL = 16, MEDIUM = 4, REQUESTS_TO_A_SLEEP = 8 };

static long mb = 3000, threads = 4, seed = 1;
static bool is_one_arena = true, does_malloc = true;
static char out[1 << 12];

/* A request thread. Only this thread writes its metrics; the others read them. */
static struct server {
    uint64_t seed;
    void **block;
    uint32_t *size;
    size_t count, most, bytes;
    _Atomic long due, longest, over_1ms, iterations;
    _Atomic int epoch, hoards;
} servers[THREADS];

static _Atomic int epoch, hoards;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

static uint64_t draw(uint64_t *s) {
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return *s;
}

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 * MS + t.tv_nsec;
}

static void rest(long ns) {
    struct timespec t = {ns / (1000 * MS), ns % (1000 * MS)};
    nanosleep(&t, 0);
}

/* Allocates a list outside the heap. */
static void *list(size_t bytes) {
    void *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) _exit(3);
    return p;
}

/* Returns the exact RSS, unlike statm. */
static long rss_kb(void) {
    static char text[4096];
    int file = open("/proc/self/smaps_rollup", O_RDONLY);
    long length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    char *at = strstr(text, "Rss:");
    return at ? atol(at + 4) : 0;
}

static void exchange(struct server *s, size_t i, size_t j) {
    void *block = s->block[i];
    uint32_t size = s->size[i];
    s->block[i] = s->block[j], s->size[i] = s->size[j];
    s->block[j] = block, s->size[j] = size;
}

static void fill(struct server *s, size_t bytes) {
    while (s->bytes < bytes && s->count < s->most) {
        size_t low = (size_t)16 << draw(&s->seed) % 12, size = low + draw(&s->seed) % low;
        void *p = malloc(size);
        if (!p) _exit(4);
        memset(p, 0x5a, size);
        s->block[s->count] = p, s->size[s->count++] = (uint32_t)size;
        s->bytes += size;
    }
}

static void hoard(struct server *s) {
    fill(s, ((size_t)mb << 20) / (size_t)threads);
    for (size_t kept = s->count / 10; s->count > kept;) {
        exchange(s, draw(&s->seed) % s->count, s->count - 1);
        free(s->block[--s->count]);
        s->bytes -= s->size[s->count];
    }
}

static void request_with_malloc(struct server *s) {
    char *p[SMALL + MEDIUM];
    for (int i = 0; i < SMALL + MEDIUM; i++) {
        size_t size = i < SMALL ? 16 + draw(&s->seed) % 500 : 1100 + draw(&s->seed) % 31000;
        p[i] = malloc(size);
        if (!p[i]) _exit(4);
        memset(p[i], i, size);
    }
    for (int i = 0; i < SMALL + MEDIUM; i++) free(p[i]);
}

static void request_without(struct server *s) {
    for (int i = 0; i < 5000; i++) draw(&s->seed);
}

/* Records the delay of this request relative to its planned time. */
static void note(struct server *s, long planned) {
    long t = now(), gap = t - s->due;
    if (s->epoch != epoch) {
        s->longest = s->over_1ms = s->iterations = 0;
        s->epoch = epoch;
    } else {
        s->iterations++;
        if (gap > MS) s->over_1ms++;
        if (gap > s->longest) s->longest = gap;
    }
    s->due = t + planned;
}

static void *serve(void *server) {
    struct server *s = server;
    for (long i = 0;; i++) {
        if (s->hoards != hoards) {
            hoard(s);
            s->hoards++;
            s->epoch = epoch - 1;
            s->due = now();
        }
        if (does_malloc) request_with_malloc(s);
        else request_without(s);
        long planned = i % REQUESTS_TO_A_SLEEP ? 0 : 200000 + (long)(draw(&s->seed) % 300000);
        note(s, planned);
        if (planned) rest(planned);
    }
    return 0;
}

static void *idle(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) pthread_cond_wait(&never, &lock);
    return 0;
}

static void *trim(void *took) {
    long began = now();
    malloc_trim(0);
    *(long *)took = now() - began;
    return 0;
}

static void start(pthread_t *id, void *(*run)(void *), void *argument) {
    if (pthread_create(id, 0, run, argument)) _exit(3);
}

static void hoard_all(void) {
    hoards++;
    for (int i = 0; i < threads; i++)
        while (servers[i].hoards != hoards) rest(MS);
    printf("ready\n");
}

/* Starts a new measurement in each thread. Returns when all threads have started it. */
static void begin(void) {
    epoch++;
    for (int i = 0; i < threads; i++)
        while (servers[i].epoch != epoch) rest(MS / 10);
}

/* A thread that is still delayed counts too. */
static void end(void) {
    long longest = 0, over_1ms = 0, iterations = 0, live = 0, t = now();
    for (int i = 0; i < threads; i++) {
        struct server *s = &servers[i];
        long gap = t - s->due > s->longest ? t - s->due : s->longest;
        if (gap > longest) longest = gap;
        over_1ms += s->over_1ms, iterations += s->iterations, live += (long)s->bytes;
    }
    printf("{\"longest_gap_us\":%ld,\"gaps_over_1ms\":%ld,\"iterations\":%ld,\"rss_kb\":%ld,\"live_kb\":%ld}\n",
           longest / 1000, over_1ms, iterations, rss_kb(), live / 1024);
}

static void trim_all(void) {
    pthread_t id;
    long took;
    start(&id, trim, &took);
    pthread_join(id, 0);
    printf("{\"trim_us\":%ld,\"rss_kb\":%ld}\n", took / 1000, rss_kb());
}

static bool read_options(int count, char **words) {
    for (int i = 1; i < count; i++) {
        char *w = words[i];
        if (!strncmp(w, "mb=", 3)) mb = atol(w + 3);
        else if (!strncmp(w, "threads=", 8)) threads = atol(w + 8);
        else if (!strncmp(w, "seed=", 5)) seed = atol(w + 5);
        else if (!strcmp(w, "arenas=one") || !strcmp(w, "arenas=many")) is_one_arena = w[7] == 'o';
        else if (!strcmp(w, "work=malloc") || !strcmp(w, "work=none")) does_malloc = w[5] == 'm';
        else return false;
    }
    return mb > 0 && threads > 0 && threads <= THREADS;
}

static void start_all(void) {
    pthread_t id;
    for (int i = 0; i < 2; i++) start(&id, idle, 0);
    for (int i = 0; i < threads; i++) {
        struct server *s = &servers[i];
        s->seed = 88172645463325252u + (uint64_t)(seed * 7919 + i);
        s->most = ((size_t)mb << 20) / (size_t)threads / 1000 + 1000; /* the mean is above 5000 */
        s->block = list(s->most * sizeof *s->block);
        s->size = list(s->most * sizeof *s->size);
        start(&id, serve, s);
    }
}

/* Reads byte by byte, so that it takes no memory from the heap. */
static bool read_line(char *line, size_t most) {
    size_t length = 0;
    while (length < most - 1 && read(0, line + length, 1) == 1 && line[length] != '\n') length++;
    line[length] = 0;
    return length > 0;
}

int main(int count, char **words) {
    char line[64];
    if (!read_options(count, words)) {
        fprintf(stderr, "hoard mb=3000 arenas=one|many threads=4 work=malloc|none seed=1\n");
        return 2;
    }
    setvbuf(stdout, out, _IOFBF, sizeof out);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, -1);
    mallopt(M_TOP_PAD, 1 << 20);
    mallopt(M_ARENA_MAX, is_one_arena ? 1 : (int)threads + 1);
    start_all();
    hoard_all();
    fflush(stdout);
    while (read_line(line, sizeof line) && strcmp(line, "quit")) {
        if (!strcmp(line, "begin")) begin();
        else if (!strcmp(line, "end")) end();
        else if (!strcmp(line, "hoard")) hoard_all();
        else if (!strcmp(line, "trim")) trim_all();
        else printf("what is %s?\n", line);
        fflush(stdout);
    }
    _exit(0);
}
