/* A program whose system calls are dispatched to a signal handler, unless the C library makes them (Syscall User
 * Dispatch, from Linux 5.11): any call from elsewhere ends it with SIGSYS.
 *
 * It hoards memory and prints "ready PID", or "unsupported". For each line of its input, it prints "alive". */
#define _GNU_SOURCE
#include <link.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif

static unsigned long start, bytes;
static volatile char selector;
static pthread_barrier_t barrier;

static int find(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    if (!strstr(info->dlpi_name, "libc.so")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        start = info->dlpi_addr + part->p_vaddr;
        bytes = part->p_memsz;
    }
    return 0;
}

static int dispatch(void) {
    return prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start, bytes, &selector);
}

static void *wait_forever(void *unused) {
    dispatch();
    pthread_barrier_wait(&barrier);
    for (;;) poll(0, 0, 100);
    return unused;
}

int main(void) {
    enum { BLOCKS = 20000 };
    static void *blocks[BLOCKS];
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(4000), 1, 4000);
    for (int i = 0; i < BLOCKS - 1; i++) free(blocks[i]);
    dl_iterate_phdr(find, 0);
    if (!bytes || dispatch()) {
        puts("unsupported");
        return 0;
    }
    pthread_barrier_init(&barrier, 0, 3);
    pthread_t thread;
    for (int i = 0; i < 2; i++) pthread_create(&thread, 0, wait_forever, 0);
    pthread_barrier_wait(&barrier);
    selector = 1; /* SYSCALL_DISPATCH_FILTER_BLOCK */
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[40];
    while (fgets(line, sizeof line, stdin)) {
        puts("alive");
        fflush(stdout);
    }
    return 0;
}
