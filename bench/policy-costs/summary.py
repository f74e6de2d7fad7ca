#!/usr/bin/env python3
"""Summaries of waves.jsonl, churn.jsonl and unchanged.jsonl: differences of pairs, their medians and quartiles.

Usage: summary.py DIRECTORY"""
import json, os, statistics, sys

directory = sys.argv[1]


def rows(name):
    path = os.path.join(directory, name)
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def pairs(all, key, with_it):
    """Returns for each pair the value without and with lowtide."""
    by_pair = {}
    for row in all:
        if "pair" in row:
            by_pair.setdefault(row["pair"], {})[bool(row[with_it])] = key(row)
    return [(one[False], one[True]) for one in by_pair.values() if len(one) == 2]


def describe(name, both, unit, relative=False):
    differences = [(b - a) / a * 100 if relative else b - a for a, b in both]
    low, middle, high = statistics.quantiles(differences, n=4)
    worse = sum(difference > 0 for difference in differences)
    print("%s: without %.6g, with %.6g %s; difference of pairs: median %+.3g %s, quartiles %+.3g to %+.3g; %d of %d are above zero"
          % (name, statistics.median(a for a, _ in both), statistics.median(b for _, b in both), unit, middle,
             "%" if relative else unit, low, high, worse, len(both)))


if waves := rows("waves.jsonl"):
    median = lambda row: statistics.median(row["waves_s"]) * 1e3
    describe("waves, the median of five", pairs(waves, median, "works"), "ms", relative=True)
    late, ids = 0, set()
    acts = waves[-1]["acts"]
    print("waves: %d releases, the last at %s, of a process from %s on" % (
        sum(act["event"] == "act" for act in acts), max(act["time"] for act in acts if act["event"] == "act"), waves[-1]["begin"]))
if churn := rows("churn.jsonl"):
    describe("churn, operations", pairs(churn, lambda row: row["operations_per_s"], "policy"), "/s", relative=True)
    describe("churn, longest gap", pairs(churn, lambda row: row["longest_gap_us"], "policy"), "µs")
if unchanged := rows("unchanged.jsonl"):
    describe("unchanged, latest wake-up", pairs(unchanged, lambda row: row["latest_us"], "works"), "µs")
    switches = pairs(unchanged, lambda row: row["switches"], "works")
    print("unchanged: context switches without %d, with %d, in %d windows each" % (
        sum(a for a, _ in switches), sum(b for _, b in switches), len(switches)))
    cpu = [row["lowtide_cpu_s"] for row in unchanged if row.get("works")]
    print("unchanged: CPU time of lowtide, for two processes, %.3g %% of a core" % (sum(cpu) / len(cpu) / 3 * 100))
