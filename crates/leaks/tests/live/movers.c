// Programs that move their pointers constantly, each by its name. The blocks that they keep are never freed, but what leads to them changes all
// the time. Each also loses some lists at first. Prints "lost ADDRESS" or "kept ADDRESS" for each block, then "ready", and continues to move until
// its standard input ends.
//
//   movers NAME
//
// Without arguments, it prints the names.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOST = 1200, KEPT = 4000, FILL = 60000, BALLAST = 20000 };

// The addresses, inverted: no tool takes them for pointers.
static struct { uintptr_t at; int is_lost; } truth[LOST + 2 * KEPT];
static size_t known;
static uint64_t state = 88172645463325252ull;

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}
static uint64_t random_below(uint64_t bound) { return next_random(&state) % bound; }

struct node { struct node *next, *value; uint64_t number; char rest[40]; };

// Blocks differ in their content, and do not begin like a block in a cache of the allocator.
static void *block(size_t bytes, int is_lost) {
    struct node *made = memset(malloc(bytes), 0x5a, bytes);
    made->next = made->value = 0, made->number = known;
    truth[known].at = ~(uintptr_t)made, truth[known++].is_lost = is_lost;
    return made;
}
static struct node *kept(void) {
    struct node *made = block(sizeof *made, 0);
    if (known < LOST + KEPT) made->value = block(96, 0);
    return made;
}

static __attribute__((noinline)) void lose(void) {
    struct node *head = 0;
    for (int i = 0; i < LOST; i++) {
        struct node *made = block(sizeof *made, 1);
        made->next = i % 2 ? head : 0;
        if (head && i % 2) head->next = made;
        head = made;
    }
}
static __attribute__((noinline)) void scrub(void) {
    volatile char old[48 << 10];
    for (size_t i = 0; i < sizeof old; i++) old[i] = 0;
}

// --- Tables ---

// Like redis: entries move from one table of chains to another, a bucket at a time.
static struct node **tables[2];
static size_t sizes[2];

static void insert(int which, struct node *entry) {
    struct node **bucket = &tables[which][entry->number * 0x9e3779b97f4a7c15u % sizes[which]];
    entry->next = *bucket;
    *bucket = entry;
}
static void fill(size_t size) {
    tables[0] = calloc(sizes[0] = size, sizeof *tables[0]);
    for (int i = 0; i < KEPT; i++) insert(0, kept());
}
static void rehash(void) {
    sizes[1] = sizes[0] == 2048 ? 4096 : 2048;
    tables[1] = calloc(sizes[1], sizeof *tables[1]);
    for (size_t i = 0; i < sizes[0]; i++) {
        for (struct node *entry = tables[0][i], *next; entry; entry = next) next = entry->next, insert(1, entry);
        tables[0][i] = 0;
    }
    free(tables[0]);
    tables[0] = tables[1], sizes[0] = sizes[1], tables[1] = 0;
}
static void fill_table(void) { fill(2048); }

// Like a cache that is full: new entries come before others in their chain, and those of others are freed.
static struct node *young[FILL];
static size_t oldest;
static void fill_cache(void) { fill(2048); }
static void evict(void) {
    for (int i = 0; i < 2000; i++) {
        struct node **slot = &young[oldest++ % FILL];
        if (*slot) {
            struct node **from = &tables[0][(*slot)->number * 0x9e3779b97f4a7c15u % sizes[0]];
            while (*from != *slot) from = &(*from)->next;
            *from = (*slot)->next;
            free((*slot)->value), free(*slot);
        }
        *slot = memset(malloc(sizeof **slot), 1, sizeof **slot);
        (*slot)->value = memset(malloc(64 + random_below(64)), 1, 64);
        (*slot)->number = next_random(&state);
        insert(0, *slot);
    }
}

