#!/bin/sh
# Settled values beside what `pidstat -r 1` prints of the same processes in the same seconds: Python, Node
# and C, each under glibc, jemalloc and mimalloc, three times.
#   cargo build --release && bench/pidstat/run.sh > summary.txt
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lowtide=${LOWTIDE:-$here/../../target/release/lowtide}
work=$(mktemp -d)
LC_ALL=C S_TIME_FORMAT=ISO pidstat -r -H -h -p ALL 1 > "$work/pidstat.txt" &
pidstat=$!
trap 'kill $pidstat 2>/dev/null; rm -rf "$work"' EXIT
cc -O1 -o "$work/subject" "$here/../../crates/cli/tests/fixtures/subject.c"
cat > "$work/job.py" <<'PY'
import time
d = [{'i': i, 's': 'x' * (i % 900)} for i in range(200000)]
time.sleep(1); del d; time.sleep(8)
PY
cat > "$work/job.js" <<'JS'
let a = []; for (let i = 0; i < 500; i++) a.push(Buffer.alloc(200000, 1));
setTimeout(() => { a = null; }, 1000); setTimeout(() => {}, 9000);
JS
study() { # NAME COMMAND…
    name=$1; shift
    (cd "$work" && "$lowtide" study --json -a glibc,jemalloc,mimalloc --repeat 3 --settle 10s -o "$name" -- "$@") > "$work/$name.json" 2>/dev/null
}
study c ./subject fill:128 pin ms:1000 free ms:8000
study python "$(python3 -c 'import sys; print(sys.executable)')" job.py
study node node job.js
sleep 2
python3 - "$work" "$here/raw.json" <<'PY'
import json, os, statistics, sys
work, raw = sys.argv[1:]
rows = []  # (unix second, pid, RSS in KiB)
for line in open(f"{work}/pidstat.txt"):
    f = line.split()
    # -H -h: time, UID, PID, minflt/s, majflt/s, VSZ, RSS, %MEM, command
    if len(f) >= 9 and f[0].isdigit():
        rows.append((int(f[0]), int(f[2]), int(f[6])))
out = []
for name in ("c", "python", "node"):
    study = json.load(open(f"{work}/{name}.json"))
    for trial in study["trials"]:
        lines = [json.loads(l) for l in open(f"{work}/{name}/{trial['samples']}")]
        start = lines[0]["started_unix_s"]
        pid = next(l["pid"] for l in lines if l["kind"] == "process")
        end = start + next(l["t_s"] for l in lines if l["kind"] == "mark" and l["mark"] == "exit") - 0.5
        seen = [kib for at, p, kib in rows if p == pid and end - 5 <= at <= end]
        out.append({"subject": name, "allocator": trial["treatment"]["allocator"], "repeat": trial["repeat"],
                    "allocator_active": trial["allocator_active"], "settled_bytes": trial["settled_bytes"],
                    "pidstat_bytes": statistics.median(seen) * 1024 if seen else None, "pidstat_readings": len(seen)})
json.dump(out, open(raw, "w"), indent=1)
worst = 0
for name in ("c", "python", "node"):
    for allocator in ("glibc", "jemalloc", "mimalloc"):
        these = [o for o in out if (o["subject"], o["allocator"]) == (name, allocator)]
        offs = [100 * (o["settled_bytes"] / o["pidstat_bytes"] - 1) for o in these]
        worst = max([worst] + [abs(o) for o in offs])
        mib = statistics.median(o["settled_bytes"] for o in these) / 2**20
        print(f"{name:7} {allocator:9} settled {mib:6.1f} MiB, against pidstat {min(offs):+.3f} to {max(offs):+.3f} % (n = {len(these)}), "
              f"allocator_active {all(o['allocator_active'] for o in these)}")
print(f"largest difference: {worst:.3f} %")
PY
