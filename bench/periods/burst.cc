// At each line on stdin, three threads allocate, write and free 200 MiB in blocks of 16 B to 8 KiB, in a second.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

// A block behind the others keeps their pages from going back by themselves.
static char *pins[3];

static void work(unsigned thread, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<char *> blocks;
    for (size_t bytes = 0; bytes < (size_t)67 << 20;) {
        size_t size = 16 + random() % 8177;
        blocks.push_back((char *)std::malloc(size));
        std::memset(blocks.back(), 1, size);
        bytes += size;
    }
    char *before = pins[thread];
    pins[thread] = (char *)std::malloc(64);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    for (char *block : blocks) std::free(block);
    std::free(before);
}

int main() {
    char line[64];
    std::puts("ready");
    std::fflush(stdout);
    for (unsigned burst = 0; std::fgets(line, sizeof line, stdin); burst++) {
        std::vector<std::thread> threads;
        for (unsigned thread = 0; thread < 3; thread++) threads.emplace_back(work, thread, burst * 3 + thread);
        for (auto &thread : threads) thread.join();
        std::puts("done");
        std::fflush(stdout);
    }
}
