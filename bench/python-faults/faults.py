#!/usr/bin/env python3
"""Page faults of the program of document 002 with and without huge pages. Prints a JSON line for each case.

Usage: faults.py PYTHON CONTEXTS.PY JEMALLOC.SO      PYTHON has httpx; CONTEXTS.PY is studies/python-httpx/contexts.py."""

import json
import os
import subprocess
import sys
import time

python, program, jemalloc = sys.argv[1:]
CASES = [
    ("jemalloc", {"LD_PRELOAD": jemalloc}),
    ("jemalloc thp:always", {"LD_PRELOAD": jemalloc, "MALLOC_CONF": "thp:always"}),
    ("glibc", {}),
    ("glibc hugetlb=1", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
]
for name, settings in CASES:
    begin = time.monotonic()
    process = subprocess.Popen([python, program, "300", "2"], env=os.environ | settings, stdout=subprocess.DEVNULL)
    peak = faults = 0
    while process.poll() is None:
        try:
            with open(f"/proc/{process.pid}/statm") as statm:
                peak = max(peak, int(statm.read().split()[1]) >> 8)
            with open(f"/proc/{process.pid}/stat") as stat:
                faults = int(stat.read().rsplit(")", 1)[1].split()[7])
        except (OSError, IndexError):
            pass
        time.sleep(0.05)
    print(json.dumps({"case": name, "contexts": 300, "peak_rss_mib": peak, "minor_faults": faults, "seconds": round(time.monotonic() - begin, 1)}))
