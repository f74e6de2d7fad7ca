/* A program that detects every effect of a release on it: steady THREADS WAIT MEGABYTES [HAZARD].
 *
 * All of its threads wait in the same way. Each has known registers, vector registers, a signal mask and an
 * alternate signal stack, and checks after each wait that they are unchanged. The program prints "ready" when
 * it has hoarded some free memory between blocks with patterns. Then it runs the commands in its input, one
 * per line: "check", "hoard", "restart" or "norestart" (how SIGUSR1 is handled), "change HAZARD", "exec", "quit". SIGUSR2
 * wakes the first thread if it waits for signals only. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "filter.h"

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

#define MOST_THREADS 16
#define TIMEOUT_MS 30

enum how { EPOLL, EPOLL_TIMED, POLL_TIMED, READ, SLEEP, SUSPEND, PAUSE, COND, SPIN };
static const char *const names[] = {"epoll", "epoll-timed", "poll-timed", "read", "sleep", "suspend", "pause", "cond", "spin"};

struct worker {
    pthread_t thread;
    int number, input, output, epoll;
    enum how how;
};

static struct worker workers[MOST_THREADS];
static int threads;
static char **arguments;
static char reason[400];
static pthread_mutex_t reason_lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int handled, interrupted, lost, answers, turn;
static __thread volatile int handled_here;
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_cond = PTHREAD_COND_INITIALIZER;

/* Records the first error. */
static void wrong(const char *format, ...) {
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&reason_lock);
    if (!*reason) vsnprintf(reason, sizeof reason, format, args);
    pthread_mutex_unlock(&reason_lock);
    va_end(args);
}

static void say(const char *format, ...) {
    char line[500];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    line[length++] = '\n';
    if (write(1, line, length) != length) _exit(3);
}

static void on_signal(int signal) {
    (void)signal;
    __atomic_add_fetch(&handled, 1, __ATOMIC_SEQ_CST);
    handled_here++;
}

/* Ends a wait, and is not counted. */
static void on_wake(int signal) {
    (void)signal;
    handled_here++;
}

static void handle(int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(SIGUSR1, &action, 0);
}

/* --- A wait with a check of all state. */

struct state {
    uint64_t general[8];         /* rbx, rbp, r12 to r15, rsp, the control words */
    uint8_t vectors[32 * 64] __attribute__((aligned(64)));
    uint64_t masks[8];
};

struct args {
    uint64_t call, values[6];
};

enum { NONE, AVX, AVX512 };
static int level;

#define EACH16(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11) do(12) do(13) do(14) do(15)
#define UPPER16(do) do(16) do(17) do(18) do(19) do(20) do(21) do(22) do(23) do(24) do(25) do(26) do(27) do(28) do(29) do(30) do(31)
#define LOAD_Y(n) "vmovdqu 64+64*" #n "(%%rax), %%ymm" #n "\n"
#define SAVE_Y(n) "vmovdqu %%ymm" #n ", 64+64*" #n "(%%rax)\n"
#define LOAD_Z(n) "vmovdqu64 64+64*" #n "(%%rax), %%zmm" #n "\n"
#define SAVE_Z(n) "vmovdqu64 %%zmm" #n ", 64+64*" #n "(%%rax)\n"
#define LOAD_X(n) "movups 64+64*" #n "(%%rax), %%xmm" #n "\n"
#define SAVE_X(n) "movups %%xmm" #n ", 64+64*" #n "(%%rax)\n"
#define LOAD_K "kmovw 2112(%%rax), %%k1\n kmovw 2120(%%rax), %%k2\n kmovw 2128(%%rax), %%k7\n"
#define SAVE_K "kmovw %%k1, 2112(%%rax)\n kmovw %%k2, 2120(%%rax)\n kmovw %%k7, 2128(%%rax)\n"

/* Calls syscall() of the C library, which touches no vector register, and records all registers
 * after it. The red zone belongs to the compiler. */
