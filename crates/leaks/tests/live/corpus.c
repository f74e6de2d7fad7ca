// Small programs, each by its name, whose blocks are lost or kept in many ways. Each prints a line for each of its blocks, with what is true of it:
// "lost ADDRESS" or "kept ADDRESS". Then it prints "ready", waits until its standard input ends, and exits.
//
//   corpus NAME [LIBRARY]
//
// LIBRARY is this file, compiled with -shared -DLIBRARY. Without arguments, it prints the names.
#define _GNU_SOURCE
#ifdef LIBRARY
#include <stdlib.h>
static void *held[128];
void hold(int place, void *block) { held[place] = block; }
#else
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { MANY = 128 };

// The addresses, inverted: no tool takes them for pointers.
static struct { uintptr_t at; int is_lost; } truth[MANY * 16];
static size_t known;
static char buffer[1 << 16];
static const char *library;

static void *note(void *block, int is_lost) {
    truth[known].at = ~(uintptr_t)block;
    truth[known++].is_lost = is_lost;
    return block;
}
static void *of_size(size_t bytes, int is_lost) { return note(memset(malloc(bytes), 0, bytes), is_lost); }
static void *lost(void) { return of_size(72, 1); }
static void *kept(void) { return of_size(72, 0); }

// Overwrites what calls left on the stack.
static __attribute__((noinline)) void scrub(void) {
    volatile char old[48 << 10];
    for (size_t i = 0; i < sizeof old; i++) old[i] = 0;
}

static __attribute__((noinline)) void print_truth(void) {
    for (size_t i = 0; i < known; i++) printf("%s %lx\n", truth[i].is_lost ? "lost" : "kept", (unsigned long)~truth[i].at);
    puts("ready");
    fflush(stdout);
}

// Ends the program, with the frames of its callers still in place.
static __attribute__((noreturn, noinline)) void finish(void) {
    scrub();
    print_truth();
    scrub();
    char ignored;
    while (read(0, &ignored, 1) > 0) {}
    exit(0);
}

struct node { struct node *next, *previous, *up; long number; char rest[40]; };
struct hook { struct hook *next, *previous; };
struct entry { char name[24]; struct hook hook; char rest[32]; };

static void *volatile slots[MANY * 8];
static void *volatile slot;
static uintptr_t hidden[MANY * 8];
static __thread void *volatile own_slots[MANY];

// --- Lost ---

static void single(void) { for (int i = 0; i < MANY; i++) lost(); }
static void overwritten(void) { for (int i = 0; i < MANY; i++) slot = lost(); slot = 0; }
static void to_itself(void) { for (int i = 0; i < MANY; i++) { struct node *one = lost(); one->next = one; } }

static void ring(int length) {
    for (int i = 0; i < MANY; i++) {
        struct node *first = lost(), *last = first;
        for (int j = 1; j < length; j++) last = last->next = lost();
        last->next = first;
    }
}
static void cycle_of_two(void) { ring(2); }
static void cycle_of_three(void) { ring(3); }

static struct node *a_list(int is_double, void *(*make)(void)) {
    struct node *head = 0;
    for (int j = 0; j < 5; j++) {
        struct node *node = make();
        node->next = head;
        if (is_double && head) head->previous = node;
        head = node;
    }
    return head;
}
static void lost_list(void) { for (int i = 0; i < MANY; i++) a_list(0, lost); }
static void lost_double_list(void) { for (int i = 0; i < MANY; i++) a_list(1, lost); }

static struct node *a_tree(int depth, struct node *up, void *(*make)(void)) {
    if (depth == 0) return 0;
    struct node *node = make();
    node->up = up;
    node->next = a_tree(depth - 1, node, make), node->previous = a_tree(depth - 1, node, make);
    return node;
}
static void lost_tree(void) { for (int i = 0; i < MANY; i++) a_tree(3, 0, lost); }

