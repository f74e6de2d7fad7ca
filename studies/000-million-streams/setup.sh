#!/bin/sh
# Builds the server of the study in the directory that is named, unless it is there: for this system, and
# against musl where Rust has that target.
set -eu
source=$1
build=$2
if ! command -v cargo >/dev/null; then
    echo "cargo is missing: install Rust (https://rustup.rs)" >&2
    exit 1
fi
mkdir -p "$build"
cargo build --quiet --release --locked --manifest-path "$source/Cargo.toml" --target-dir "$build"
musl=$(uname -m)-unknown-linux-musl
if [ -d "$(rustc --print sysroot)/lib/rustlib/$musl" ]; then
    cargo build --quiet --release --locked --manifest-path "$source/Cargo.toml" --target-dir "$build" \
        --target "$musl"
    ln -sf "../$musl/release/subject-000-server" "$build/release/subject-000-server-musl"
fi
