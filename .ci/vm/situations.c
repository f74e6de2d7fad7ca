/* A program that makes one kind of memory that its cgroup is charged for, prints `ready`, and waits.
 *   situations NAME [DIRECTORY]
 * `namespace COMMAND...` runs a command in a cgroup namespace of its own. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1UL << 20)

static const char *shared = "/dev/shm";
static const char *directory = "/dev/shm";
static char buffer[64 << 10];

static void check(int succeeded, const char *what) {
    if (!succeeded) {
        perror(what);
        exit(1);
    }
}

static void fill(int file, size_t bytes) {
    for (size_t done = 0; done < bytes; done += sizeof buffer)
        check(write(file, buffer, sizeof buffer) == sizeof buffer, "write");
}

static int file_in(const char *place, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", place, name);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    check(file >= 0, path);
    return file;
}

static int file(const char *name) { return file_in(directory, name); }

/* Returns anonymous memory in which half of each page can be compressed. */
static char *anonymous(size_t bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    unsigned random = 1;
    for (size_t at = 0; at < bytes; at += 4)
        *(unsigned *)(memory + at) = at & 2048 ? 7 : (random = random * 1664525 + 1013904223);
    return memory;
}

static void anon(void) { anonymous(64 * MIB); }

static void tmpfs(void) {
    int written = file_in(shared, "situation");
    fill(written, 64 * MIB);
    close(written);
}

static void deleted(void) {
    char path[512];
    fill(file_in(shared, "situation"), 64 * MIB);
    snprintf(path, sizeof path, "%s/situation", shared);
    unlink(path);
}

static void dentries(void) {
    char path[512];
    for (int number = 0; number < 8000; number++) {
        snprintf(path, sizeof path, "situation-%d", number);
        close(file(path));
    }
}

static void unix_sockets(int pairs) {
    for (int pair = 0; pair < pairs; pair++) {
        int ends[2];
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        while (write(ends[0], buffer, sizeof buffer) > 0) {}
    }
}

static void local(void) { unix_sockets(100); }

static void tcp(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (void *)&address, length) == 0 && listen(listener, 64) == 0, "listen");
    getsockname(listener, (void *)&address, &length);
    for (int pair = 0; pair < 20; pair++) {
        int writer = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(writer, (void *)&address, length) == 0, "connect");
        check(accept(listener, NULL, NULL) >= 0, "accept");
        fcntl(writer, F_SETFL, O_NONBLOCK);
        for (int turn = 0; turn < 20; turn++) {
            while (write(writer, buffer, sizeof buffer) > 0) {}
            usleep(1000);
        }
    }
}

static void tables(void) {
    size_t bytes = 32UL << 30;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < bytes; at += 2 * MIB)
        memory[at] = 1;
}

static void written_log(void) { fill(file("situation"), 48 * MIB); }

static void closed_log(void) {
    int written = file("situation");
    fill(written, 48 * MIB);
    fsync(written);
    close(written);
}

static void *waiting(void *unused) { return pause(), unused; }

static void threads(int count) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    for (pthread_t thread; count > 0; count--)
        check(pthread_create(&thread, &attributes, waiting, NULL) == 0, "pthread_create");
}

static void many_threads(void) { threads(400); }

static void workers(void) {
    char *memory = anonymous(64 * MIB);
    for (int worker = 0; worker < 4; worker++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            memset(memory + worker * MIB, 2, MIB);
            pause();
        }
    }
    usleep(500000);
}

static void pipes(int count) {
    for (; count > 0; count--) {
        int ends[2];
        check(pipe(ends) == 0, "pipe");
        fcntl(ends[1], F_SETPIPE_SZ, MIB);
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
        while (write(ends[1], buffer, sizeof buffer) > 0) {}
    }
}

static void mixed(void) {
    anonymous(32 * MIB);
    tmpfs();
    fill(file("log"), 16 * MIB);
    threads(100);
    pipes(8);
    unix_sockets(20);
}

/* 48 of 64 MiB in swap. */
static void swap(void) {
    check(madvise(anonymous(64 * MIB), 48 * MIB, MADV_PAGEOUT) == 0, "madvise");
}

static const struct {
    const char *name;
    void (*make)(void);
} SITUATIONS[] = {
    {"anon", anon}, {"tmpfs", tmpfs}, {"deleted", deleted}, {"dentries", dentries}, {"unix", local}, {"tcp", tcp},
    {"tables", tables}, {"log", written_log}, {"log-closed", closed_log}, {"threads", many_threads}, {"workers", workers},
    {"mixed", mixed}, {"swap", swap},
};

int main(int count, char **words) {
    if (count > 2 && strcmp(words[1], "namespace") == 0) {
        check(unshare(CLONE_NEWCGROUP) == 0, "unshare");
        execvp(words[2], words + 2);
        check(0, words[2]);
    }
    struct rlimit files = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &files);
    if (count > 2)
        directory = words[2];
    for (size_t index = 0; index < sizeof SITUATIONS / sizeof *SITUATIONS; index++) {
        if (count > 1 && strcmp(words[1], SITUATIONS[index].name) == 0) {
            SITUATIONS[index].make();
            puts("ready");
            fflush(stdout);
            for (;;)
                pause();
        }
    }
    fprintf(stderr, "usage: situations NAME [DIRECTORY]\n");
    return 2;
}
