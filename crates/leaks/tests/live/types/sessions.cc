// Loses sessions, keeps strings in a map and every third pool in a vector. Answers each line of its standard input with the
// steps of its work and the seconds since it started.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

struct Base {
    virtual ~Base() {}
    virtual long number() const { return 0; }
};

struct Session : Base {
    long fields[6];
    std::string name;
    explicit Session(long i) : name("the name of session number " + std::to_string(i)) {
        for (long &field : fields) field = i;
    }
    long number() const override { return fields[0]; }
};

template <class T> struct Pool : Base {
    T value;
    long fields[20];
    explicit Pool(T first) : value(first), fields() {}
};

std::map<long, std::string> registry;
std::vector<Base *> pools;
static Base *volatile current;
static std::atomic<long> steps;

static void work() {
    for (long i = 0;; i++, steps++) {
        current = new Session(i);
        registry[i] = "an entry that is too long for the string itself " + std::to_string(i);
        Base *pool = new Pool<double>(i);
        if (i % 3) delete pool;
        else pools.push_back(pool);
        current = nullptr;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

int main() {
    auto start = std::chrono::steady_clock::now();
    std::thread(work).detach();
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        printf("{\"steps\": %ld, \"seconds\": %f}\n", steps.load(), seconds.count());
        fflush(stdout);
    }
    return 0;
}
