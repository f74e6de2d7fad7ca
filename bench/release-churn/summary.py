#!/usr/bin/env python3
"""What raw.jsonl says: what a release returned of what malloc_trim returned of a twin, pair by pair."""
import json, os, statistics, sys

here = os.path.dirname(os.path.abspath(__file__))
rows = [json.loads(line) for line in open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "raw.jsonl"))]
NAMES = {"one": "hoard, one arena", "many": "hoard, several arenas", "churn": "churn at full speed"}
AIM = 0.9


def told(values, text="{:.3f}"):
    values, n = sorted(values), len(values)
    if n < 6:
        return f"{text.format(values[0])} to {text.format(values[-1])} (n={n})"
    # 95 % of the median, by order statistics.
    half = 0.98 * n ** 0.5
    low, high = values[max(0, int(n / 2 - half))], values[min(n - 1, int(n / 2 + half))]
    return f"{text.format(statistics.median(values))} ({text.format(low)} to {text.format(high)})"


for program in dict.fromkeys(row["program"] for row in rows):
    all_pairs = [row for row in rows if row["program"] == program]
    done = [row for row in all_pairs if row["release"]["outcome"] == "released"]
    print(f"\n{NAMES[program]}, {all_pairs[0]['mb']} MB, {len(done)} of {len(all_pairs)} pairs released")
    for row in all_pairs:
        if row not in done:
            print(f"  {row['release']['outcome']}: {row['release']['reason']}")
    if not done:
        continue
    for name, what in [("fell_bytes", "5 s after the beginning"), ("fell_at_once_bytes", "right after the act")]:
        shares = [row["release"][name] / row["trim"][name] for row in done if row["trim"][name] > 0]
        print(f"  {what}: of malloc_trim's bytes {told(shares)}, least {min(shares):.3f}"
              + (f": aim of {AIM} {'met' if statistics.median(shares) >= AIM else 'not met'}" if name == "fell_bytes" else ""))
    print(f"  malloc_trim's MiB {told([row['trim']['fell_bytes'] / 2**20 for row in done], '{:.0f}')}, the release's "
          f"{told([row['release']['fell_bytes'] / 2**20 for row in done], '{:.0f}')}")
    releases = [row["release"] for row in done]
    print(f"  passes {told([r['passes'] for r in releases], '{:.0f}')}, seconds {told([r['elapsed_s'] for r in releases], '{:.2f}')}, dropped MiB "
          f"{told([r['returned_bytes'] / 2**20 for r in releases], '{:.0f}')} (what is dropped, touched and dropped again counts each time), longest hold "
          f"of a lock in ms {told([r['longest_lock_s'] * 1e3 for r in releases])}")
