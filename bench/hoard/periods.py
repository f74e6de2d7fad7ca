#!/usr/bin/env python3
"""A process whose free memory grows, purged every 5 minutes, every 30 seconds, and never. Prints a JSON line for each reading of
RSS and for each purge.

Usage: periods.py LOWTIDE HOARD MINUTES   HOARD is subjects/hoard/hoard.c, built with -O2 -pthread."""

import json
import os
import subprocess
import sys
import tempfile
import time

lowtide, hoard, minutes = sys.argv[1:]
SECONDS = 60 * float(minutes)
# A thread takes 48 MiB, frees it 1.9 s later, and the next one follows after as long. There are 96 arenas, as in the post.
WORDS = ["threads=160", "mib=48", "main=48", "turns=161", "pause=1900", f"hold={int(SECONDS)}"]


def rss(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return 4096 * int(statm.read().split()[1])


home = tempfile.mkdtemp()
started = {}
for policy in ("none", "periodic=5m", "periodic=30s"):
    log = f"{home}/{policy}.jsonl"
    command = [lowtide, "run", "-p", policy, "--log", log, "--", hoard, *WORDS]
    arenas = os.environ | {"MALLOC_ARENA_MAX": "96"}
    process = subprocess.Popen(command, env=arenas, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started[policy] = (process, log)
time.sleep(2)
services = {}
for policy, (process, _) in started.items():
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
        names = {int(child): open(f"/proc/{child}/comm").read().strip() for child in children.read().split()}
    services[policy] = next(pid for pid, name in names.items() if not name.startswith("lowtide"))
begin = time.monotonic()
while time.monotonic() - begin < SECONDS:
    t_s = round(time.monotonic() - begin, 1)
    print(json.dumps({"t_s": t_s} | {policy: rss(pid) for policy, pid in services.items()}), flush=True)
    time.sleep(5)
for policy, (process, log) in started.items():
    process.terminate()
    process.wait()
    for line in open(log):
        print(json.dumps({"log": policy} | json.loads(line)), flush=True)
