/* Programs that a release must leave alone, by their first argument. Each prints one line when it is
   ready, and waits for its input to end. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#ifdef OWN_MALLOC
static char room[1 << 20];
static size_t used;
void *malloc(size_t size) {
    void *block = room + used;
    used += (size + 15) / 16 * 16;
    return used <= sizeof room ? block : 0;
}
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t size) { return malloc(count * size); }
void *realloc(void *block, size_t size) {
    void *other = malloc(size);
    return block && other ? memcpy(other, block, size) : other;
}
#endif

static void say(long number) {
    char line[32];
    int length = snprintf(line, sizeof line, "%ld\n", number);
    if (write(1, line, length) != length) _exit(1);
}

static int until_the_end(void *unused) {
    char byte;
    (void)unused;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}

static int of_child(void *unused) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return until_the_end(unused);
}

static void *of_thread(void *unused) {
    say(syscall(SYS_gettid));
    until_the_end(unused);
    return 0;
}

/* Allows all calls except some: madvise returns an errno, getrandom kills the process. A second
   filter, which the kernel runs too, kills a thread that maps a page at the address 0x1234000. */
static int filter(void) {
    struct sock_filter calls[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_filter places[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1234000, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog first = {sizeof calls / sizeof *calls, calls};
    struct sock_fprog second = {sizeof places / sizeof *places, places};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &first) ||
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &second);
}

/* Locks the heap when a signal arrives. The hoard is below one block in use. */
static void *lock_on_signal(void *heap) {
    int signal;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    if (sigwait(&set, &signal) || mlock(heap, (char *)sbrk(0) - (char *)heap)) _exit(1);
    for (;;) pause();
}

static int hoard(void) {
    enum { BLOCKS = 2500, BYTES = 1500 };
    static char *blocks[BLOCKS];
    static char *volatile in_use;
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
    in_use = malloc(64);
    char *first = blocks[0];
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_t other;
    return sigprocmask(SIG_BLOCK, &set, 0) || pthread_create(&other, 0, lock_on_signal, first - (size_t)first % 4096);
}

/* Maps a buffer of perf events, larger than what every user may lock (kernel.perf_event_mlock_kb). */
static int pin(void) {
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_DUMMY};
    int fd = syscall(SYS_perf_event_open, &event, 0, -1, -1, 0);
    return fd < 0 || mmap(0, 4096 * 1025, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED;
}

/* Waits for a lock of this program's file, which a child has. */
static int wait_for_lock(const char *file) {
    int ends[2], own = open(file, O_RDONLY), other = open(file, O_RDONLY);
    char byte;
    if (own < 0 || other < 0 || pipe(ends)) return 1;
    int child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (flock(other, LOCK_EX) || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    if (child < 0 || read(ends[0], &byte, 1) != 1) return 1;
    say(getpid());
    return flock(own, LOCK_EX);
}

/* Waits for a socket, for at most a day. */
static int wait_for_socket(void) {
    int ends[2];
    char byte;
    struct timeval day = {86400, 0};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return 1;
    if (setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &day, sizeof day)) return 1;
    say(getpid());
    return recv(ends[0], &byte, 1, 0) < 0;
}

static int is(const char *mode, const char *name) { return !strcmp(mode, name); }

int main(int count, char **args) {
    const char *mode = count > 1 ? args[1] : "plain";
    free(malloc(1000));
    if (is(mode, "locked")) {
        static char page[8192];
        if (mlock(page, 1)) return perror("mlock"), 1;
    } else if (is(mode, "hoard")) {
        if (hoard()) return perror("hoard"), 1;
    } else if (is(mode, "pinned")) {
        if (pin()) return perror("perf_event_open"), 1;
    } else if (is(mode, "hugetlb")) {
        char *page = mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
        if (page == MAP_FAILED) return perror("mmap"), 1;
        *page = 1;
        if (hoard()) return perror("hoard"), 1;
    } else if (is(mode, "clone")) {
        static char stack[65536];
        int child = clone(of_child, stack + sizeof stack, CLONE_VM | SIGCHLD, 0);
        if (child < 0) return perror("clone"), 1;
        say(child);
        return until_the_end(0);
    } else if (is(mode, "vfork")) {
        if (!vfork()) {
            say(getpid());
            of_child(0);
            _exit(0);
        }
        return 0;
    } else if (is(mode, "fork")) {
        int child = fork();
        if (!child) _exit(of_child(0));
        say(child);
        return until_the_end(0);
    } else if (is(mode, "thread")) {
        pthread_t other;
        if (pthread_create(&other, 0, of_thread, 0)) return 1;
        return pthread_join(other, 0);
    } else if (is(mode, "undumpable")) {
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) return 1;
    } else if (is(mode, "flock")) {
        return wait_for_lock(args[0]);
    } else if (is(mode, "socket")) {
        return wait_for_socket();
    } else if (is(mode, "seccomp")) {
        if (filter()) return perror("seccomp"), 1;
    }
    say(getpid());
    return until_the_end(0);
}
