// A heap of so many bytes in small blocks: 60 % in chains of a hash table, 20 % in a list of random order, 10 % in a tree, and
// 10 % lost. Prints the number of lost blocks, and waits for its standard input to end.
//
//   heap BYTES
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct node { struct node *left, *right; uint64_t number; char rest[40]; };

static struct node **table, *list, *tree;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

int main(int count, char **words) {
    size_t bytes = count > 1 ? strtoull(words[1], 0, 10) : 1 << 30, blocks = bytes / 112, lost = 0;
    uint64_t state = 88172645463325252ull;
    size_t slots = blocks / 4;
    table = calloc(slots, sizeof *table);
    struct node **order = malloc(blocks / 5 * sizeof *order);
    size_t listed = 0;
    for (size_t i = 0; i < blocks; i++) {
        // Sizes from 64 to 160 bytes, 112 on average with the head.
        struct node *node = malloc(sizeof *node + next(&state) % 7 * 16 - 16 + 8);
        node->left = node->right = 0, node->number = next(&state);
        size_t kind = i % 10;
        if (kind < 6) {
            struct node **slot = &table[node->number % slots];
            node->left = *slot, *slot = node;
        } else if (kind < 8 && listed < blocks / 5) {
            order[listed++] = node;
        } else if (kind == 8) {
            node->left = tree, tree = node;
            if (next(&state) % 2) tree->right = tree->left;
        } else {
            lost++;
        }
    }
    for (size_t i = listed; i > 1; i--) {
        size_t other = next(&state) % i;
        struct node *swapped = order[i - 1];
        order[i - 1] = order[other], order[other] = swapped;
    }
    for (size_t i = 0; i < listed; i++) order[i]->left = list, list = order[i];
    free(order);
    printf("%zu\n", lost);
    fflush(stdout);
    while (getchar() != EOF) {}
    return table[0] == list;
}
