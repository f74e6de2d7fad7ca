// A load that keeps its memory busy: every 2 s, three threads allocate, write and free 200 MiB in blocks of 16 B to 8 KiB.
// Prints the seconds that each wave took.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

// A block behind the others keeps their pages from going back by themselves.
static char *pins[3];

static void work(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<char *> blocks;
    for (size_t bytes = 0; bytes < (size_t)67 << 20;) {
        size_t size = 16 + random() % 8177;
        char *block = (char *)std::malloc(size);
        std::memset(block, 1, size);
        blocks.push_back(block);
        bytes += size;
    }
    char *before = pins[seed % 3];
    pins[seed % 3] = (char *)std::malloc(64);
    for (char *block : blocks) std::free(block);
    std::free(before);
}

int main() {
    using clock = std::chrono::steady_clock;
    auto next = clock::now();
    for (unsigned wave = 0;; wave++) {
        auto begin = clock::now();
        std::vector<std::thread> threads;
        for (unsigned thread = 0; thread < 3; thread++) threads.emplace_back(work, wave * 3 + thread);
        for (auto &thread : threads) thread.join();
        std::printf("%.6f\n", std::chrono::duration<double>(clock::now() - begin).count());
        std::fflush(stdout);
        next += std::chrono::seconds(2);
        std::this_thread::sleep_until(next);
    }
}