// Like RCU: a copy of an array, with a change, replaces it. Others take the freed memory.
static void **volatile array;
static void fill_array(void) {
    array = malloc(KEPT * sizeof *array);
    for (int i = 0; i < KEPT; i++) array[i] = kept();
}
static void copy_and_swap(void) {
    void **copy = malloc(KEPT * sizeof *copy), **old = array;
    memcpy(copy, old, KEPT * sizeof *copy);
    size_t one = random_below(KEPT), two = random_below(KEPT);
    void *moved = copy[one];
    copy[one] = copy[two], copy[two] = moved;
    array = copy;
    memset(old, 1, KEPT * sizeof *old);
    free(old);
    void *other = malloc(random_below(64 << 10));
    free(*(void **)&young[0]);
    young[0] = other;
}

// A vector that realloc makes longer and shorter.
static void reallocate(void) {
    void **now = array;
    size_t spare = random_below(4 * KEPT);
    array = realloc(now, (KEPT + spare) * sizeof *now);
    for (int i = 0; i < 64; i++) free(young[i]), young[i] = malloc(1000 + random_below(30000));
}

// --- Lists ---

// Like an LRU list: entries from anywhere become the first.
static struct node *volatile head;
static void fill_list(void) {
    for (int i = 0; i < KEPT; i++) {
        struct node *made = kept();
        made->next = head;
        head = made;
    }
}
static void move_to_front(void) {
    struct node *before = head;
    for (uint64_t steps = random_below(KEPT - 2); steps > 0; steps--) before = before->next;
    struct node *moved = before->next;
    if (moved == 0) return;
    before->next = moved->next;
    moved->next = head;
    head = moved;
}

// Swaps blocks between slots of blocks.
static struct node *chunks[40];
static void fill_chunks(void) {
    for (int i = 0; i < 40; i++) {
        chunks[i] = calloc(100, sizeof(void *));
        for (int j = 0; j < 100; j++) ((void **)chunks[i])[j] = kept();
    }
}
static void shuffle(void) {
    for (int i = 0; i < 1000; i++) {
        void **one = (void **)chunks[random_below(40)] + random_below(100), **two = (void **)chunks[random_below(40)] + random_below(100);
        void *moved = *one;
        *one = *two, *two = moved;
    }
}

// A tree whose nodes turn: a node from anywhere becomes the root (splay).
static struct node *splay(struct node *at, uint64_t number) {
    struct node side = {0}, *left = &side, *right = &side;
    for (;;) {
        struct node **to = number < at->number ? &at->next : &at->value;
        if (number == at->number || *to == 0) break;
        if (to == &at->next) {
            struct node *turned = at->next;
            if (number < turned->number) {
                at->next = turned->value, turned->value = at, at = turned;
                if (at->next == 0) break;
            }
            right->next = at, right = at, at = at->next;
        } else {
            struct node *turned = at->value;
            if (number > turned->number) {
                at->value = turned->next, turned->next = at, at = turned;
                if (at->value == 0) break;
            }
            left->value = at, left = at, at = at->value;
        }
    }
    left->value = at->next, right->next = at->value;
    at->next = side.value, at->value = side.next;
    return at;
}
static void fill_tree(void) {
    for (int i = 0; i < KEPT; i++) {
        struct node *made = block(sizeof *made, 0);
        made->number = i * 7919u % KEPT;
        if (head == 0) {
            head = made;
            continue;
        }
        struct node *root = splay(head, made->number);
        if (root->number == made->number) exit(3);
        if (made->number < root->number) made->next = root->next, made->value = root, root->next = 0;
        else made->value = root->value, made->next = root, root->value = 0;
        head = made;
    }
}
static void turn(void) { for (int i = 0; i < 100; i++) head = splay(head, random_below(KEPT)); }

// --- Threads ---

// Queues between threads: each takes from one, and appends to the next.
enum { QUEUES = 3, ROOM = 2 * KEPT };
static struct queue { pthread_mutex_t lock; size_t first, count; struct node **room; } queues[QUEUES];

