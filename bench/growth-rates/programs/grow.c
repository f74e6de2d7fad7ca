// A program that grows in one way, and counts itself what it keeps.
// usage: grow KIND RATE, with RATE in KiB a second. Ten times a second, it prints
// "SECONDS KEPT_BYTES RSS_BYTES" (CLOCK_MONOTONIC; pages that it touched and never gave back).
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long kept;
static long rate; // bytes a second
static int tick;  // tenths of a second

static char *mapped(size_t bytes, int flags, int fd, long at) {
    char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, fd, at);
    if (p == MAP_FAILED) exit(3);
    return p;
}

// unjoined: threads that end and are not joined. glibc drops most of what each touched.
static void *shallow(void *unused) {
    volatile char used[48 << 10];
    for (size_t i = 0; i < sizeof used; i += 4096) used[i] = 1;
    return unused;
}
static void unjoined(long bytes) {
    static long due;
    for (due += bytes; due >= 52 << 10; due -= 52 << 10, kept += 52 << 10) {
        pthread_t thread;
        pthread_create(&thread, 0, shallow, 0);
    }
}
// living: threads that stay; each has a small stack of 64 KiB, of which it touches 48.
static void *stays(void *unused) {
    shallow(unused);
    for (;;) pause();
    return unused;
}
static void living(long bytes) {
    static long due;
    for (due += bytes; due >= 52 << 10; due -= 52 << 10, kept += 52 << 10) {
        pthread_t thread;
        pthread_create(&thread, 0, stays, 0);
    }
}
// deep: one thread that calls itself ever deeper.
static void deep(long bytes) {
    static char *low;
    if (!low) low = (char *)__builtin_frame_address(0) - (1 << 16);
    for (long i = 0; i < bytes; i += 4096, low -= 4096) *low = 1;
    kept += bytes;
}
static void memfd(long bytes) {
    int fd = memfd_create("screencopy", 0);
    if (ftruncate(fd, bytes)) exit(3);
    memset(mapped(bytes, MAP_SHARED, fd, 0), 1, bytes);
    close(fd);
    kept += bytes;
}
static void sysv(long bytes) {
    int id = shmget(IPC_PRIVATE, bytes, 0600);
    char *p = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    memset(p, 1, bytes);
    kept += bytes;
}
static void anonymous(long bytes) {
    memset(mapped(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, bytes);
    kept += bytes;
}
// reserve: one large mapping, filled bit by bit: the number of mappings stays.
static void reserve(long bytes) {
    static char *base;
    if (!base) base = mapped(8L << 30, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memset(base + kept, 1, bytes);
    kept += bytes;
}
static void program_break(long bytes) {
    memset(sbrk(bytes), 1, bytes);
    kept += bytes;
}
static int file(long bytes) {
    char name[] = "grow-data-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    if (ftruncate(fd, bytes)) exit(3);
    return fd;
}
// clean: reads a file of 2 GiB (sparse) through a mapping.
static void clean(long bytes) {
    static char *base;
    static volatile char sum;
    if (!base) {
        base = mapped(4L << 30, MAP_SHARED, file(4L << 30), 0);
        madvise(base, 4L << 30, MADV_RANDOM);
    }
    for (long i = 0; i < bytes; i += 4096) sum += base[kept + i];
    kept += bytes;
}
// dirty: writes through a shared mapping of a file.
static void dirty(long bytes) {
    static char *base;
    if (!base) base = mapped(1L << 30, MAP_SHARED, file(1L << 30), 0);
    memset(base + kept, 1, bytes);
    kept += bytes;
}
// locked: reads a file through a mapping that it locks in memory, part by part.
static void locked(long bytes) {
    static char *base;
    if (!base) base = mapped(4L << 30, MAP_SHARED, file(4L << 30), 0);
    if (mlock(base + kept, bytes)) exit(3);
    kept += bytes;
}
// tables: touches one page in each 2 MiB, so that each needs a page table of its own.
static void tables(long bytes) {
    static char *base;
    static long at;
    if (!base) {
        base = mapped(1L << 42, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        madvise(base, 1L << 42, MADV_NOHUGEPAGE);
    }
    static volatile char sum;
    // Reading maps the zero page, which RSS does not count.
    for (long i = 0; i < bytes; i += 4096, at += 2 << 20) sum += base[at];
    kept += bytes;
}
// copies: writes into a private mapping of a file: the pages are the program's own.
static void copies(long bytes) {
    static char *base;
    if (!base) base = mapped(4L << 30, MAP_PRIVATE, file(4L << 30), 0);
    memset(base + kept, 1, bytes);
    kept += bytes;
}
static void large(char **block, size_t *size, long bytes) {
    if (kept + bytes > (long)*size) {
        *size = *size * 3 / 2 + bytes;
        *block = realloc(*block, *size);
    }
    memset(*block + kept, 'x', bytes);
    kept += bytes;
}
static char *audit_log;
static size_t audit_size;
static void one_block(long bytes) { large(&audit_log, &audit_size, bytes); }
// vector: a longer copy replaces it, as std::vector does.
static char *items;
static void vector(long bytes) {
    static size_t size;
    if (kept + bytes > (long)size) {
        size = size * 2 + bytes;
        char *copy = malloc(size);
        if (items) memcpy(copy, items, kept);
        free(items);
        items = copy;
    }
    memset(items + kept, 'x', bytes);
    kept += bytes;
}
static void lost(long bytes) {
    static long due;
    for (due += bytes; due >= 1024; due -= 1024, kept += 1024) memset(malloc(1008), 1, 1008);
}
static void random_sizes(long bytes) {
    for (long done = 0; done < bytes;) {
        size_t size = (16 + rand() % 8000) & ~15L;
        memset(malloc(size - 8), 1, size - 8);
        done += size, kept += size;
    }
}
struct list { struct list *next; char rest[1000]; };
static struct list *head, **tail = &head;
static void list(long bytes) {
    static long due;
    for (due += bytes; due >= 1024; due -= 1024, kept += 1024) {
        struct list *one = calloc(1, sizeof *one);
        memset(one->rest, 1, sizeof one->rest);
        *tail = one, tail = &one->next;
    }
}
// backlog: more come than go; the oldest go first.
static void backlog(long bytes) {
    static long due;
    list(3 * bytes);
    for (due += 2 * bytes; due >= 1024 && head->next; due -= 1024, kept -= 1024) {
        struct list *one = head;
        head = one->next;
        free(one);
    }
}
// fragments: every other block stays; the holes are too small for the next ones.
static void fragments(long bytes) {
    static size_t size = 2048;
    static long due;
    for (due += bytes; due >= 32 * (long)size; due -= 32 * size, kept += 32 * size, size += 16) {
        void *all[32];
        for (int i = 0; i < 32; i++) memset(all[i] = malloc(size - 8), 1, size - 8);
        for (int i = 0; i < 32; i += 2) free(all[i]);
    }
}
// bursts: like lost, but every five seconds only.
static void bursts(long bytes) {
    static long due;
    due += bytes;
    if (tick % 50 == 49) lost(due), due = 0;
}
// saw: like lost, beside a temporary buffer of up to 48 MiB.
static void saw(long bytes) {
    static char *buffer;
    if (tick % 20 == 0) free(buffer), buffer = malloc(48 << 20);
    memset(buffer + (tick % 20) * (48 << 20) / 20, 1, (48 << 20) / 20);
    lost(bytes);
}
// late: level for 15 s, then like lost.
static void late(long bytes) { if (tick > 150) lost(bytes); }
// stops: like lost for 10 s, then level.
static void stops(long bytes) { if (tick < 100) lost(bytes); }
static void level(long bytes) { free(memset(malloc(bytes), 1, bytes)); }

static const struct { const char *name; void (*grow)(long); } KINDS[] = {
    {"unjoined", unjoined}, {"living", living}, {"deep", deep}, {"memfd", memfd},
    {"sysv", sysv}, {"anonymous", anonymous}, {"reserve", reserve}, {"break", program_break},
    {"clean", clean}, {"dirty", dirty}, {"locked", locked}, {"tables", tables}, {"copies", copies}, {"one_block", one_block},
    {"vector", vector}, {"lost", lost}, {"random_sizes", random_sizes}, {"list", list},
    {"backlog", backlog}, {"fragments", fragments}, {"bursts", bursts}, {"saw", saw},
    {"late", late}, {"stops", stops}, {"level", level},
};

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    setvbuf(stdout, 0, _IOLBF, 0);
    rate = atol(argv[2]) << 10;
    // Ends by itself.
    alarm(300);
    // 64 MiB were there before.
    memset(malloc(64 << 20), 1, 64 << 20);
    for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++)
        if (!strcmp(argv[1], KINDS[kind].name))
            for (;; tick++) {
                KINDS[kind].grow(rate / 10 & ~4095L);
                struct timespec t;
                clock_gettime(CLOCK_MONOTONIC, &t);
                char text[100];
                int fd = open("/proc/self/statm", O_RDONLY);
                text[read(fd, text, 99)] = 0;
                close(fd);
                long pages = atol(strchr(text, ' '));
                printf("%ld.%03ld %ld %ld\n", t.tv_sec, t.tv_nsec / 1000000, kept, pages * 4096);
                if (kept > 1500L << 20) return 0;
                usleep(100000);
            }
    return 2;
}
