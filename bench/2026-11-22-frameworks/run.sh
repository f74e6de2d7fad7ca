#!/bin/sh
# The studies frameworks, uploads, three-servers and containers at their default size: about half an hour on two quiet cores.
#   cargo build && bench/2026-11-22-frameworks/run.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
lowtide=${LOWTIDE:-$root/target/debug/lowtide}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { # NAME STUDY ARGUMENT…
    name=$1 study=$2
    shift 2
    "$lowtide" study "$root/studies/$study.toml" -o "$work/$name" "$@" > /dev/null 2>&1
    rm -f "$work/$name/report.html"
    find "$work/$name" -type f -empty -delete
    (cd "$work" && COLUMNS=200 NO_COLOR=1 "$lowtide" report "$name") > "$here/summary-$name.txt"
    # Where it lay on this machine is nobody's business.
    cache=${XDG_CACHE_HOME:-$HOME/.cache}
    find "$work/$name" "$here/summary-$name.txt" -type f \
        -exec sed -i "s|$root|.|g; s|$cache|~/.cache|g; s|$HOME|~|g; s|$work|.|g" {} +
    tar -C "$work" -czf "$here/record-$name.tar.gz" "$name"
}
run frameworks frameworks
run throughput frameworks --rounds 1 --settle 1s --repeat 6 --set streams=25000 \
    --only glibc/axum,jemalloc/axum,mimalloc2/axum,mimalloc/axum
run uploads uploads
run three-servers three-servers
run containers containers