static struct node *take(struct queue *from) {
    struct node *taken = 0;
    pthread_mutex_lock(&from->lock);
    if (from->count) {
        taken = from->room[from->first % ROOM];
        from->room[from->first++ % ROOM] = 0, from->count--;
    }
    pthread_mutex_unlock(&from->lock);
    return taken;
}
static void append(struct queue *to, struct node *one) {
    pthread_mutex_lock(&to->lock);
    to->room[(to->first + to->count++) % ROOM] = one;
    pthread_mutex_unlock(&to->lock);
}
static void hand_over(size_t from) {
    for (int i = 0; i < 100; i++) {
        struct node *one = take(&queues[from]);
        if (one) append(&queues[(from + 1) % QUEUES], one);
    }
}
static void *hand_over_forever(void *from) { for (;;) hand_over((size_t)from), usleep(50); return 0; }
static void fill_queues(void) {
    for (int i = 0; i < QUEUES; i++) pthread_mutex_init(&queues[i].lock, 0), queues[i].room = calloc(ROOM, sizeof(void *));
    for (int i = 0; i < KEPT; i++) append(&queues[i % QUEUES], kept());
    for (size_t i = 1; i < QUEUES; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, hand_over_forever, (void *)i)) exit(4);
    }
}
static void hand_over_first(void) { hand_over(0); }

// Blocks that only epoll instances know, and that move between them.
enum { EVENTS = 64 };
static int polls[2], events[EVENTS];
static void fill_epoll(void) {
    for (int i = 0; i < 2; i++) polls[i] = epoll_create1(0);
    for (int i = 0; i < EVENTS; i++) {
        events[i] = eventfd(1, 0);
        struct node *made = kept();
        made->number = i;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = made};
        if (epoll_ctl(polls[0], EPOLL_CTL_ADD, events[i], &event)) exit(4);
    }
}
static void move_event(void) {
    int from = random_below(2);
    struct epoll_event event;
    if (epoll_wait(polls[from], &event, 1, 0) < 1) return;
    int file = events[((struct node *)event.data.ptr)->number];
    event.events = EPOLLIN;
    epoll_ctl(polls[1 - from], EPOLL_CTL_ADD, file, &event);
    epoll_ctl(polls[from], EPOLL_CTL_DEL, file, &event);
    memset(&event, 0, sizeof event);
}

static const struct { const char *name; void (*fill)(void), (*move)(void); } programs[] = {
    {"rehash", fill_table, rehash}, {"evict", fill_cache, evict}, {"copy_and_swap", fill_array, copy_and_swap},
    {"reallocate", fill_array, reallocate}, {"move_to_front", fill_list, move_to_front}, {"shuffle", fill_chunks, shuffle},
    {"turn", fill_tree, turn}, {"hand_over", fill_queues, hand_over_first}, {"in_epoll", fill_epoll, move_event},
};

static void *watch_input(void *unused) {
    char ignored;
    while (read(0, &ignored, 1) > 0) {}
    exit(0);
    return unused;
}

// Other blocks: the more there are, the longer a search takes.
static void *ballast[BALLAST];
static void fill_ballast(void) {
    for (int i = 0; i < BALLAST; i++) ballast[i] = memset(malloc(100 + random_below(100)), 1, 100);
}

int main(int count, char **words) {
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        if (count < 2) puts(programs[i].name);
        else if (strcmp(words[1], programs[i].name) == 0) {
            static char buffer[1 << 16];
            setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
            lose();
            scrub();
            fill_ballast();
            programs[i].fill();
            scrub();
            for (size_t j = 0; j < known; j++) printf("%s %lx\n", truth[j].is_lost ? "lost" : "kept", (unsigned long)~truth[j].at);
            puts("ready");
            fflush(stdout);
            pthread_t input;
            if (pthread_create(&input, 0, watch_input, 0)) exit(4);
            for (;;) programs[i].move();
        }
    }
    return count < 2 ? 0 : 2;
}
