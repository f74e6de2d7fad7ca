#!/bin/sh
# Installs the static binary of lowtide for this processor, after its checksum was compared.
#   LOWTIDE_URL=https://example.org/lowtide sh install.sh [DIR]
# LOWTIDE_URL is the address of a directory with the packages and SHA256SUMS, as packaging/build makes it: https://, http:// or
# file://. DIR is where the program goes; default: /usr/local/bin for root, ~/.local/bin for others. It changes nothing else.
# The checksums come from the same address: they find a damaged or incomplete download, not a dishonest server.
set -eu

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

has() { command -v "$1" > /dev/null 2>&1; }

# Writes what an address has to a file. An address that begins with https:// leads only to such addresses.
download() {
    case $1 in
    file://*)
        cp "${1#file://}" "$2"
        ;;
    http://* | https://*)
        if has curl; then
            case $1 in https://*) only='=https' ;; *) only='=http,https' ;; esac
            curl --fail --silent --show-error --location --proto "$only" --proto-redir "$only" --output "$2" "$1"
        elif has wget; then
            wget -q -O "$2" "$1"
        else
            fail "neither curl nor wget is installed: install one of them"
        fi
        ;;
    *)
        fail "LOWTIDE_URL=$LOWTIDE_URL is not an address: it begins with https://, http:// or file://"
        ;;
    esac || fail "$1 could not be read: check LOWTIDE_URL and the connection"
}

# Prints the SHA-256 sum of a file.
sum_of() {
    if has sha256sum; then
        sha256sum "$1"
    elif has shasum; then
        shasum -a 256 "$1"
    elif has openssl; then
        openssl dgst -r -sha256 "$1"
    else
        fail "sha256sum is not installed: install it (coreutils or busybox)"
    fi | cut -d ' ' -f 1
}

architecture() {
    case $(uname -m) in
    x86_64 | amd64) echo x86_64 ;;
    aarch64 | arm64) echo aarch64 ;;
    *) fail "there is no package for the processor $(uname -m): build lowtide from source" ;;
    esac
}

install_to() {
    directory=$1
    package=$(sed -n "s/^[0-9a-f]\{64\}  \(lowtide-[0-9A-Za-z.+-]*-$processor-linux\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
    [ -n "$package" ] || fail "$LOWTIDE_URL/SHA256SUMS names no package for $processor: check LOWTIDE_URL"
    [ "$(echo "$package" | wc -l)" -eq 1 ] || fail "$LOWTIDE_URL has several versions: name the directory of one"
    download "$LOWTIDE_URL/$package" "$work/$package"
    expected=$(sed -n "s/^\([0-9a-f]\{64\}\)  $package\$/\1/p" "$work/SHA256SUMS")
    [ "$(sum_of "$work/$package")" = "$expected" ] || fail "$package has another checksum than in SHA256SUMS: nothing was installed"
    tar -x -z -f "$work/$package" -C "$work"
    new=$work/${package%.tar.gz}/lowtide
    version=$("$new" --version) || fail "$package contains a program that does not run here: nothing was installed"
    # The new file takes the place of the old one at once, also while the old one runs.
    if ! { mkdir -p "$directory" && cp "$new" "$directory/.lowtide.new" && mv -f "$directory/.lowtide.new" "$directory/lowtide"; }; then
        fail "$directory cannot be written to: name another directory, as in sh install.sh DIR"
    fi
    echo "$version is in $directory/lowtide"
    case :$PATH: in
    *:"$directory":*) ;;
    *) echo "PATH does not contain $directory: add it, or start lowtide by its path" ;;
    esac
}

main() {
    [ "$(uname -s)" = Linux ] || fail "lowtide runs on Linux only, not on $(uname -s)"
    # No release is published yet, so there is no default.
    [ -n "${LOWTIDE_URL:-}" ] || fail "LOWTIDE_URL is not set: set it to the address of a directory with lowtide's packages"
    LOWTIDE_URL=${LOWTIDE_URL%/}
    processor=$(architecture)
    if [ "$(id -u)" -eq 0 ]; then default=/usr/local/bin; else default=$HOME/.local/bin; fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    download "$LOWTIDE_URL/SHA256SUMS" "$work/SHA256SUMS"
    install_to "${1:-$default}"
}

# In a function, so that a script that arrives incomplete does nothing.
main "$@"
