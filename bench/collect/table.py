#!/usr/bin/env python3
"""Prints the rows of raw.jsonl as a table of Markdown."""
import json
import sys

print("| configuration | outcome | collector | pauses, ms | RSS in MiB: before, collected, released | process |")
print("|---|---|---|---:|---:|---|")
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "outcomes" in row:
        print(f"| {row['configuration']} | {row['outcomes']} | | | | |")
        continue
    outcome = row["outcome"] if row["outcome"] == "collected" else f"{row['outcome']}: {row['reason'] or row['error']}"
    outcome = outcome.replace("its runtime was not asked to collect, because ", "")
    sizes = [row["rss_before_mib"], row["rss_collected_mib"], row["rss_after_mib"]]
    sizes = ", ".join("–" if size is None else f"{size:.0f}" for size in sizes)
    pause = "–" if row["pause_ms"] is None else row["pause_ms"]
    left = f", left {row['files_left']}" if row["files_left"] else ""
    print(f"| {row['configuration']} | {outcome} | {row['collector'] or '–'} | {pause} | {sizes} | {row['process']}{left} |")
