#!/usr/bin/env python3
"""Sums up raw.jsonl, of which each line is one program: counts for each glibc and shape, what no failure in so many
means, and how much later waits ended than in the same program without releases."""
import collections, json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1] if len(sys.argv) > 1 else "raw.jsonl")]
released = [r for r in rows if r["kind"] == "release"]
version = lambda text: [int(n) for n in text.split(".")]


def counts(name, of):
    sum_of = lambda key: sum(r[key] for r in of)
    failures = sum(bool(r["failures"]) for r in of)
    print(f"{name:20} programs {len(of):4}, releases {sum_of('releases'):5}, that returned something {sum_of('returned'):5} "
          f"({sum_of('returned_bytes') / 2**30:7.1f} GiB), begun two at once {sum_of('doubled'):4}, "
          f"threads born {sum_of('threads_born'):7}, forks {sum_of('forks_ok'):6}, signals {sum_of('signals_handled'):8}, "
          f"bytes checked {sum_of('bytes_checked') / 2**40:5.1f} TiB, programs that broke {failures}")


for glibc in sorted({r["glibc"] for r in released}, key=version):
    for shape in sorted({r["shape"] for r in released}):
        of = [r for r in released if (r["glibc"], r["shape"]) == (glibc, shape)]
        if of:
            counts(f"{glibc} {shape}", of)
    counts(f"{glibc}", [r for r in released if r["glibc"] == glibc])
counts("all", released)
total, broke = sum(r["returned"] for r in released), sum(bool(r["failures"]) for r in released)
print(f"programs without releases: {len(rows) - len(released)}, of which broke "
      f"{sum(bool(r['failures']) for r in rows if r['kind'] == 'control')}")
refused = collections.Counter()
for r in released:
    refused.update(r["refused"])
print("refused:", ", ".join(f"{why} {n}" for why, n in sorted(refused.items())))
if broke == 0:
    print(f"0 in {total}: if each release broke something with the same probability, that is below {300 / total:.3f} % "
          f"with a confidence of 95 % (3/n)")

late = collections.defaultdict(lambda: ([], []))
for control in (r for r in rows if r["kind"] == "control"):
    key = lambda r: (r["glibc"], r["shape"], r["seed"])
    for release in (r for r in released if key(r) == key(control)):
        for call, of in release.get("lateness_us", {}).items():
            other = control.get("lateness_us", {}).get(call)
            if other:
                late[call][0].append(of["median"] - other["median"])
                late[call][1].append(of["p95"] - other["p95"])
if late:
    print(f"\nwaits, later than in the same program without releases, in us; the median of {max(len(a) for a, _ in late.values())} pairs")
    for call, (medians, p95s) in sorted(late.items()):
        print(f"{call:26} at the median {statistics.median(medians):7.0f}, at the 95th percentile {statistics.median(p95s):7.0f}")
