// A load that allocates without pause: two threads replace blocks of 16 B to 4 KiB, and hold 64 MiB. 300 MiB were freed
// before, and their pages stay. Prints the operations of each second, and the longest time between two of a thread, in
// microseconds.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;
static std::atomic<unsigned long> operations[2], longest[2];

static void hoard(size_t mib) {
    std::vector<char *> blocks;
    for (size_t at = 0; at < mib << 20; at += 2048) {
        blocks.push_back((char *)std::malloc(2000));
        std::memset(blocks.back(), 1, 2000);
    }
    for (size_t at = 0; at < blocks.size(); at++)
        if (at % 64) std::free(blocks[at]);
}

static void churn(int thread) {
    hoard(150);
    std::vector<char *> blocks(16384);
    unsigned random = thread + 1;
    auto last = Clock::now();
    for (unsigned long count = 1;; count++) {
        random = random * 1103515245 + 12345;
        char *&block = blocks[random / 65536 % blocks.size()];
        std::free(block);
        size_t size = 16 + random / 64 % 4096;
        block = (char *)std::malloc(size);
        std::memset(block, 1, std::min<size_t>(size, 64));
        if (count % 16) continue;
        auto now = Clock::now();
        unsigned long gap = std::chrono::duration_cast<std::chrono::microseconds>(now - last).count();
        last = now;
        operations[thread].fetch_add(16, std::memory_order_relaxed);
        if (gap > longest[thread].load(std::memory_order_relaxed)) longest[thread] = gap;
    }
}

int main() {
    std::thread one(churn, 0), other(churn, 1);
    for (;;) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        unsigned long sum = operations[0].exchange(0) + operations[1].exchange(0);
        std::printf("%lu %lu\n", sum, std::max(longest[0].exchange(0), longest[1].exchange(0)));
        std::fflush(stdout);
    }
}
