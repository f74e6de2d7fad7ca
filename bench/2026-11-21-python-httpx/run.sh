#!/bin/sh
# The study python-httpx: 300 clients three times, and the document's 2000 once.
#   cargo build --release && bench/2026-11-21-python-httpx/run.sh
# needs python3 with venv, the package index, and gperftools (Debian: libgoogle-perftools4).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lowtide=${LOWTIDE:-$here/../../target/release/lowtide}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { # NAME ARGUMENT…
    name=$1; shift
    "$lowtide" study "$here/../../studies/python-httpx.toml" -o "$work/$name" "$@" > "$here/summary-$name.txt" 2>/dev/null
    rm -f "$work/$name/report.html"
    # Where it lay on this machine is nobody's business.
    root=$(cd "$here/../.." && pwd)
    find "$work/$name" -type f -exec sed -i "s|$root|.|g; s|$HOME|~|g; s|$work|.|g" {} +
    sed -i "s|$work|.|g" "$here/summary-$name.txt"
    tar -C "$work" -czf "$here/record-$name.tar.gz" "$name"
}
run 300
run 2000 --set contexts=2000 --repeat 1
