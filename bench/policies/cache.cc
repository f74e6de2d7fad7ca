// A cache with worker threads: at each SIGUSR1, four threads fill it with strings and vectors for some seconds, then most
// entries are dropped, and it rests. It checks the sum over all entries that it keeps. The argument is the size that each
// thread adds, in MiB.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

struct Entry {
    std::string name;
    std::vector<unsigned> values;
    unsigned long sum = 0;
};

static std::unordered_map<unsigned long, std::unique_ptr<Entry>> cache[16];
static std::mutex locks[16];
static std::atomic<unsigned long> next_key{0};

static void fill(unsigned seed, size_t bytes) {
    std::mt19937 random(seed);
    while (bytes > 0) {
        auto entry = std::make_unique<Entry>();
        entry->name.assign(16 + random() % 200, 'x');
        entry->values.resize(4 + random() % 4000);
        for (auto &value : entry->values) entry->sum += value = random();
        size_t size = entry->name.size() + 4 * entry->values.size();
        bytes -= size < bytes ? size : bytes;
        unsigned long key = next_key++;
        std::lock_guard guard(locks[key % 16]);
        cache[key % 16][key] = std::move(entry);
    }
}

static void drop_most() {
    for (int shard = 0; shard < 16; shard++) {
        std::lock_guard guard(locks[shard]);
        std::erase_if(cache[shard], [](auto &one) { return one.first % 50 != 0; });
    }
}

static void check() {
    for (auto &shard : cache)
        for (auto &[key, entry] : shard) {
            unsigned long sum = 0;
            for (unsigned value : entry->values) sum += value;
            if (sum != entry->sum) {
                std::puts("corrupt");
                std::abort();
            }
        }
}

int main(int argc, char **argv) {
    size_t mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 150;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::puts("ready");
    std::fflush(stdout);
    for (unsigned round = 0;; round++) {
        int signal = 0;
        sigwait(&signals, &signal);
        if (signal == SIGTERM) break;
        std::vector<std::thread> workers;
        for (unsigned worker = 0; worker < 4; worker++)
            workers.emplace_back(fill, 4 * round + worker, mib << 20);
        for (auto &worker : workers) worker.join();
        drop_most();
        check();
        std::printf("round %u\n", round);
        std::fflush(stdout);
    }
    return 0;
}
