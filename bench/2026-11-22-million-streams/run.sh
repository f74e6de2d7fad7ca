#!/bin/sh
# The study million-streams: all treatments at its own size, the four panels at 10^6 requests in flight, and
# the server killed in the middle of the drain.
#   cargo build --release && bench/2026-11-22-million-streams/run.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
lowtide=${LOWTIDE:-$root/target/release/lowtide}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME="$work/cache"
run() { # NAME ARGUMENT…
    name=$1; shift
    "$lowtide" study "$root/studies/million-streams.toml" -o "$work/$name" "$@" > /dev/null 2>&1 ||
        echo "$name: exit $?" >&2
    rm -f "$work/$name/report.html"
    find "$work/$name" -type f -empty -delete
    (cd "$work" && COLUMNS=150 NO_COLOR=1 "$lowtide" report "$name") > "$here/summary-$name.txt"
    # Where it lay on this machine is nobody's business.
    find "$work/$name" "$here/summary-$name.txt" -type f -exec sed -i "s|$root|.|g; s|$HOME|~|g; s|$work|.|g" {} +
    tar -C "$work" -czf "$here/record-$name.tar.gz" "$name"
}
for part in ${PARTS:-default million kill}; do
    case $part in
    default) run default ;;
    million)
        run million --set streams=125000 --set expire=40000 --timeout 15m \
            --only glibc,glibc/refresh,mimalloc2,mimalloc2/refresh ;;
    kill)
        server=$(find "$XDG_CACHE_HOME" -name subject-million-streams -type f -perm -100 | head -n 1)
        python3 "$here/kill.py" "$lowtide" "$server" > "$here/killed.json" ;;
    esac
done
