#!/bin/sh
# Five policies on four programs, each with three bursts 100 s apart. From the root of the repository, with a release
# build; the records go to the directory that is named. The four studies run side by side: their programs rest most of
# the time.
#   sh bench/policies/run.sh LOWTIDE SERVER NODE DIRECTORY
# SERVER is the built subjects/million-streams.
set -eu
lowtide=$1
server=$2
node=$3
out=$4
here=bench/policies
soak=bench/soak
mkdir -p "$out"
c++ -O2 -std=c++20 -pthread bench/policies/cache.cc -o "$out/cache-program"
study() {
    name=$1
    shift
    [ -e "$out/$name/study.jsonl" ] || "$lowtide" study --repeat 1 -o "$out/$name" -a glibc \
        -p none,periodic=30s,periodic=5m,freed=1GiB,adaptive --rounds 3 --pause 100s --settle 100s "$@" \
        > "$out/$name.out" 2>&1
    "$lowtide" --json report "$out/$name" > "$out/$name.json"
    "$lowtide" report "$out/$name" > "$out/$name.txt"
    "$lowtide" report --force --svg "$out/$name.svg" --chart course "$out/$name"
}
# 4 × 150 MiB of strings and vectors, of which one in 50 is kept.
study cpp --ready log:^ready --load "kill -USR1 \$LOWTIDE_SUBJECT_PID; sleep 5" -- "$out/cache-program" &
# Objects of Python and of V8, with TLS contexts in the latter.
study python --ready tcp:127.0.0.1:19601 --load '"$LOWTIDE" --json load "http://127.0.0.1:19601/burst?seed=1&count=60000" -c 4 -n 8' \
    -- python3 "$soak/server.py" 19601 &
study node --ready tcp:127.0.0.1:19602 --load '"$LOWTIDE" --json load "http://127.0.0.1:19602/burst?seed=1&count=20000" -c 4 -n 16' \
    -- "$node" "$soak/server.js" 19602 &
# 8 × 20,000 requests at once.
study axum --ready tcp:127.0.0.1:19603 \
    --load '"$LOWTIDE" --json load "http://127.0.0.1:19603/?server=axum&expire=3000" --http2 -c 8 -m 20000 --hold 2s' \
    -- "$server" 127.0.0.1:19603 &
wait
python3 "$here/table.py" "$out" > "$out/table.txt"
