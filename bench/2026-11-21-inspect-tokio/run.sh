#!/bin/sh
# The demo's server (tokio, hyper, glibc) after a burst of HTTP/2 requests: what inspect predicts of
# malloc_trim(0), against the drop of anonymous memory when gdb then has the process call it.
#   cargo build --release && bench/2026-11-21-inspect-tokio/run.sh > summary.txt      needs gdb
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lowtide=${LOWTIDE:-$here/../../target/release/lowtide}
: > "$here/raw.jsonl"
for streams in 1000 10000 25000 50000 75000; do
    for repeat in 1 2; do
        "$lowtide" demo-server 127.0.0.1:9871 >/dev/null &
        server=$!
        until "$lowtide" demo-load 127.0.0.1:9871 1 1 >/dev/null 2>&1; do :; done
        "$lowtide" demo-load 127.0.0.1:9871 "$streams" 2000 >/dev/null
        # Idle: nothing is established any more, and two looks agree.
        until a=$("$lowtide" inspect --json $server) && b=$("$lowtide" inspect --json $server) &&
            [ "$(echo "$a" | grep -o '"ledger":[^]]*')" = "$(echo "$b" | grep -o '"ledger":[^]]*')" ]; do :; done
        before=$(awk '/^Anonymous:/ {print $2}' /proc/$server/smaps_rollup)
        gdb -p $server -batch -ex 'call (int)malloc_trim(0)' >/dev/null 2>&1
        after=$(awk '/^Anonymous:/ {print $2}' /proc/$server/smaps_rollup)
        kill $server
        wait $server 2>/dev/null || true
        echo "$b" | python3 -c '
import json, sys
d = json.load(sys.stdin)
streams, repeat, before, after = map(int, sys.argv[1:])
trim = {c["cure"]: c["predicted_bytes"] for c in d["cures"]}
print(json.dumps({"streams": streams, "repeat": repeat, "verdict": d["verdict"]["kind"], "predicted_bytes": trim.get("malloc_trim", 0),
    "release_bytes": trim.get("release", 0), "returned_bytes": (before - after) * 1024, "rss_bytes": d["rss_bytes"],
    "kernel_rss_bytes": d["kernel_rss_bytes"], "cpu_s": d["cpu_s"]}))' $streams $repeat $before $after >> "$here/raw.jsonl"
    done
done
python3 - "$here/raw.jsonl" <<'PY'
import json, sys
print("requests  verdict        RSS MiB  predicted bytes  returned bytes  difference  CPU ms")
for line in open(sys.argv[1]):
    r = json.loads(line)
    print(f"{r['streams']:>8}  {r['verdict']:<13} {r['rss_bytes'] / 2**20:>8.1f} {r['predicted_bytes']:>16} {r['returned_bytes']:>15} "
          f"{r['returned_bytes'] - r['predicted_bytes']:>11} {1000 * r['cpu_s']:>7.1f}")
PY
