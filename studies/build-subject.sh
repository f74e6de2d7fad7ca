#!/bin/sh
# Builds a subject in the given directory, unless it is already there.
#   sh build-subject.sh SUBJECT DIRECTORY
set -eu
source=$1
build=$2
if ! command -v cargo >/dev/null; then
    echo "cargo is missing: install Rust (https://rustup.rs)" >&2
    exit 1
fi
mkdir -p "$build"
cargo build --quiet --release --locked --manifest-path "$source/Cargo.toml" --target-dir "$build"
