#!/bin/sh
# Prepares the study before any trial starts: checks the limit of open files and the ports, creates
# a certificate, and fetches each version of node from npm's packages.
#   sh setup.sh DIRECTORY CONNECTIONS PORT FIGURES VERSION…
set -eu
cache=$1 connections=$2 port=$3 figures=$4
shift 4

fail() {
    echo "$*" >&2
    exit 1
}

# Besides its connections, node has some open files.
needed=$((connections + 100))
limit=$(ulimit -Hn)
if [ "$limit" != unlimited ] && [ "$limit" -lt "$needed" ]; then
    fail "$connections connections need $needed open files, and $limit are permitted: raise the limit" \
        "(as root: ulimit -Hn $needed), or ask for fewer with --set connections=$((limit - 100))"
fi

mkdir -p "$cache"
if ! [ -e "$cache/cert.pem" ]; then
    command -v openssl >/dev/null || fail "openssl is missing: install it (Debian: openssl)"
    openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=localhost \
        -keyout "$cache/key.pem" -out "$cache/new.pem" 2>"$cache/openssl.log" ||
        fail "openssl could not create a certificate: see $cache/openssl.log"
    mv "$cache/new.pem" "$cache/cert.pem"
fi

case $(uname -m) in
x86_64) machine=x64 ;;
aarch64) machine=arm64 ;;
*) fail "npm has no node for $(uname -m): run the study on x86_64 or aarch64" ;;
esac

# Installs a version of node. If it is already there, npm is not needed.
fetch() {
    version=$1 package=node-linux-$machine home=$cache/node-$version
    if ! [ -x "$home/bin/node" ]; then
        command -v npm >/dev/null || fail "npm is missing, which node $version comes from: install it (Debian: npm)"
        new=$(mktemp -d "$cache/fetch.XXXXXX")
        if ! (cd "$new" && npm pack --silent "$package@$version" >/dev/null 2>"$cache/npm.log"); then
            rm -rf "$new"
            fail "node $version is not available from npm's $package (see $cache/npm.log):" \
                "\`npm view $package versions\` lists those that there are"
        fi
        tar -xzf "$new"/*.tgz -C "$new"
        # Until 2015, the package contained the archive of the download page.
        for inner in "$new"/package/node-*.tar.gz; do
            if [ -e "$inner" ]; then tar -xzf "$inner" -C "$new/package" --strip-components=1; fi
        done
        mkdir -p "$home/bin"
        mv "$new/package/bin/node" "$home/bin/node"
        rm -rf "$new"
    fi
    "$home/bin/node" --version >/dev/null 2>"$cache/node.log" ||
        fail "node $version does not run here ($(head -n 1 "$cache/node.log")): leave it out with --set versions="
}
# The first version is for the treatments that name no version. Each of the others has a treatment
# of its own.
first=true
for version; do
    case " 0.12.7 0.12.9 4.2.3 5.3.0 12.22.12 16.20.2 18.20.8 20.20.2 22.23.3 26.10.0 " in
    *" $version "*) ;;
    *) "$first" || fail "no treatment has node $version: run it by itself (--set node=$version --set versions=)" ;;
    esac
    first=false
    fetch "$version"
done

for one in "$port" "$figures"; do
    # A file, because node 0.12 never calls back from a script that is given with -e.
    "$cache/node-$1/bin/node" "$(dirname "$0")/port.js" "$one" ||
        fail "port $one is in use: end what listens there, or choose another (--set port=… or --set figures=…)"
done
