#!/usr/bin/env python3
"""Sums up raw.jsonl: summary.py < raw.jsonl > summary.txt"""
import json
import statistics
import sys

rows = [json.loads(line) for line in sys.stdin]
print("ns of CPU time per pair of malloc and free; medians, and quartiles of the differences of pairs of runs\n")
print(f"{'':24} {'rounds':>6} {'without':>8} {'with':>8} {'difference':>11} {'quartiles':>16} {'range':>16}")
for shape in dict.fromkeys(row["shape"] for row in rows):
    own = [row for row in rows if row["shape"] == shape]
    cost = sorted(row["with"] - row["without"] for row in own)
    low, middle, high = statistics.quantiles(cost, n=4, method="inclusive")
    median = lambda way: statistics.median(row[way] for row in own)
    print(f"{shape:24} {len(own):6} {median('without'):8.2f} {median('with'):8.2f} {middle:+11.2f} "
          f"{low:+8.2f} {high:+7.2f} {cost[0]:+8.2f} {cost[-1]:+7.2f}")
