// Memory that grows while the program waits: lost, kept, block, maps, shared, stacks; or idle.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *form;
static struct link { struct link *next; char text[240]; } *kept;
static char *block;

static void *of_thread(void *unused) {
    char text[65536];
    return memset(text, 1, sizeof text), unused;
}

static void step(size_t at) {
    pthread_t thread;
    if (!strcmp(form, "lost")) {
        for (int i = 0; i < 10; i++) memset(malloc(300), 1, 300);
    } else if (!strcmp(form, "kept")) {
        struct link *one = memset(malloc(sizeof *one), 1, sizeof *one);
        one->next = kept;
        kept = one;
    } else if (!strcmp(form, "block")) {
        block = realloc(block, (at + 1) << 14);
        memset(block + (at << 14), 1, 1 << 14);
    } else if (!strcmp(form, "maps")) {
        memset(mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 1 << 16);
    } else if (!strcmp(form, "shared")) {
        int file = memfd_create("frames", 0);
        ftruncate(file, 1 << 16);
        memset(mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), 1, 1 << 16);
        if (at > 500) close(file);
    } else if (!strcmp(form, "stacks") && at % 10 == 0)
        pthread_create(&thread, 0, of_thread, 0);
}

static void *grow(void *unused) {
    for (size_t at = 0;; at++) step(at), usleep(5000);
    return unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    form = argc > 1 ? argv[1] : "idle";
    pthread_create(&thread, 0, grow, 0);
    puts("ready");
    fflush(stdout);
    getchar();
    _exit(0);
}
