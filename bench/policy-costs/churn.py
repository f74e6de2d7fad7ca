#!/usr/bin/env python3
"""A load that allocates without pause, with and without `lowtide attach`, in turns.

Usage: churn.py LOWTIDE PAIRS > churn.jsonl. A window is 25 s, of which the last 20 s count: lowtide attaches in them."""
import json, os, signal, statistics, subprocess, sys, tempfile

lowtide, pairs = sys.argv[1], int(sys.argv[2])
home = tempfile.mkdtemp()
program = os.path.join(home, "churn")
here = os.path.dirname(os.path.abspath(__file__))
subprocess.run(["c++", "-O2", "-std=c++20", "-pthread", os.path.join(here, "churn.cc"), "-o", program], check=True)


def window(policy):
    churn = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
    log = os.path.join(home, "acts-%d.jsonl" % churn.pid)
    seconds = [churn.stdout.readline() for _ in range(5)]
    attached = policy and subprocess.Popen([lowtide, "attach", str(churn.pid), "-p", policy, "--log", log], stderr=subprocess.DEVNULL)
    seconds = [[int(word) for word in churn.stdout.readline().split()] for _ in range(20)]
    rss = int(open("/proc/%d/statm" % churn.pid).read().split()[1]) * 4096
    if attached:
        attached.send_signal(signal.SIGTERM)
        attached.wait()
    churn.kill()
    churn.wait()
    acts = [json.loads(line) for line in open(log)] if policy and os.path.exists(log) else []
    acts = [act for act in acts if act["event"] == "act"]
    return {
        "policy": policy, "operations_per_s": statistics.mean(second[0] for second in seconds),
        "longest_gap_us": max(second[1] for second in seconds), "releases": len(acts),
        "returned_bytes": sum(act["returned_bytes"] for act in acts), "rss_bytes": rss,
    }


for pair in range(pairs):
    for policy in [None, "adaptive"] if pair % 2 == 0 else ["adaptive", None]:
        print(json.dumps({"pair": pair, **window(policy)}), flush=True)
