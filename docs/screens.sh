#!/bin/sh
# Draws the output of lowtide in README.md and in these pages, from real runs on real programs.
#   sh docs/screens.sh [NAME…]      inspect, release, run, leaks, study; needs root, pyte (pip), a release build
set -eu
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
server=
finish() {
    if [ -n "$server" ]; then kill "$server" 2>"$work/kill.txt" || true; fi
    rm -rf "$work"
}
trap finish EXIT
cc -O2 -pthread -o "$work/server" subjects/hoard/hoard.c
cp target/release/lowtide "$work/lowtide"
cat >"$work/leaky.cpp" <<'END'
// A server that forgets one of ten sessions.
#include <chrono>
#include <string>
#include <thread>
struct Session {
    std::string user;
    char state[48];
    explicit Session(std::string name) : user(std::move(name)), state{} {}
    virtual ~Session() = default;
};
__attribute__((noinline)) Session *open_session(int number) { return new Session("user " + std::to_string(number)); }
int main() {
    for (int number = 0;; number++) {
        Session *session = open_session(number);
        if (number % 10) delete session;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}
END
c++ -O1 -g -o "$work/leaky" "$work/leaky.cpp"
cd "$work"
export PATH="$work:$PATH"

# Starts the server with these options, and waits until its load is over.
start() {
    ./server "$@" >server.log 2>&1 &
    server=$!
    until grep -q ^drained server.log; do sleep 0.2; done
}

stop() {
    kill "$server"
    wait "$server" 2>"$work/wait.txt" || true
    server=
}

# Draws a command and its output: draw NAME COLUMNS LINES SECONDS COMMAND
draw() {
    name=$1 columns=$2 lines=$3 seconds=$4
    shift 4
    python3 "$root/docs/terminal.py" "$root/docs/$name.svg" "$columns" "$lines" "$seconds" -- \
        sh -c 'printf "\033[1m\$ %s\033[0m\n" "$1"; eval "$1"' sh "$*"
}

for picture in ${*:-inspect release run leaks study}; do
    case $picture in
    inspect) start && draw inspect 100 40 20 "lowtide inspect $server" && stop ;;
    release) start && draw release 100 30 20 "lowtide release $server" && stop ;;
    run) draw run 100 24 25 "lowtide run -- ./server hold=12" ;;
    leaks)
        ./leaky & server=$!
        draw leaks 100 45 200 "lowtide leaks $server --duration 2m"
        stop
        ;;
    study) draw study 100 60 240 "lowtide study -a glibc,jemalloc,mimalloc --repeat 1 -o record -- ./server turns=1 hold=5" ;;
    *) echo "there is no picture $picture" >&2 && exit 2 ;;
    esac
done
