/* The code that runs in targets (stub/stub.c), over a heap that a test provides, at the heap's own addresses.
 *
 * Reads from stdin, in words: main arena, offset of the bins, whether links are mixed, number of memory areas and of
 * operations; address and size of each area; the operations; then the contents of the areas. Writes the code's counts,
 * each range that it dropped, and the contents of the areas. The kernel answers as it does in a target: memory outside
 * the areas is not mapped. Only the clock is simulated: it advances by 100 ns each time it is read.
 *
 * Exits with 4 if the code touches unmapped memory, 5 if an area cannot be mapped at its address. */

#define _GNU_SOURCE
#define LOWTIDE_ON_HOST
#include "../../stub/stub.c"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define MAX_DROPS 100000

static u64 drops[MAX_DROPS][2], drop_count, simulated_ns;

static long call6(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    switch (nr) {
    case NR_CLOCK_GETTIME:
        simulated_ns += 100;
        ((u64 *)b)[0] = simulated_ns / 1000000000UL;
        ((u64 *)b)[1] = simulated_ns % 1000000000UL;
        return 0;
    case NR_MADVISE:
        if (drop_count == MAX_DROPS)
            abort();
        drops[drop_count][0] = a;
        drops[drop_count++][1] = b;
        break;
    case NR_RT_SIGPROCMASK:
    case NR_FUTEX:
        break;
    default:
        abort();
    }
    long result = syscall(nr, a, b, c, d, e, f);
    return result < 0 ? -errno : result;
}

#ifdef LOWTIDE_GUARDED
/* Returns the thread of the next operation, unless the test names another one. */
static u64 own_thread(const struct shared_block *s) {
    return s->main_arena ? s->main_arena : s->ops[s->next].guard;
}
#endif

static void touched(int signal, siginfo_t *info, void *context) {
    u64 at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    fprintf(stderr, "signal %d: the code at %#lx touches %p\n", signal, at, info->si_addr);
    _exit(4);
}

static void read_all(void *to, u64 bytes) {
    if (fread(to, 1, bytes, stdin) != bytes)
        abort();
}

static void write_all(const void *from, u64 bytes) {
    if (fwrite(from, 1, bytes, stdout) != bytes)
        abort();
}

static void *fresh(u64 bytes) {
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        abort();
    return at;
}

int main(void) {
    struct sigaction act = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &act, 0);
    sigaction(SIGBUS, &act, 0);
    alarm(60); /* the code must come to an end */
    u64 head[5];
    read_all(head, sizeof head);
    u64 areas = head[3], count = head[4];
    u64(*places)[2] = fresh(areas * 16 + 1);
    read_all(places, areas * 16);
    struct shared_block *s = fresh(sizeof *s + count * sizeof(struct op));
    read_all(s->ops, count * sizeof(struct op));
    for (u64 i = 0; i < areas; i++) {
        int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        void *at = mmap((void *)places[i][0], places[i][1], PROT_READ | PROT_WRITE, how, -1, 0);
        if ((u64)at != places[i][0])
            return 5;
        read_all(at, places[i][1]);
    }
    s->main_arena = head[0];
    s->bins_at = head[1];
    s->alone = head[1]; /* the heaps that need one have no use for the other */
    s->mixed_links = head[2];
    s->pages_per_hold = MAX_PAGES;
    s->hold_ticks = 60000;
    s->count = count;
    while (s->next < s->count)
        run_locked(s, 0);
    u64 counts[5] = {s->returned, s->skipped, s->busy, s->consolidated, drop_count};
    write_all(counts, sizeof counts);
    write_all(drops, drop_count * 16);
    for (u64 i = 0; i < areas; i++)
        write_all((void *)places[i][0], places[i][1]);
    return fflush(stdout) != 0;
}
