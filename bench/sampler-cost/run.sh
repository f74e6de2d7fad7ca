#!/bin/sh
# What sampling a tree of 50 processes ten times a second costs: CPU time of the sampler's thread, as
# it stands in the record (`sampler_cpu_s`), over the time that it sampled.
#   cargo build --release && bench/sampler-cost/run.sh > summary.txt
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lowtide=${LOWTIDE:-$here/../../target/release/lowtide}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O1 -o "$work/tree" "$here/tree.c"
: > "$here/raw.jsonl"
for change in 0 1; do
    (cd "$work" && "$lowtide" study -a glibc --repeat 6 -o "tree-$change" -- ./tree 50 60 $change) >/dev/null 2>&1
    for file in "$work/tree-$change"/trials/*.jsonl; do
        ticks=$(grep -c '"kind":"sample"' "$file")
        slow=$(grep '"kind":"sample"' "$file" | grep -c '"slow"')
        grep '"kind":"end"' "$file" |
            sed "s/^{/{\"change\":$change,\"ticks\":$ticks,\"slow_ticks\":$slow,/" >> "$here/raw.jsonl"
    done
done
python3 - "$here/raw.jsonl" <<'PY'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print("50 processes, 10 Hz, 60 s; CPU time of the sampler as a part of one core, 6 runs each")
for change, name in ((0, "figures stay the same"), (1, "figures change at every tick")):
    shares = [100 * r["sampler_cpu_s"] / r["t_s"] for r in rows if r["change"] == change]
    slow = [r["slow_ticks"] for r in rows if r["change"] == change]
    ticks = [r["ticks"] for r in rows if r["change"] == change]
    print(f"{name}: median {statistics.median(shares):.2f} % (range {min(shares):.2f} to {max(shares):.2f}), "
          f"{statistics.median(ticks):.0f} ticks, {statistics.median(slow):.0f} of them with PSS, "
          f"missed {sum(r['missed_ticks'] for r in rows if r['change'] == change)}")
PY