static void lost_intrusive(void) {
    for (int i = 0; i < MANY; i++) {
        struct entry *one = lost(), *two = lost();
        one->hook.next = one->hook.previous = &two->hook;
        two->hook.next = two->hook.previous = &one->hook;
    }
}

// An array leads to its items.
static void lost_array(void) {
    for (int i = 0; i < MANY; i++) {
        void **items = of_size(5 * sizeof *items, 1);
        for (int j = 0; j < 5; j++) items[j] = lost();
    }
}

static void lost_after_realloc(void) {
    for (int i = 0; i < MANY; i++) {
        char *block = malloc(24);
        block = realloc(block, 200);
        note(memset(block, 0, 200), 1);
    }
}

static void lost_aligned(void) {
    for (int i = 0; i < MANY; i++) {
        void *block;
        switch (i % 4) {
        case 0: block = aligned_alloc(64, 128); break;
        case 1: if (posix_memalign(&block, 256, 72)) exit(4); break;
        case 2: block = memalign(4096, 72); break;
        default: block = calloc(9, 8);
        }
        note(block, 1);
        block = 0;
    }
}

static void lost_large(void) { for (int i = 0; i < MANY; i++) { char *block = note(malloc(200 << 10), 1); block[0] = 1; } }

// Only a block that was freed leads to them.
static void in_freed_block(void) {
    for (int i = 0; i < MANY; i++) slots[i] = malloc(120);
    for (int i = 0; i < MANY; i++) for (int j = 4; j < 10; j++) ((void **)slots[i])[j] = slot = lost();
    for (int i = 0; i < MANY; i++) free(slots[i]), slots[i] = 0;
    slot = 0;
}

// Lists beside free memory, whose links lead to the ends of their blocks.
static void beside_free(void) {
    enum { COUNT = MANY * 4 };
    for (int i = 0; i < MANY; i++) {
        struct node *list = 0;
        for (int j = 0; j < 4; j++) {
            struct node *node = of_size(1100, 1);
            slots[i * 4 + j] = malloc(1100 + 16 * (unsigned)((i + j) % 40));
            node->next = list;
            if (list) list->previous = node;
            list = node;
        }
    }
    for (int i = 0; i < COUNT; i += 1 + i % 3) free(slots[i]), slots[i] = 0;
    // Blocks that begin in memory that was free, and of which the program writes only a part.
    for (int i = 0; i < COUNT; i++) if (!slots[i] && i % 2) slots[i] = memset(malloc(600), 1, 100);
}

static __attribute__((noinline)) void leave_below(void) {
    void *volatile local[MANY];
    for (int i = 0; i < MANY; i++) local[i] = lost();
}
static void *leave_below_and_wait(void *ready) {
    leave_below();
    pthread_barrier_wait(ready);
    while (ready) pause();
    return ready;
}
static void with_thread(void *(*run)(void *)) {
    static pthread_barrier_t ready;
    pthread_t thread;
    pthread_barrier_init(&ready, 0, 2);
    if (pthread_create(&thread, 0, run, &ready)) exit(4);
    pthread_barrier_wait(&ready);
}
// Only variables of a call that has returned led to them, on the stack of a thread that waits.
static void below_stack(void) { with_thread(leave_below_and_wait); }

static void *leave_in_thread(void *unused) {
    void *volatile local[MANY / 8];
    for (int i = 0; i < MANY / 8; i++) local[i] = own_slots[i] = lost();
    return local[0] ? unused : 0;
}
// Only variables of threads that have ended led to them.
static void in_ended_thread(void) {
    for (int i = 0; i < 8; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, leave_in_thread, 0) || pthread_join(thread, 0)) exit(4);
    }
}

