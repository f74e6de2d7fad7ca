#!/usr/bin/env python3
"""RSS of a program whose tokio tasks sleep and end: spawned outside or inside of the runtime, on one runtime or one per round, with
state of several sizes. Prints a JSON line for each phase of each round.

Usage: tasks.py SUBJECT      SUBJECT is subjects/containers, a release build."""

import json
import subprocess
import sys

subject = sys.argv[1]
MILLION = ["count=1000000", "sleep=8000"]
CASES = [
    ("a gate, from outside", ["mode=tasks", "count=1000000"]),
    ("own sleep, from outside", ["mode=sleepers", *MILLION]),
    ("own sleep, from inside", ["mode=sleepers", "spawn=inside", *MILLION]),
    ("own sleep, from inside, a runtime per round", ["mode=sleepers", "spawn=inside", "runtime=each", *MILLION]),
    ("own sleep, from inside, 64 B each", ["mode=sleepers", "spawn=inside", "state=64", *MILLION]),
    ("own sleep, from inside, 1 KiB each", ["mode=sleepers", "spawn=inside", "state=1024", *MILLION]),
    ("own sleep, from inside, 100,000 with 16 KiB each", ["mode=sleepers", "spawn=inside", "state=16384", "count=100000", "sleep=8000"]),
]
for case, words in CASES:
    process = subprocess.Popen([subject, *words, "rounds=3", "pause=500"], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        phase = line.split()[0].rstrip(":")
        with open(f"/proc/{process.pid}/statm") as statm:
            rss = int(statm.read().split()[1]) * 4096
        print(json.dumps({"case": case, "phase": phase, "rss_bytes": rss}), flush=True)
        if phase == "over":
            break
    process.kill()
    process.wait()
