#!/bin/sh
# Builds Google's tcmalloc as a library that LD_PRELOAD can load: DIRECTORY/libtcmalloc.so. No
# distribution has it. The sources are those in the crate libtcmalloc-sys. The crate itself leaves out
# malloc and free (TCMALLOC_INTERNAL_METHODS_ONLY), so this script compiles its list of files without
# that definition. It takes some five minutes on two processors.
#   sh google-tcmalloc.sh DIRECTORY
set -eu
VERSION=0.1.14
out=$1
if [ -e "$out/libtcmalloc.so" ]; then exit 0; fi
for program in cargo c++ make; do
    if ! command -v "$program" >/dev/null; then
        echo "$program is missing, which builds Google's tcmalloc: install it" >&2
        exit 1
    fi
done
mkdir -p "$out/fetch/src" "$out/objects"
touch "$out/fetch/src/lib.rs"
printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nlibtcmalloc-sys = "=%s"\n[workspace]\n' \
    "$VERSION" >"$out/fetch/Cargo.toml"
cargo vendor --quiet --versioned-dirs --manifest-path "$out/fetch/Cargo.toml" "$out/vendor" >"$out/vendor.toml"
source=$out/vendor/libtcmalloc-sys-$VERSION
{
    printf 'all: libtcmalloc.so\n'
    objects=
    for file in $(sed -n 's/^ *"\(c_src\/.*\.\(cc\|S\)\)",$/\1/p' "$source/build.rs") c_src/tcmalloc/tcmalloc/tcmalloc.cc; do
        case $file in c_src/malloc_bridge.cc) continue ;; esac
        object=objects/$(echo "$file" | tr / -).o
        objects="$objects $object"
        printf '%s:\n\tc++ -std=c++17 -O2 -g0 -fPIC -fno-omit-frame-pointer -w -DNDEBUG -DNOMINMAX -DTCMALLOC_INTERNAL_8K_PAGES -I%s -I%s -c %s -o $@\n' \
            "$object" "$source/c_src/abseil-cpp" "$source/c_src/tcmalloc" "$source/$file"
    done
    printf 'libtcmalloc.so:%s\n\tc++ -shared -static-libstdc++ -static-libgcc -o new.so $^ -lpthread\n\tmv new.so $@\n' "$objects"
} >"$out/Makefile"
make --silent -C "$out" -j "$(nproc)" >"$out/make.log" 2>&1 || {
    echo "Google's tcmalloc could not be built: $out/make.log has the reason" >&2
    exit 1
}
