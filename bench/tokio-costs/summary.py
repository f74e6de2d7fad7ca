#!/usr/bin/env python3
"""Medians of the pairs, with the interval of the median (order statistics, 95 %). Usage: summary.py tracked.jsonl serve.jsonl gap.jsonl"""
import json, math, sys


def interval(values):
    values = sorted(values)
    n = len(values)
    # The binomial interval of the median.
    low = next(k for k in range(n) if sum(math.comb(n, i) for i in range(k + 1)) / 2**n > 0.025)
    return values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2, values[low], values[n - 1 - low]


def show(what, unit, pairs):
    median, low, high = interval(pairs)
    print("%-40s %+.2f %s (%+.2f to %+.2f), %d pairs" % (what, median, unit, low, high, len(pairs)))


for path in sys.argv[1:]:
    groups = {}
    for line in open(path):
        one = json.loads(line)
        key = tuple((name, one[name]) for name in ("threads", "size", "version", "kind") if name in one)
        groups.setdefault(key, []).append(one)
    for key, pairs in groups.items():
        name = ", ".join("%s %s" % item for item in key)
        if "with_ns" in pairs[0]:
            show("Tracked, " + name, "ns", [one["with_ns"] - one["without_ns"] for one in pairs])
            show("  noise", "ns", [one["again_ns"] - one["without_ns"] for one in pairs])
        elif "lowtide_us" in pairs[0]:
            show("serve, " + name, "%", [(one["lowtide_us"] / one["axum_us"] - 1) * 100 for one in pairs])
            show("  noise", "%", [(one["again_us"] / one["axum_us"] - 1) * 100 for one in pairs])
        elif "patched_us" in pairs[0]:
            show("h2, " + name, "%", [(one["patched_us"] / one["plain_us"] - 1) * 100 for one in pairs])
            show("  noise", "%", [(one["again_us"] / one["plain_us"] - 1) * 100 for one in pairs])
        else:
            show("longest gap, " + name, "ms", [one["with_ms"] - one["without_ms"] for one in pairs])
            show("  noise", "ms", [one["again_ms"] - one["without_ms"] for one in pairs])
