#!/usr/bin/env python3
"""Prints a table of page faults and memory, a line for each treatment: the median over its trials, and the range. Each
trial is reduced as `pidstat -r 1` would: readings of one second, their average and percentiles.

Usage: rates.py RECORD…      directories, or archives of one"""

import json
import pathlib
import statistics
import sys
import tarfile


def files(record):
    if record.endswith(".tar.gz"):
        with tarfile.open(record) as archive:
            for member in archive.getmembers():
                if "/trials/" in member.name and member.name.endswith(".jsonl"):
                    yield archive.extractfile(member).read().decode()
    else:
        for path in sorted(pathlib.Path(record, "trials").glob("*.jsonl")):
            yield path.read_text()


def readings(samples):
    """One reading a second: time, faults per second, RSS in MiB."""
    found, before = [], samples[0]
    for sample in samples:
        if sample["t_s"] - before["t_s"] >= 1:
            seconds = sample["t_s"] - before["t_s"]
            found.append((sample["t_s"], (sample["minor_faults"] - before["minor_faults"]) / seconds, sample["rss_bytes"] / 2**20))
            before = sample
    return found


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


trials = {}
for record in sys.argv[1:]:
    for text in files(record):
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        trial = next(line for line in lines if line["kind"] == "trial")["treatment"]
        header = next(line for line in lines if line["kind"] == "header")
        label = trial["allocator"] + (f"/{trial['tune']}" if trial["tune"] else "")
        if not any(line.get("outcome") == {"result": "done"} for line in lines):
            continue
        samples = [line for line in lines if line["kind"] == "sample" and line["rss_bytes"] > 0]
        all_readings = readings(samples)
        peak = max(rss for _, _, rss in all_readings)
        # From the second second until 99 % of the peak, as in the post's comparison.
        rising = []
        for _, faults, rss in all_readings[1:]:
            rising.append(faults)
            if rss >= 0.99 * peak:
                break
        faults = samples[-1]["minor_faults"] - samples[0]["minor_faults"]
        memory = header["machine"]["memory_bytes"] / 2**20
        rss = [rss for _, _, rss in all_readings]
        trials.setdefault(label, []).append({
            "peak RSS, MiB": peak, "last RSS, MiB": rss[-1], "average RSS, MiB": statistics.mean(rss),
            "average %MEM": 100 * statistics.mean(rss) / memory, "minor faults": faults,
            "major faults": samples[-1]["major_faults"], "KiB for each fault": peak * 1024 / faults,
            "faults/s, average": statistics.mean(rising), "faults/s, 50 %": percentile(rising, 0.5),
            "faults/s, 90 %": percentile(rising, 0.9), "faults/s, 99 %": percentile(rising, 0.99),
        })

print("| | trials | " + " | ".join(next(iter(trials.values()))[0]) + " |")
print("|---|---:" + "|---:" * len(next(iter(trials.values()))[0]) + "|")
for label, all_trials in trials.items():
    cells = []
    for name in all_trials[0]:
        values = [trial[name] for trial in all_trials]
        digits = 1 if max(values) < 100 else 0
        low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
        cells.append(middle if low == high else f"{middle} ({low}–{high})")
    print(f"| {label} | {len(all_trials)} | " + " | ".join(cells) + " |")
