#!/usr/bin/env python3
"""Runs window.c a number of times, with a release each, half of them at its start. Prints the times in µs, in order.

Usage: window.py LOWTIDE TIMES"""

import subprocess
import sys
import time
from pathlib import Path

home = Path(__file__).parent
subprocess.run(["cc", "-O2", "-pthread", "-o", "/tmp/window", home / "window.c"], check=True)
programs = []
for number in range(int(sys.argv[2])):
    words = ["/tmp/window", str(number % 2 * (10 + number))]
    programs.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
    assert programs[-1].stdout.readline() == "ready\n"
    # Each waits for its thread in a loop.
    programs[-1].send_signal(19)
time.sleep(62)
found = {0: [], 1: []}
for number, program in enumerate(programs):
    program.send_signal(18)
    words = [sys.argv[1], "release", "--json", str(program.pid)]
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found[number % 2].append(int(program.communicate(timeout=20)[0] or -program.returncode))
    except subprocess.TimeoutExpired:
        program.kill()
print({"at its start": sorted(found[0]), "later": sorted(found[1])})