#define WAIT(load, save)                                                                              \
    __asm__ volatile("sub $320, %%rsp\n mov %%rbp, 64(%%rsp)\n mov %%rcx, 56(%%rsp)\n"                 \
                     "mov %%rdi, %%rax\n mov %%rsi, 40(%%rsp)\n mov %%rdx, %%r12\n" load                \
                     "mov (%%r12), %%rdi\n mov 8(%%r12), %%rsi\n mov 16(%%r12), %%rdx\n"               \
                     "mov 24(%%r12), %%rcx\n mov 32(%%r12), %%r8\n mov 40(%%r12), %%r9\n"              \
                     "mov 48(%%r12), %%r11\n mov %%r11, (%%rsp)\n mov 56(%%rsp), %%r11\n"              \
                     "mov (%%rax), %%rbx\n mov 8(%%rax), %%rbp\n mov 16(%%rax), %%r12\n"               \
                     "mov 24(%%rax), %%r13\n mov 32(%%rax), %%r14\n mov 40(%%rax), %%r15\n"            \
                     "mov %%rsp, 48(%%rax)\n call *%%r11\n"                                            \
                     "mov %%rax, 48(%%rsp)\n mov 40(%%rsp), %%rax\n"                                   \
                     "mov %%rbx, (%%rax)\n mov %%rbp, 8(%%rax)\n mov %%r12, 16(%%rax)\n"               \
                     "mov %%r13, 24(%%rax)\n mov %%r14, 32(%%rax)\n mov %%r15, 40(%%rax)\n"            \
                     "mov %%rsp, 48(%%rax)\n" save "mov 48(%%rsp), %%rax\n"                            \
                     "mov 64(%%rsp), %%rbp\n add $320, %%rsp\n"                                        \
                     : "=a"(result), "+D"(first), "+S"(second), "+d"(third), "+c"(function)           \
                     :                                                                                \
                     : "rbx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc",   \
                       "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",        \
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

static __attribute__((noinline)) long call(struct state *before, struct state *after, const struct args *args) {
    uint64_t first = (uint64_t)before, second = (uint64_t)after, third = (uint64_t)args;
    uint64_t function = (uint64_t)syscall;
    long result;
    if (level == AVX512)
        WAIT(EACH16(LOAD_Z) UPPER16(LOAD_Z) LOAD_K, EACH16(SAVE_Z) UPPER16(SAVE_Z) SAVE_K "vzeroupper\n");
    else if (level == AVX)
        WAIT(EACH16(LOAD_Y), EACH16(SAVE_Y) "vzeroupper\n");
    else
        WAIT(EACH16(LOAD_X), EACH16(SAVE_X));
    return result;
}

/* Whether a thread must not read the time stamp counter, which the C library does to read the time. */
static int has_no_tsc;

static void forbid_tsc(void) {
    has_no_tsc = 1;
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)) _exit(10);
}

static uint64_t us_now(void) {
    struct timespec time;
    if (has_no_tsc)
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &time);
    else
        clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000ul + time.tv_nsec / 1000;
}

/* Makes a system call, and checks that all state is as before. Returns its result, and errors as
 * negative numbers. */
