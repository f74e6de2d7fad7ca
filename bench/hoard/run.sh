#!/bin/sh
# The study hoard: the threads in four turns.
#   .ci/fetch-glibc bullseye target/glibc-bullseye && .ci/fetch-glibc trixie target/glibc-trixie
#   cargo build && bench/hoard/run.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
lowtide=${LOWTIDE:-$root/target/debug/lowtide}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { # NAME ARGUMENT…
    name=$1; shift
    "$lowtide" study "$root/studies/hoard.toml" --repeat 1 -o "$work/hoard-$name" "$@" > /dev/null 2>&1
    rm -f "$work/hoard-$name/report.html"
    find "$work/hoard-$name" -type f -empty -delete
    # Where it lay on this machine is nobody's business.
    find "$work/hoard-$name" -type f -exec sed -i "s|$root|.|g; s|$HOME|~|g; s|$work|.|g" {} +
    (cd "$work" && COLUMNS=150 NO_COLOR=1 "$lowtide" report "hoard-$name") > "$here/summary-$name.txt"
    tar -C "$work" -czf "$here/record-$name.tar.gz" "hoard-$name"
}
run turns-4