// The arenas of several threads, which wait.
static void *lose_and_wait(void *ready) {
    for (int i = 0; i < MANY; i++) { struct node *one = lost(), *two = lost(); one->next = two, two->next = one; }
    scrub();
    pthread_barrier_wait(ready);
    for (;;) pause();
    return ready;
}
static void in_thread_arenas(void) {
    for (int i = 0; i < 3; i++) {
        static pthread_barrier_t ready;
        pthread_t thread;
        pthread_barrier_init(&ready, 0, 2);
        if (pthread_create(&thread, 0, lose_and_wait, &ready)) exit(4);
        pthread_barrier_wait(&ready);
    }
}

static void in_unmapped(void) {
    void *volatile *held = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < MANY; i++) held[i] = lost();
    munmap((void *)held, 4096);
}

static void *open_library(void) {
    void *handle = library ? dlopen(library, RTLD_NOW) : 0;
    if (!handle) exit(4);
    return handle;
}
static void in_closed_library(void) {
    void *handle = open_library();
    void (*hold)(int, void *) = (void (*)(int, void *))dlsym(handle, "hold");
    for (int i = 0; i < MANY; i++) hold(i, lost());
    dlclose(handle);
}

// --- Kept ---

static void global(void) { for (int i = 0; i < MANY; i++) slots[i] = kept(); }
static void tagged_low(void) { for (int i = 0; i < MANY; i++) slots[i] = (char *)kept() + 1 + i % 7; }
static void tagged_high(void) { for (int i = 0; i < MANY; i++) slots[i] = (void *)((uintptr_t)kept() | (uintptr_t)(i + 1) << 48); }
static void interior(void) { for (int i = 0; i < MANY; i++) slots[i] = (char *)kept() + 24; }
// The address after the last byte: the header of the next chunk, if the size is a multiple of 16.
static void one_past(void) { for (int i = 0; i < MANY; i++) slots[i] = (char *)of_size(64, 0) + 64; }
static void last_word(void) { for (int i = 0; i < MANY; i++) slots[i] = (char *)kept() + 64; }

// Two such addresses after a number, in a block: they look like links of a free chunk.
static void one_past_in_blocks(void) {
    struct { long number[3]; char *end, *other; long rest[4]; } *owner;
    for (int i = 0; i < MANY; i++) {
        owner = slots[i] = kept();
        owner->number[2] = 0x1f1;
        owner->end = (char *)of_size(64, 0) + 64, owner->other = (char *)of_size(64, 0) + 64;
    }
}
// The same in the first words of blocks. What these lead to leads to further blocks.
static void one_past_at_start(void) {
    for (int i = 0; i < MANY; i++) {
        char **owner = slots[i] = kept();
        for (int j = 0; j < 2; j++) {
            void **array = of_size(64, 0);
            array[0] = kept();
            owner[j] = (char *)array + 64;
        }
    }
}
// Numbers like sizes, before pointers to the heads and tails of lists.
static void capacity_and_ends(void) {
    for (int i = 0; i < MANY; i++) {
        struct { long rest[2], capacity; struct node *head, *tail; } *queue = slots[i] = of_size(72, 0);
        struct node *node = queue->tail = kept();
        node->next = kept();
        queue->capacity = 129, queue->head = node->next->next = kept();
    }
}

static void kept_list(void) { for (int i = 0; i < MANY; i++) slots[i] = a_list(0, kept); }
static void kept_double_list(void) { for (int i = 0; i < MANY; i++) slots[i] = a_list(1, kept); }
static void kept_tree(void) { for (int i = 0; i < MANY; i++) slots[i] = a_tree(3, 0, kept); }

static struct hook ends[MANY];
static void kept_intrusive(void) {
    for (int i = 0; i < MANY; i++) {
        struct entry *one = kept(), *two = kept();
        ends[i].next = &one->hook, one->hook.next = &two->hook, two->hook.next = &ends[i];
        ends[i].previous = &two->hook, two->hook.previous = &one->hook, one->hook.previous = &ends[i];
    }
}

