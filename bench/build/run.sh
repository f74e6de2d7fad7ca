#!/usr/bin/env bash
# How long a cold release build takes: run.sh [TIMES]. Each is a line: elapsed, user and system seconds.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
cargo fetch --locked --quiet
for _ in $(seq "${1:-2}"); do
    rm -rf "${target:?}"/*
    TIMEFORMAT='%R %U %S'
    time CARGO_TARGET_DIR=$target cargo build --release --locked --quiet
done
