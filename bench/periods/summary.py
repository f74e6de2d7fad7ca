#!/usr/bin/env python3
"""One table of raw.jsonl: what stays between bursts, as a share of what `none` leaves, and what that costs.

Usage: summary.py < raw.jsonl"""
import json, sys

trials = [json.loads(line) for line in sys.stdin]
print("| program | period | excess of none, MiB | periodic=30s | adaptive | faults per burst: none, periodic, adaptive | "
      "CPU per burst of the program and lowtide, s: none, periodic, adaptive | CPU of lowtide, s: periodic, adaptive |")
print("|---|---|---|---|---|---|---|---|")
for program, period in dict.fromkeys((trial["program"], trial["period_s"]) for trial in sorted(trials, key=lambda one: (one["program"], one["period_s"]))):
    by_policy = {trial["policy"]: trial for trial in trials if (trial["program"], trial["period_s"]) == (program, period)}
    three = [by_policy[policy] for policy in ("none", "periodic=30s", "adaptive")]
    # What no policy could return: the least that any of them left.
    floor = min(trial["least_rss"] for trial in three)
    none, periodic, adaptive = (trial["mean_idle_rss"] - floor for trial in three)
    per_burst = lambda key: ", ".join("%.3g" % (key(trial) / trial["bursts"]) for trial in three)
    print("| %s | %d s | %.1f | %.1f %% | %.1f %% | %s | %s | %.2f, %.2f |" % (
        program, period, none / 2**20, periodic / none * 100, adaptive / none * 100, per_burst(lambda trial: trial["minor_faults"]),
        per_burst(lambda trial: trial["cpu_s"] + trial["lowtide_cpu_s"]), three[1]["lowtide_cpu_s"], three[2]["lowtide_cpu_s"]))