static void in_tls(void) { for (int i = 0; i < MANY; i++) own_slots[i] = kept(); }
static void in_thread_key(void) {
    for (int i = 0; i < MANY; i++) {
        pthread_key_t key;
        if (pthread_key_create(&key, 0) || pthread_setspecific(key, kept())) exit(4);
    }
}
static void on_main_stack(void) {
    void *volatile local[MANY];
    for (int i = 0; i < MANY; i++) local[i] = kept();
    if (local[0]) finish();
}

static void *keep_and_wait(void *ready) {
    void *volatile local[MANY];
    for (int i = 0; i < MANY; i++) local[i] = kept(), own_slots[i] = kept();
    pthread_barrier_wait(ready);
    while (local[0]) pause();
    return ready;
}
static void on_thread_stack(void) { with_thread(keep_and_wait); }

// Coroutines that are suspended: only their stacks lead to the blocks.
static ucontext_t back, coroutine[4];
static void coroutine_body(int number) {
    void *volatile local[MANY / 4];
    for (int i = 0; i < MANY / 4; i++) local[i] = kept();
    swapcontext(&coroutine[number], &back);
    exit((int)(uintptr_t)local[0]);
}
static void run_coroutines(void *(*stack)(size_t)) {
    for (int i = 0; i < 4; i++) {
        getcontext(&coroutine[i]);
        coroutine[i].uc_stack.ss_sp = stack(64 << 10), coroutine[i].uc_stack.ss_size = 64 << 10;
        makecontext(&coroutine[i], (void (*)(void))coroutine_body, 1, i);
        swapcontext(&back, &coroutine[i]);
    }
}
static void *mapped(size_t bytes) { return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static void on_mapped_coroutines(void) { run_coroutines(mapped); }
static void on_allocated_coroutines(void) { run_coroutines(malloc); }

static void in_mapped(void) { void *volatile *held = slot = mapped(4096); for (int i = 0; i < MANY; i++) held[i] = kept(); }
static void in_shared(void) {
    void *volatile *held = slot = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < MANY; i++) held[i] = kept();
}
// A heap that the program got from brk itself.
static void in_brk(void) { void *volatile *held = slot = sbrk(4096); for (int i = 0; i < MANY; i++) held[i] = kept(); }
static void in_read_only(void) { in_mapped(); mprotect(slot, 4096, PROT_READ); }

static void in_open_library(void) {
    void *handle = slot = open_library();
    void (*hold)(int, void *) = (void (*)(int, void *))dlsym(handle, "hold");
    for (int i = 0; i < MANY; i++) hold(i, kept());
}

static void in_epoll(void) {
    int instance = epoll_create1(0);
    for (int i = 0; i < MANY; i++) {
        int ends[2];
        if (pipe(ends)) exit(4);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = kept()};
        epoll_ctl(instance, EPOLL_CTL_ADD, ends[0], &event);
    }
}
static void in_timers(void) {
    for (int i = 0; i < MANY; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2, .sigev_value.sival_ptr = kept()};
        timer_t timer;
        if (timer_create(CLOCK_MONOTONIC, &event, &timer)) exit(4);
        hidden[i] = (uintptr_t)timer;
    }
}
static void nothing(int status, void *block) { (void)status, (void)block; }
// Variables of the C library lead to them.
static void in_exit_handlers(void) { for (int i = 0; i < MANY; i++) on_exit(nothing, kept()); }
static void in_environment(void) {
    for (int i = 0; i < MANY; i++) {
        char *text = kept();
        snprintf(text, 72, "CORPUS_%d=1", i);
        putenv(text);
    }
}
static void in_streams(void) {
    for (int i = 0; i < MANY; i++) setvbuf(fopen("/dev/null", "w"), of_size(200, 0), _IOFBF, 200);
}