static long looked_at(const char *name, struct args args) {
    static __thread uint64_t seed;
    struct state before, after;
    memset(&before, 0, sizeof before);
    seed += 0x9e3779b97f4a7c15;
    for (int i = 0; i < 6; i++) before.general[i] = seed * (2 * i + 1);
    for (size_t i = 0; i < sizeof before.vectors; i++) before.vectors[i] = (seed >> 13) * (i | 1) + i / 64;
    for (int i = 0; i < 3; i++) before.masks[i] = (seed >> (20 + i)) & 0xffff;
    after = before;
    sigset_t mask_before, mask_after;
    stack_t stack_before, stack_after;
    pthread_sigmask(SIG_SETMASK, 0, &mask_before);
    sigaltstack(0, &stack_before);
    int handled_before = handled_here;
    errno = 0;
    long result = call(&before, &after, &args);
    if (result == -1) result = -errno;
    int handler_ran = handled_here - handled_before;
    pthread_sigmask(SIG_SETMASK, 0, &mask_after);
    sigaltstack(0, &stack_after);
    if (memcmp(before.general, after.general, sizeof before.general)) wrong("%s: registers", name);
    size_t width = level == AVX512 ? 64 : level == AVX ? 32 : 16;
    for (size_t i = 0; i < (level == AVX512 ? 32 : 16); i++)
        if (memcmp(before.vectors + 64 * i, after.vectors + 64 * i, width)) wrong("%s: vector register %zu", name, i);
    if (level == AVX512 && memcmp(before.masks, after.masks, sizeof before.masks)) wrong("%s: mask registers", name);
    if (memcmp(&mask_before, &mask_after, 8)) wrong("%s: the signal mask", name);
    if (stack_before.ss_sp != stack_after.ss_sp || stack_before.ss_size != stack_after.ss_size ||
        stack_before.ss_flags != stack_after.ss_flags)
        wrong("%s: the alternative stack", name);
    if (result == -EINTR && !handler_ran) __atomic_add_fetch(&interrupted, 1, __ATOMIC_SEQ_CST);
    /* Each handler ends one wait, except if SA_RESTART is set and the call supports it, or if the
     * timeout expires at the same moment. */
    int ended = args.call == SYS_read ? handler_ran : result == -EINTR || (result == 0 && args.call != SYS_rt_sigsuspend);
    if (handler_ran > ended) __atomic_add_fetch(&lost, handler_ran - ended, __ATOMIC_SEQ_CST);
    return result;
}

static struct args call_of(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e) {
    return (struct args){number, {a, b, c, d, e, 0}};
}

/* Waits until there is input, in the worker's way. */
static void wait_for_input(struct worker *w) {
    struct epoll_event event = {0, {0}};
    struct timespec time = {0, TIMEOUT_MS * 1000000};
    struct pollfd file = {w->input, POLLIN, 0};
    sigset_t mask;
    for (;;) {
        uint64_t begin = us_now();
        long result = 0;
        int is_over = 0;
        const char *name = names[w->how];
        switch (w->how) {
        case EPOLL:
            result = looked_at(name, call_of(SYS_epoll_wait, w->epoll, (uint64_t)&event, 1, -1, 0));
            if (result == 0) wrong("epoll_wait has come back without an event");
            break;
        case EPOLL_TIMED:
            result = looked_at(name, call_of(SYS_epoll_wait, w->epoll, (uint64_t)&event, 1, TIMEOUT_MS, 0));
            is_over = result == 0;
            break;
        case POLL_TIMED:
            result = looked_at(name, call_of(SYS_poll, (uint64_t)&file, 1, TIMEOUT_MS, 0, 0));
            is_over = result == 0;
            break;
        case SLEEP:
            result = looked_at(name, call_of(SYS_nanosleep, (uint64_t)&time, 0, 0, 0, 0));
            is_over = result == 0;
            break;
        case READ:
            return;
        case SUSPEND:
            pthread_sigmask(SIG_SETMASK, 0, &mask);
            sigdelset(&mask, SIGUSR1);
            sigdelset(&mask, SIGUSR2);
            if (poll(&file, 1, 0) == 1) return;
            result = looked_at(name, call_of(SYS_rt_sigsuspend, (uint64_t)&mask, 8, 0, 0, 0));
            break;
        case PAUSE:
            if (poll(&file, 1, 0) == 1) return;
            result = looked_at(name, call_of(SYS_pause, 0, 0, 0, 0, 0));
            break;
        case COND:
            pthread_mutex_lock(&turn_lock);
            while (poll(&file, 1, 0) != 1) pthread_cond_wait(&turn_cond, &turn_lock);
            pthread_mutex_unlock(&turn_lock);
            return;
        case SPIN:
            break;
        }
        uint64_t took = us_now() - begin;
        if (is_over && took < TIMEOUT_MS * 1000) wrong("%s ended after %lu us", name, took);
        if (result < 0 && result != -EINTR) wrong("%s: errno %ld", name, -result);
        if (poll(&file, 1, 0) == 1) return;
        if (result > 0) wrong("%s: an event without input", name);
    }
}

