// Grows in one way until it is killed: grow KIND RATE_MB_PER_S (0: as fast as it can).
// Prints the owner of what grows and the bytes that it holds, by its own count, after each 2 MiB.
// Waits for a line on stdin before it begins.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *map(size_t bytes) {
    void *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? abort(), p : p;
}

static void await_line(void) {
    char line[8];
    if (!fgets(line, sizeof line, stdin)) exit(1);
}

static int storage = -1;
static off_t stored;

static void hold(const char *kind, size_t bytes) {
    if (!strcmp(kind, "blocks") || !strcmp(kind, "cache")) {
        for (size_t held = 0; held < bytes; held += 1000) memset(malloc(1000), 1, 1000);
    } else if (!strcmp(kind, "large")) {
        memset(malloc(bytes), 1, bytes);
    } else if (!strcmp(kind, "anonymous")) {
        memset(map(bytes), 1, bytes);
    } else if (!strcmp(kind, "memfd") || !strcmp(kind, "tmpfs")) {
        char *buffer = calloc(1, bytes);
        if (storage < 0)
            storage = !strcmp(kind, "memfd") ? memfd_create("grow", 0) : open(getenv("GROW_FILE"), O_RDWR | O_CREAT | O_EXCL, 0600);
        if (pwrite(storage, buffer, bytes, stored) != (ssize_t)bytes) abort();
        if (!strcmp(kind, "memfd")) {
            volatile char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, storage, stored);
            for (size_t i = 0; i < bytes; i += 4096) p[i] = 1;
        }
        stored += bytes;
        free(buffer);
    } else if (!strcmp(kind, "hoard")) {
        // Every second block stays until the others are free: all but the last blocks of it are.
        static void *kept[1 << 20];
        static size_t count;
        for (size_t held = 0; held < bytes; held += 1000) memset(kept[count++] = malloc(1000), 1, 1000);
        if (count * 1000 >= 140 << 20) {
            for (size_t i = 0; i + 2 < count; i++) free(kept[i]);
            count = 0;
            for (;;) hold("anonymous", 1 << 16), usleep(1000);
        }
    } else if (!strcmp(kind, "half")) {
        // 150 MB, of which the first half is free. After another line, it grows by 100 MB of mappings, and ends.
        static void *kept[150000];
        static size_t mapped;
        if (!kept[0]) {
            for (size_t i = 0; i < 150000; i++) memset(kept[i] = malloc(1000), 1, 1000);
            for (size_t i = 0; i < 75000; i++) free(kept[i]);
            await_line();
        }
        memset(map(bytes), 1, bytes);
        if ((mapped += bytes) >= 100 << 20) printf("survived %zu\n", mapped), exit(0);
    } else if (!strcmp(kind, "children")) {
        if (fork() == 0) {
            memset(malloc(bytes), 1, bytes);
            for (;;) pause();
        }
    }
}

int main(int count, char **words) {
    const char *kind = words[1];
    double rate = atof(words[2]) * 1e6;
    const char *owner = !strcmp(kind, "anonymous") ? "anonymous_other" : !strcmp(kind, "memfd") ? "shared" : !strcmp(kind, "tmpfs") ? "shared_unmapped"
        : !strcmp(kind, "hoard") ? "reclaimable" : !strcmp(kind, "children") ? "other_process" : "allocated";
    size_t step = !strcmp(kind, "children") ? 4 << 20 : 1 << 18;
    setvbuf(stdout, 0, _IOLBF, 0);
    await_line();
    if (!strcmp(kind, "cache")) {
        char *buffer = malloc(1 << 20);
        int file = open(getenv("GROW_FILE"), O_RDWR | O_CREAT | O_EXCL, 0600);
        for (int i = 0; i < 150; i++) if (write(file, buffer, 1 << 20) < 0) abort();
        fsync(file);
    }
    if (!strcmp(kind, "half")) hold(kind, step);
    double begin = now();
    size_t held = 0;
    for (;;) {
        if (rate > 0 && held > (now() - begin) * rate) {
            usleep(1000);
            continue;
        }
        hold(kind, step);
        held += step;
        if (held % (2 << 20) == 0) printf("%s %zu\n", owner, held);
    }
}
