#!/bin/sh
# Builds the server of the study in the given directory, unless it is already there: for this
# system, and for musl if Rust has that target.
set -eu
source=$1
build=$2
sh "$(dirname "$0")/../build-subject.sh" "$source" "$build"
musl=$(uname -m)-unknown-linux-musl
if [ -d "$(rustc --print sysroot)/lib/rustlib/$musl" ]; then
    cargo build --quiet --release --locked --manifest-path "$source/Cargo.toml" --target-dir "$build" \
        --target "$musl"
    ln -sf "../$musl/release/subject-million-streams" "$build/release/subject-million-streams-musl"
fi