/* Reads up to the end of a line; returns 0 at the end of the input. */
static int command(struct worker *w, char *line, int room) {
    for (int length = 0;;) {
        if (!length) wait_for_input(w);
        long result = looked_at("read", call_of(SYS_read, w->input, (uint64_t)line + length, 1, 0, 0));
        if (result == -EINTR) continue;
        if (result <= 0) return 0;
        if (line[length] == '\n') {
            line[length] = 0;
            return 1;
        }
        if (length < room - 1) length++;
    }
}

/* --- The hoard. */

static unsigned char **blocks;
static size_t *sizes, count;
static size_t megabytes;

static unsigned char pattern(size_t block, size_t at) { return block * 167 + at * 31 + (at >> 8); }

static void hoard(void) {
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    uint64_t seed = 12345;
    size_t bytes = 0;
    for (count = 0; bytes < megabytes << 20; count++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        sizes[count] = 1000 + (seed >> 33) % 60000;
        blocks[count] = malloc(sizes[count]);
        for (size_t at = 0; at < sizes[count]; at++) blocks[count][at] = pattern(count, at);
        bytes += sizes[count];
    }
    for (size_t i = 0; i < count; i++) {
        if (i % 5 == 0) continue;
        free(blocks[i]);
        blocks[i] = 0;
    }
}

static void check_blocks(void) {
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; blocks[i] && at < sizes[i]; at++)
            if (blocks[i][at] != pattern(i, at)) {
                wrong("block %zu at %zu", i, at);
                return;
            }
    /* The allocator itself must still work. */
    for (size_t i = 0; i < 400; i++) {
        size_t bytes = 100 + i * 137 % 30000;
        unsigned char *block = calloc(1, bytes);
        for (size_t at = 0; at < bytes; at += 64)
            if (block[at]) wrong("calloc gave what is not zero");
        memset(block, 0x5a, bytes);
        free(block);
    }
}

/* --- Memory that is mapped while lowtide may choose the same place. */

static unsigned char *mapped;
static const size_t mapped_bytes = 64 << 20;

static void map(int rights) {
    mapped = mmap(0, mapped_bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) _exit(9);
}

static void check_mapped(void) {
    if (!mapped) return;
    mprotect(mapped, mapped_bytes, PROT_READ);
    for (size_t at = 0; at < mapped_bytes; at += 8)
        if (*(unsigned long *)(mapped + at)) {
            wrong("mapped memory at %zu", at);
            break;
        }
    munmap(mapped, mapped_bytes);
    mapped = 0;
}

/* --- Threads. */

static void prepare(struct worker *w) {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN + 1 + w->number);
    if (w->how == SUSPEND) {
        sigaddset(&mask, SIGUSR1);
        sigaddset(&mask, SIGUSR2);
    }
    pthread_sigmask(SIG_SETMASK, &mask, 0);
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, 0);
    struct epoll_event event = {EPOLLIN, {0}};
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->input, &event);
}

