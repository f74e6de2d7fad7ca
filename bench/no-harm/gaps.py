#!/usr/bin/env python3
"""Gaps of the allocations of a program during a release of 3 GB, by two versions of lowtide and without a release, twice:
the noise floor. Prints a JSON line for each run.

Usage: gaps.py BEFORE NOW ROUNDS"""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

lowtide = {"before": sys.argv[1], "now": sys.argv[2]}
home = Path(__file__).parent
subprocess.run(["cc", "-O2", "-pthread", "-o", "/tmp/gaps", home / "gaps.c"], check=True)
program = subprocess.Popen(["/tmp/gaps", "3072", "4"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(what):
    program.stdin.write(what + "\n")
    program.stdin.flush()
    return program.stdout.readline().strip()


begin = time.monotonic()
ask("hoard")
# In a privileged process that is younger, no thread is started.
time.sleep(max(0, begin + 65 - time.monotonic()))
try:
    for number in range(int(sys.argv[3])):
        kinds = ["neither", "neither again", "before", "now"]
        random.Random(number).shuffle(kinds)
        for kind in kinds:
            ask("hoard")
            time.sleep(0.5)
            ask("gap")
            begin, release = time.monotonic(), {}
            if kind in lowtide:
                words = [lowtide[kind], "release", "--json", str(program.pid)]
                done = json.loads(subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
                wanted = ["outcome", "runs_in", "predicted_bytes", "returned_bytes", "elapsed_s", "cpu_s", "pauses"]
                wanted += ["longest_pause_s", "median_pause_s", "longest_lock_s", "p99_lock_s"]
                release = {key: done[key] for key in wanted}
            time.sleep(max(0, begin + 2.5 - time.monotonic()))
            print(json.dumps({"round": number, "kind": kind, "gap_s": int(ask("gap")) / 1e9, **release}), flush=True)
finally:
    program.kill()
    program.wait()