// Both processes keep them, and lose others.
static void after_fork(void) {
    for (int i = 0; i < MANY; i++) slots[i] = kept(), lost();
    if (fork() == 0) _exit(0);
    wait(0);
    for (int i = 0; i < MANY; i++) lost(), slots[MANY + i] = kept();
}

// Freed blocks of all sizes around blocks that are kept, and others that are lost.
static void after_churn(void) {
    uint64_t state = 88172645463325252ull;
    for (int i = 0; i < 40000; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        size_t place = MANY * 2 + state % (MANY * 6);
        free(slots[place]);
        slots[place] = memset(malloc(20 + state / 7 % 2000), 1, 20);
        if (i % 400 == 0) slots[i / 400] = kept(), lost();
    }
}

// --- Kept, but no tool can see it ---

// Each block has the sum of the addresses of its neighbours.
static void xored(void) {
    uintptr_t before = 0, node = (uintptr_t)kept();
    hidden[0] = ~node;
    for (int i = 1; i < MANY; i++) {
        uintptr_t next = (uintptr_t)kept();
        *(uintptr_t *)node = before ^ next;
        before = node, node = next;
    }
    *(uintptr_t *)node = before;
}
static void compressed(void) {
    char *base = slot = kept();
    for (int i = 1; i < MANY; i++) hidden[i] = (uintptr_t)((char *)kept() - base) / 8;
}
static void in_pipe(void) {
    int ends[2];
    if (pipe(ends)) exit(4);
    for (int i = 0; i < MANY; i++) {
        void *block = kept();
        if (write(ends[1], &block, sizeof block) < 0) exit(4);
    }
}

static const struct { const char *name; void (*make)(void); } programs[] = {
#define PROGRAM(name) {#name, name}
    PROGRAM(single), PROGRAM(overwritten), PROGRAM(to_itself), PROGRAM(cycle_of_two), PROGRAM(cycle_of_three), PROGRAM(lost_list),
    PROGRAM(lost_double_list), PROGRAM(lost_tree), PROGRAM(lost_intrusive), PROGRAM(lost_array), PROGRAM(lost_after_realloc),
    PROGRAM(lost_aligned), PROGRAM(lost_large), PROGRAM(in_freed_block), PROGRAM(beside_free), PROGRAM(below_stack),
    PROGRAM(in_ended_thread),     PROGRAM(in_thread_arenas), PROGRAM(in_unmapped), PROGRAM(in_closed_library), PROGRAM(global), PROGRAM(tagged_low),
    PROGRAM(tagged_high), PROGRAM(interior), PROGRAM(one_past), PROGRAM(last_word), PROGRAM(one_past_in_blocks),
    PROGRAM(one_past_at_start), PROGRAM(capacity_and_ends), PROGRAM(kept_list), PROGRAM(kept_double_list), PROGRAM(kept_tree),
    PROGRAM(kept_intrusive), PROGRAM(in_tls), PROGRAM(in_thread_key), PROGRAM(on_main_stack), PROGRAM(on_thread_stack),
    PROGRAM(on_mapped_coroutines), PROGRAM(on_allocated_coroutines), PROGRAM(in_mapped), PROGRAM(in_shared), PROGRAM(in_brk),
    PROGRAM(in_read_only), PROGRAM(in_open_library), PROGRAM(in_epoll), PROGRAM(in_timers), PROGRAM(in_exit_handlers),
    PROGRAM(in_environment), PROGRAM(in_streams), PROGRAM(after_fork), PROGRAM(after_churn), PROGRAM(xored), PROGRAM(compressed),
    PROGRAM(in_pipe),
};

int main(int count, char **words) {
    size_t all = sizeof programs / sizeof *programs;
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    library = count > 2 ? words[2] : 0;
    for (size_t i = 0; i < all; i++) {
        if (count < 2) puts(programs[i].name);
        else if (strcmp(words[1], programs[i].name) == 0) {
            programs[i].make();
            finish();
        }
    }
    return count < 2 ? 0 : 2;
}
#endif
