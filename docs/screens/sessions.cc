// A program that forgets every session: the subject of the screen `leaks`.
#include <chrono>
#include <string>
#include <thread>

struct Session {
    std::string user;
    long fields[6];
    explicit Session(long number) : user("user number " + std::to_string(number)), fields() {}
    virtual ~Session() {}
};

static Session *volatile current;

static void serve() {
    for (long number = 0;; number++) {
        current = new Session(number);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

int main() {
    std::thread(serve).join();
}
