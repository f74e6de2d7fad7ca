/* Which growth of a heap gets huge pages: steps STEP_KB TOTAL_MB.
 *
 * Grows a heap by brk(2) in steps of STEP_KB, asks for huge pages (MADV_HUGEPAGE) for each step, as `always` does for all
 * memory, and writes to every page of it before the next step. Prints the number of page faults, and bytes in huge pages. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count < 3) return 2;
    size_t step = atol(arguments[1]) << 10, total = atol(arguments[2]) << 20;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    for (size_t done = 0; done < total; done += step) {
        char *begin = sbrk(step);
        uintptr_t page = (uintptr_t)begin & ~4095ul;
        madvise((void *)page, begin + step - (char *)page, MADV_HUGEPAGE);
        for (size_t at = 0; at < step; at += 4096) begin[at] = 1;
    }
    getrusage(RUSAGE_SELF, &after);
    char line[200];
    long huge = 0, kb;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "AnonHugePages: %ld kB", &kb) == 1) huge = kb;
    printf("steps of %zu KiB: %ld faults for %zu MiB, %ld MiB in huge pages\n", step >> 10, after.ru_minflt - before.ru_minflt, total >> 20, huge >> 10);
}
