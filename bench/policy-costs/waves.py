#!/usr/bin/env python3
"""Waves every 2 s, while `lowtide attach` works and while it is stopped, in turns, in one process after its first minute.

Usage: waves.py LOWTIDE PAIRS > waves.jsonl. A window is five waves, 10 s."""
import json, os, signal, statistics, subprocess, sys, tempfile, time

lowtide, pairs = sys.argv[1], int(sys.argv[2])
home = tempfile.mkdtemp()
program, log = os.path.join(home, "waves"), os.path.join(home, "acts.jsonl")
here = os.path.dirname(os.path.abspath(__file__))
subprocess.run(["c++", "-O2", "-std=c++20", "-pthread", os.path.join(here, "waves.cc"), "-o", program], check=True)
waves = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
attached = subprocess.Popen([lowtide, "attach", str(waves.pid), "-p", "adaptive", "--log", log], stderr=subprocess.DEVNULL)
begin = time.time()
while time.time() - begin < 62:
    waves.stdout.readline()


def window(works):
    attached.send_signal(signal.SIGCONT if works else signal.SIGSTOP)
    return [float(waves.stdout.readline()) for _ in range(5)]


for pair in range(pairs):
    for works in [True, False] if pair % 2 == 0 else [False, True]:
        print(json.dumps({"pair": pair, "works": works, "waves_s": window(works)}), flush=True)
attached.send_signal(signal.SIGCONT)
attached.send_signal(signal.SIGTERM)
attached.wait()
waves.kill()
waves.wait()
acts = [json.loads(line) for line in open(log)]
print(json.dumps({"begin": time.strftime("%H:%M:%S", time.gmtime(begin)), "acts": acts}))
