// Maps memory beside the heap, by itself and by malloc, and prints a line for each step.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *map_frame(size_t bytes) {
    char *frame = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (frame == MAP_FAILED) exit(3);
    memset(frame, 1, bytes);
    return frame;
}

static void draw(void) {
    static char *volatile last;
    last = map_frame(64 << 10);
    munmap(map_frame(32 << 10), 32 << 10);
    last = malloc(256 << 10);
    memset(last, 1, 4096);
}

int main(void) {
    for (int step = 0; step < 2000; step++) {
        draw();
        puts("step");
        fflush(stdout);
        usleep(20000);
    }
}
