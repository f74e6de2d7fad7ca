#!/usr/bin/env python3
"""The time of a purge against the bytes that are free: malloc_trim, and lowtide's own release. Prints a JSON line for each purge.

Usage: purge_time.py LOWTIDE HOARD [ROUNDS]   HOARD is subjects/hoard/hoard.c, built with -O2 -pthread."""

import json
import subprocess
import sys

lowtide, hoard, *rounds = sys.argv[1:]
THREADS = 15
MIB = [256, 512, 1024, 2048, 4096, 8192]


def purge(method, mib):
    """One process: its 15 threads and its main thread free so many MiB, and one purge follows."""
    share = mib // (THREADS + 1)
    words = [hoard, f"threads={THREADS}", f"mib={share}", f"main={share}", "turns=1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("drained"):
            break
    command = [lowtide, "--json", "release", "--method", method, str(process.pid)]
    done = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    process.kill()
    process.wait()
    keys = ["outcome", "returned_bytes", "rss_before_bytes", "rss_after_bytes", "elapsed_s", "cpu_s", "pauses", "longest_pause_s"]
    return {"method": method, "mib": mib} | {key: done[key] for key in keys}


for number in range(int(rounds[0]) if rounds else 3):
    for mib in MIB:
        for method in ("trim", "chunks"):
            print(json.dumps({"round": number} | purge(method, mib)), flush=True)
