// Objects in a map, strings in a hash map, and a list in random order, held by variables; a vector on the stack holds
// one of eight blocks of a burst.
#include <map>
#include <unordered_map>
#include <vector>
#include <string>
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <random>
#include <unistd.h>
struct Entry {
    virtual ~Entry() {}
    long fields[4];
};
struct Node {
    Node *next;
    char data[56];
};
std::map<long, Entry *> index_by_id;
std::unordered_map<long, std::string> names;
Node *chain;
int main(int words, char **word) {
    if (words < 2) return 2;
    long count = atol(word[1]);
    for (long i = 0; i < count; i++) {
        index_by_id[i * 7919 % 1000003 + i] = new Entry;
        if (i % 3 == 0) names[i] = "a name that is long enough for the heap " + std::to_string(i);
    }
    std::vector<Node *> all;
    for (long i = 0; i < count / 2; i++) all.push_back((Node *)malloc(sizeof(Node)));
    std::shuffle(all.begin(), all.end(), std::mt19937(7));
    for (Node *node : all) {
        node->next = chain;
        chain = node;
    }
    std::vector<Node *>().swap(all);
    std::vector<void *> local;
    for (long i = 0; i < count / 2; i++) local.push_back(malloc(320));
    for (long i = 0; i < count / 2; i++) {
        if (i % 8 == 0) continue;
        free(local[i]);
        local[i] = nullptr;
    }
    puts("ready");
    fflush(stdout);
    alarm(1800);
    pause();
    return local.size() > 1;
}
