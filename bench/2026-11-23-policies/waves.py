#!/usr/bin/env python3
"""Waves every 2 s, with and without `lowtide attach`, in turns: the time of the work, and what came back.

Usage: waves.py LOWTIDE PAIRS > waves.jsonl. A window is 120 s, of which the last 60 s count."""
import json, os, re, signal, statistics, subprocess, sys, tempfile, time

lowtide, pairs = sys.argv[1], int(sys.argv[2])
home = tempfile.mkdtemp()
program = os.path.join(home, "waves")
here = os.path.dirname(os.path.abspath(__file__))
subprocess.run(["c++", "-O2", "-std=c++20", "-pthread", os.path.join(here, "waves.cc"), "-o", program], check=True)


def window(policy):
    waves = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
    log = os.path.join(home, "acts-%d.jsonl" % waves.pid)
    attached = policy and subprocess.Popen([lowtide, "attach", str(waves.pid), "-p", policy, "--log", log], stderr=subprocess.DEVNULL)
    begin, times = time.time(), []
    while time.time() - begin < 120:
        line = waves.stdout.readline()
        if time.time() - begin > 60:
            times.append(float(line))
    if attached:
        attached.send_signal(signal.SIGTERM)
        attached.wait()
    waves.kill()
    waves.wait()
    acts = [json.loads(line) for line in open(log)] if policy and os.path.exists(log) else []
    # Bytes of the releases after the first minute, and of these, what came back.
    late = lambda act: act["event"] == "act" and act["at"] > 60
    for act in acts:
        h, m, s = re.match(r".*T(\d+):(\d+):([\d.]+)Z", act["time"]).groups()
        act["at"] = (int(h) * 3600 + int(m) * 60 + float(s)) - (begin % 86400)
    ids = {act["id"] for act in acts if late(act)}
    return {
        "policy": policy, "mean_s": statistics.mean(times), "waves": len(times),
        "releases": sum(act["event"] == "act" for act in acts), "late_releases": len(ids),
        "late_returned": sum(act["returned_bytes"] for act in acts if act["event"] == "act" and act["id"] in ids),
        "late_refaulted": sum(act["refaulted_bytes"] for act in acts if act["event"] == "returned" and act["id"] in ids),
        "release_times_s": [round(act["at"], 1) for act in acts if act["event"] == "act"],
    }


for pair in range(pairs):
    for policy in [None, "adaptive"] if pair % 2 == 0 else ["adaptive", None]:
        print(json.dumps({"pair": pair, **window(policy)}), flush=True)
