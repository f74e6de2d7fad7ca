#!/bin/sh
# The study node-tls: 1,000 connections on eleven versions of node, and 10,000 on the two newest.
#   cargo build && bench/2026-11-22-node-tls/run.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
lowtide=${LOWTIDE:-$root/target/debug/lowtide}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME="$work/cache"
run() { # NAME ARGUMENT…
    name=$1; shift
    "$lowtide" study "$root/studies/node-tls.toml" --timeout 30m -o "$work/$name" "$@" > /dev/null 2>&1
    rm -f "$work/$name/report.html"
    find "$work/$name" -type f -empty -delete
    (cd "$work" && COLUMNS=150 NO_COLOR=1 "$lowtide" report "$name") > "$here/summary-$name.txt"
    # Where it lay on this machine is nobody's business.
    find "$work/$name" "$here/summary-$name.txt" -type f -exec sed -i "s|$root|.|g; s|$HOME|~|g; s|$work|.|g" {} +
    tar -C "$work" -czf "$here/record-$name.tar.gz" "$name"
}
for part in ${PARTS:-1000 3000 10000 10000-node26 10000-collected}; do
    case $part in
    1000) run 1000 ;;
    3000) run 3000 --set connections=3000 --set versions= \
        --only 'glibc/node-24.21.0,glibc/node-24.21.0 + release,glibc/node-24.21.0 + release after a collection' ;;
    10000) run 10000 --set connections=10000 --rounds 2 --set versions= \
        --only 'glibc/node-24.21.0,glibc/node-24.21.0 + release' ;;
    10000-node26) run 10000-node26 --set connections=10000 --rounds 2 --set versions= --set node=26.10.0 \
        --only glibc/node-26.10.0 ;;
    10000-collected) run 10000-collected --set connections=10000 --rounds 2 --set versions= \
        --only 'glibc/node-24.21.0 + release after a collection' ;;
    esac
done