static void *of_worker(void *argument) {
    struct worker *w = argument;
    char line[40];
    prepare(w);
    /* Its own working directory and root, which setns(2) and unshare(2) may ask for. */
    if (arguments[4] && !strcmp(arguments[4], "own-directories") && unshare(CLONE_FS)) _exit(12);
    __atomic_add_fetch(&answers, 1, __ATOMIC_SEQ_CST);
    while (w->how == SPIN) {}
    while (command(w, line, sizeof line)) __atomic_add_fetch(&answers, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static void wait_for_answers(void) {
    while (__atomic_load_n(&answers, __ATOMIC_SEQ_CST) < threads - 1) usleep(100);
    answers = 0;
}

static void ask_all(void) {
    for (int i = 1; i < threads; i++)
        if (write(workers[i].output, "go\n", 3) != 3) _exit(4);
    pthread_mutex_lock(&turn_lock);
    pthread_cond_broadcast(&turn_cond);
    pthread_mutex_unlock(&turn_lock);
    for (int i = 1; i < threads; i++)
        if (workers[i].how == SUSPEND || workers[i].how == PAUSE) pthread_kill(workers[i].thread, SIGUSR2);
    wait_for_answers();
}

static void limit(int what, rlim_t value) {
    struct rlimit limit = {value, value};
    if (setrlimit(what, &limit)) _exit(6);
}

/* Allows the calls of this program, and of any program with threads and malloc, and kills for any other one. */
static void sandbox(void) {
    static const int calls[] = {
        SYS_read, SYS_write, SYS_close, SYS_poll, SYS_ppoll, SYS_epoll_wait, SYS_epoll_pwait, SYS_futex, SYS_exit, SYS_exit_group, SYS_madvise,
        SYS_munmap, SYS_mmap, SYS_mprotect, SYS_brk, SYS_rt_sigreturn, SYS_rt_sigsuspend, SYS_pause, SYS_rt_sigprocmask, SYS_nanosleep,
        SYS_clock_nanosleep, SYS_restart_syscall, SYS_getpid, SYS_tgkill, SYS_sigaltstack,
    };
    enum { COUNT = sizeof calls / sizeof *calls };
    struct sock_filter lines[COUNT + 3];
    lines[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++)
        lines[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], COUNT - i, 0);
    lines[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    lines[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {COUNT + 3, lines};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) _exit(5);
}

/* Sets up the obstacle to a release, after everything else, or during a release. */
static void hazard(const char *name) {
    if (!strcmp(name, "seccomp-allow")) filter(SYS_kexec_load, SECCOMP_RET_KILL_PROCESS);
    if (!strcmp(name, "seccomp-clone")) filter(SYS_clone, SECCOMP_RET_KILL_PROCESS);
    if (!strcmp(name, "seccomp-mmap")) filter(SYS_mmap, SECCOMP_RET_KILL_PROCESS);
    if (!strcmp(name, "seccomp-errno")) filter(SYS_clone, SECCOMP_RET_ERRNO | EPERM);
    if (!strcmp(name, "mdwe") && prctl(PR_SET_MDWE, 1, 0, 0, 0)) {
        say("unsupported");
        _exit(0);
    }
    if (!strcmp(name, "address-space")) {
        /* Room for the code, but not for its block. */
        FILE *file = fopen("/proc/self/statm", "r");
        long pages = 0;
        if (fscanf(file, "%ld", &pages) != 1) _exit(7);
        fclose(file);
        limit(RLIMIT_AS, pages * 4096 + 8192);
    }
    if (!strcmp(name, "sandbox")) sandbox();
    if (!strcmp(name, "setuid") && (setgroups(0, 0) || setgid(65534) || setuid(65534))) _exit(8);
    if (!strcmp(name, "undumpable")) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (!strcmp(name, "no-new-privileges")) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!strcmp(name, "no-tsc")) forbid_tsc();
    /* Without privileges, only a part may be locked. */
    if (!strcmp(name, "lock") && mlockall(MCL_CURRENT | MCL_FUTURE) && mlock(blocks, 4096)) _exit(11);
    if (!strcmp(name, "unlock")) munlockall();
    if (!strcmp(name, "no-memory")) limit(RLIMIT_AS, 4096);
    if (!strcmp(name, "no-files")) limit(RLIMIT_NOFILE, 3);
    if (!strcmp(name, "personality")) syscall(SYS_personality, ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC);
    if (!strcmp(name, "seal")) {
        /* The heap: memory that stays writable. Kernels before 6.10 do not know the call. */
        char *top = sbrk(0);
        syscall(462 /* mseal */, ((unsigned long)top - (1 << 20)) & ~4095ul, 1 << 19, 0);
    }
    if (!strcmp(name, "idle")) {
        struct sched_param none = {0};
        sched_setscheduler(0, SCHED_IDLE, &none);
        setpriority(PRIO_PROCESS, 0, 19);
    }
    if (!strcmp(name, "one-processor")) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(0, &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    if (!strcmp(name, "timer")) {
        struct sigaction ignore = {.sa_handler = SIG_IGN};
        struct itimerval often = {{0, 500}, {0, 500}};
        sigaction(SIGALRM, &ignore, 0);
        setitimer(ITIMER_REAL, &often, 0);
    }
    if (!strcmp(name, "name")) prctl(PR_SET_NAME, "lowtide", 0, 0, 0);
    if (!strcmp(name, "no-capabilities")) {
        struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {0};
        syscall(SYS_capset, &head, none);
    }
    if (!strcmp(name, "namespaces")) unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC);
    if (!strcmp(name, "trim")) malloc_trim(0);
    if (!strcmp(name, "threads")) {
        /* The limit does not apply to root. */
        if (geteuid() == 0 && (setgid(65534) || setuid(65534))) _exit(8);
        limit(RLIMIT_NPROC, 1);
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    }
}

int main(int argument_count, char **argument_values) {
    arguments = argument_values;
    if (argument_count < 4) return 2;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    __builtin_cpu_init();
    level = __builtin_cpu_supports("avx512f") ? AVX512 : __builtin_cpu_supports("avx") ? AVX : NONE;
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_ARENA_MAX, 2);
    threads = atoi(argument_values[1]);
    enum how how = EPOLL;
    while (strcmp(names[how], argument_values[2])) how++;
    megabytes = atoi(argument_values[3]);
    blocks = calloc((megabytes << 20) / 1000 + 1, sizeof *blocks);
    sizes = calloc((megabytes << 20) / 1000 + 1, sizeof *sizes);
    /* Threads inherit it. */
    if (argument_count > 4 && !strcmp(argument_values[4], "no-tsc")) forbid_tsc();
    handle(0);
    struct sigaction wake = {.sa_handler = on_wake};
    if (how == SUSPEND || how == PAUSE) sigaction(SIGUSR2, &wake, 0);
    for (int i = 0; i < threads; i++) {
        struct worker *w = &workers[i];
        int ends[2] = {0, -1};
        if (i && pipe2(ends, O_CLOEXEC)) return 2;
        /* The first thread must wait for its input. */
        *w = (struct worker){.number = i, .input = ends[0], .output = ends[1], .how = i || how != COND ? how : EPOLL};
        if (i && pthread_create(&w->thread, 0, of_worker, w)) return 2;
    }
    prepare(&workers[0]);
    wait_for_answers();
    hoard();
    hazard(argument_count > 4 ? argument_values[4] : "");
    say("ready %d", getpid());
    while (how == SPIN) {}
    char line[40];
    while (command(&workers[0], line, sizeof line)) {
        if (!strcmp(line, "check")) {
            ask_all();
            check_blocks();
            check_mapped();
            say("%s interrupted %d handled %d lost %d", *reason ? reason : "ok", interrupted, handled, lost);
            interrupted = handled = lost = 0;
        } else if (!strcmp(line, "hoard")) {
            hoard();
            say("hoarded");
        } else if (!strcmp(line, "map") || !strcmp(line, "reserve")) {
            map(*line == 'm' ? PROT_READ | PROT_WRITE : PROT_NONE);
            say("so");
        } else if (!strcmp(line, "restart") || !strcmp(line, "norestart")) {
            handle(*line == 'r' ? SA_RESTART : 0);
            say("so");
        } else if (!strncmp(line, "change ", 7)) {
            hazard(line + 7);
            say("so");
        } else if (!strcmp(line, "exec")) {
            say("execs");
            execv("/proc/self/exe", arguments);
            return 2;
        } else {
            break;
        }
    }
    return 0;
}
