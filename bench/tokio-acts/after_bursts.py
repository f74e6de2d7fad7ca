#!/usr/bin/env python3
"""Resident memory 2 s after each burst of a record of studies/tokio-acts.toml, while the clients are connected, and failed requests.

Usage: after_bursts.py RECORD > after-bursts.txt"""
import glob, json, sys

MIB = 2**20
for path in sorted(glob.glob(sys.argv[1] + "/trials/*.jsonl")):
    lines = [json.loads(line) for line in open(path)]
    treatment = next(line["treatment"] for line in lines if line["kind"] == "trial")
    samples = [(line["t_s"], line["rss_bytes"]) for line in lines if line["kind"] == "sample"]
    ends, is_high = [], False
    for line in lines:
        if line["kind"] == "load_sample":
            if line["in_flight"] > 1000:
                is_high = True
            elif is_high and line["in_flight"] <= 20:
                is_high = False
                ends.append(line["t_s"])
    after = [next(rss for at, rss in samples if at >= end + 2) for end in ends]
    load = next(line["report"] for line in lines if line["kind"] == "load")
    cpu = next(line["usage"]["cpu_s"] for line in lines if line["kind"] == "end")
    print("%-10s %-26s before %5.1f  peak %4.0f  2 s after each burst %s MiB  CPU %5.1f s  failed %d" % (
        treatment["allocator"], treatment["tune"] or "–", samples[5][1] / MIB, max(rss for _, rss in samples) / MIB,
        " · ".join("%.0f" % (rss / MIB) for rss in after), cpu, load["failed"]))
