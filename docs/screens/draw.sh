#!/bin/sh
# Draws the screens of README.md: the output of real commands on small programs.
#
# Usage: docs/screens/draw.sh [SCREEN…]      from the repository; SCREEN: inspect release attach leaks study
#
# Needs root, a C and a C++ compiler, pyte (pip), and `cargo build --release`. Takes about seven minutes.
# Nothing else should use the processors: the screens have pauses and times.
set -eu
cd "$(dirname "$0")/../.."
here=$PWD/docs/screens
PATH=$PWD/target/release:$PATH
export PATH
work=$(mktemp -d)
programs=
finish() {
    for program in $programs; do kill "$program" 2> "$work/kill.txt" || true; done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM

cc -O2 -pthread -o "$work/server" subjects/hoard/hoard.c
c++ -O1 -g -pthread -o "$work/sessions" docs/screens/sessions.cc
cd "$work"

# draw SCREEN COLUMNS LINES SECONDS COMMAND…: the command with a prompt, and its output.
draw() {
    screen=$1 columns=$2 lines=$3 seconds=$4
    shift 4
    python3 "$here/../terminal.py" "$here/$screen.svg" "$columns" "$lines" "$seconds" -- \
        sh -c 'printf "\033[1m$ %s\033[0m\n" "$*"; exec "$@"' sh "$@"
}

# Starts the server, and waits until its burst is over.
start_server() {
    ./server > server.txt 2>&1 &
    server=$!
    programs="$programs $server"
    until grep -q '^drained' server.txt; do kill -0 "$server"; sleep 0.2; done
}

for screen in ${*:-inspect release attach leaks study}; do
    case $screen in
    inspect) start_server && draw inspect 100 40 20 lowtide inspect "$server" ;;
    release) start_server && draw release 100 40 20 lowtide release "$server" ;;
    attach)
        ./server > server.txt 2>&1 &
        programs="$programs $!"
        draw attach 116 40 45 lowtide attach $!
        ;;
    leaks)
        ./sessions &
        programs="$programs $!"
        draw leaks 100 60 90 lowtide leaks $! --duration 1m
        ;;
    study) # only the end of its output: the chart and the recommendation
        draw study 100 27 400 lowtide study -a glibc,mimalloc -p none,adaptive --repeat 3 -- ./server hold=10
        ;;
    *) echo "draw.sh: there is no screen $screen" >&2 && exit 2 ;;
    esac
done
