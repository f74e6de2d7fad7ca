#!/usr/bin/env python3
"""A process in which nothing changes, while `lowtide attach` works and while it is stopped, in turns.

Usage: unchanged.py LOWTIDE PAIRS > unchanged.jsonl. A window is 3 s. In each, the context switches of a process that
waits (a stop is one), and the latest wake-up of another that sleeps for a millisecond at a time."""
import glob, json, os, re, signal, subprocess, sys, tempfile, time

lowtide, pairs = sys.argv[1], int(sys.argv[2])
home = tempfile.mkdtemp()
here = os.path.dirname(os.path.abspath(__file__))
program = os.path.join(home, "ticker")
subprocess.run(["cc", "-O2", os.path.join(here, "ticker.c"), "-o", program], check=True)


def switches(pid):
    return sum(int(line.split()[1]) for path in glob.glob("/proc/%d/task/*/status" % pid)
               for line in open(path) if "ctxt_switches" in line)


def lowtide_cpu_s(pid):
    fields = open("/proc/%d/stat" % pid).read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


waiting = subprocess.Popen([program, "wait"], stdout=subprocess.PIPE, text=True)
ticking = subprocess.Popen([program, "tick"], stdout=subprocess.PIPE, text=True)
log = os.path.join(home, "acts.jsonl")
attached = subprocess.Popen([lowtide, "attach", str(waiting.pid), str(ticking.pid), "--log", log], stderr=subprocess.DEVNULL)
# The first releases, and the samples of what they returned.
time.sleep(70)


def window(works):
    attached.send_signal(signal.SIGCONT if works else signal.SIGSTOP)
    ticking.send_signal(signal.SIGUSR1)
    ticking.stdout.readline()
    before, cpu = switches(waiting.pid), lowtide_cpu_s(attached.pid)
    time.sleep(3)
    after = switches(waiting.pid)
    ticking.send_signal(signal.SIGUSR1)
    latest = int(ticking.stdout.readline())
    return {"works": works, "switches": after - before, "latest_us": latest, "lowtide_cpu_s": round(lowtide_cpu_s(attached.pid) - cpu, 3)}


for pair in range(pairs):
    for works in [True, False] if pair % 2 == 0 else [False, True]:
        print(json.dumps({"pair": pair, **window(works)}), flush=True)
attached.send_signal(signal.SIGCONT)
attached.send_signal(signal.SIGTERM)
attached.wait()
for child in (waiting, ticking):
    child.kill()
    child.wait()
print(json.dumps({"acts": [json.loads(line) for line in open(log)]}))
