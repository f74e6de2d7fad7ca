/* A process with a heap of 30 MiB, of which each tenth block is allocated, that makes it hard to read. It prints "ready", and
 * waits.
 *
 *   fault     the pages of a further heap-sized mapping, and of its environment, are served by nobody (userfaultfd)
 *   maps      60,000 mappings
 *   threads   2,000 threads
 *   forks     forks and executes `true` all the time
 *   vfork     waits in vfork, uninterruptibly, for a child that sleeps
 *   noise     random words in all of its heap
 *   cycles    each word of its heap points to a word of its heap
 *   spin      four threads that allocate and free all the time
 *   filter    a seccomp filter that permits nothing but what it needs
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 60000, BYTES = 500 };
static char *blocks[BLOCKS];

static void *wait_for_ever(void *nothing) {
    for (;;) pause();
    return nothing;
}

static void *churn(void *nothing) {
    char *own[64] = {0};
    for (unsigned i = 0;; i++) {
        free(own[i % 64]);
        own[i % 64] = malloc(i * 7919 % 3000 + 1);
    }
    return nothing;
}

static void fault(void) {
    size_t bytes = 64 << 20;
    char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int served = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register all = {.range = {(uint64_t)area, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (served < 0 || ioctl(served, UFFDIO_API, &api) || ioctl(served, UFFDIO_REGISTER, &all)) exit(1);
    /* Half of the heap's resident pages are dropped, and then nobody serves them. */
    char *low = (char *)((uintptr_t)blocks[100] & ~4095ul), *high = (char *)((uintptr_t)blocks[BLOCKS / 2] & ~4095ul);
    struct uffdio_register heap = {.range = {(uint64_t)low, high - low}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(served, UFFDIO_REGISTER, &heap)) exit(1);
    madvise(low, high - low, MADV_DONTNEED);
}

static void overwrite(int is_cycle) {
    char *low = blocks[0], *high = blocks[BLOCKS - 1];
    uint64_t seed = 88172645463325252, words = (high - low) / 8;
    for (uint64_t *word = (uint64_t *)low; (char *)word < high; word++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        *word = is_cycle ? (uint64_t)low + seed % words * 8 : seed;
    }
}

static void filter(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pause, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) exit(1);
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
    for (int i = 0; i < BLOCKS; i++)
        if (i % 10 && i != BLOCKS - 1) free(blocks[i]);
    write(1, "ready\n", 6);
    pthread_t thread;
    if (!strcmp(mode, "fault")) fault();
    if (!strcmp(mode, "noise")) overwrite(0);
    if (!strcmp(mode, "cycles")) overwrite(1);
    if (!strcmp(mode, "maps"))
        for (int i = 0; i < 60000; i++) mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!strcmp(mode, "threads")) {
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 65536);
        for (int i = 0; i < 2000; i++) pthread_create(&thread, &small, wait_for_ever, NULL);
    }
    if (!strcmp(mode, "spin"))
        for (int i = 0; i < 4; i++) pthread_create(&thread, NULL, churn, NULL);
    if (!strcmp(mode, "vfork") && !vfork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    if (!strcmp(mode, "filter")) filter();
    while (!strcmp(mode, "forks")) {
        char *command[] = {"true", NULL};
        pid_t child;
        if (!posix_spawn(&child, "/bin/true", NULL, NULL, command, NULL)) waitpid(child, NULL, 0);
        if (!(child = fork())) _exit(0);
        if (child > 0) waitpid(child, NULL, 0);
    }
    for (;;) pause();
}
