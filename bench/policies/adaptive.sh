#!/bin/sh
# What each policy leaves of the memory of four programs, and what it costs. From the root of the repository, with a
# release build, on an idle machine; the records go to the directory that is named.
#   sh bench/policies/adaptive.sh DIRECTORY
set -eu
out=$1
lowtide=target/release/lowtide
here=bench/policies
mkdir -p "$out"
study() {
    name=$1
    shift
    [ -e "$out/$name/study.jsonl" ] || "$lowtide" study --repeat 1 -o "$out/$name" "$@"
    "$lowtide" --json report "$out/$name" > "$out/$name.json"
    "$lowtide" report "$out/$name" > "$out/$name.txt"
}
# The script of document 002: 2000 contexts.
study python studies/python-httpx.toml --set contexts=2000 -a glibc -p none,periodic=30s,adaptive \
    --only 'glibc,glibc + periodic=30s,glibc + adaptive'
# A threaded C++ program that is in no test.
c++ -O2 -std=c++20 -pthread "$here/cache.cc" -o "$out/cache-program"
study cache -a glibc -p none,periodic=30s,freed=1GiB,adaptive --ready log:^ready --load "kill -USR1 \$LOWTIDE_SUBJECT_PID; sleep 20" \
    --rounds 3 --pause 10s --settle 10s -- "$out/cache-program"
# node 24 after two bursts of 10,000 TLS connections.
study node studies/node-tls.toml --set connections=10000 --rounds 2 --timeout 20m --set versions= \
    --only 'glibc/node-24.21.0,glibc/node-24.21.0 + adaptive'
# The server of document 000: 10^6 streams over 8 connections, three rounds.
study streams studies/million-streams.toml --set streams=125000 --set expire=40000 --timeout 20m --rounds 3 -a glibc \
    -p none,adaptive --only 'glibc,glibc + adaptive,glibc + trim after the close'
