#!/usr/bin/env python3
"""Four programs with a burst every 20 s, 2 min and 5 min, under three policies: what stays between bursts, and what it costs.

Usage, from the root of the repository: run.py LOWTIDE SERVER NODE SECONDS [PROGRAM…] > raw.jsonl. SERVER is the built
subjects/million-streams. All 36 run at once, and rest most of the time."""
import json, os, signal, subprocess, sys, tempfile, threading, time

lowtide, server, node, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
here = os.path.dirname(os.path.abspath(__file__))
home = tempfile.mkdtemp()
subprocess.run(["c++", "-O2", "-std=c++20", "-pthread", os.path.join(here, "burst.cc"), "-o", home + "/burst"], check=True)
PROGRAMS = {
    "C++": [home + "/burst"],
    "Python": [sys.executable, os.path.join(here, "burst.py")],
    "node": [node, "--expose-gc", os.path.join(here, "burst.js")],
    "axum": [server],
}
PERIODS = [20, 120, 300]
POLICIES = ["none", "periodic=30s", "adaptive"]
TICK = os.sysconf("SC_CLK_TCK")
end = time.monotonic() + seconds
printing = threading.Lock()


def fields(pid):
    return open("/proc/%d/stat" % pid).read().rsplit(") ", 1)[1].split()


def cpu_s(pid):
    return sum(int(field) for field in fields(pid)[11:13]) / TICK


def rss(pid):
    return int(open("/proc/%d/statm" % pid).read().split()[1]) * 4096


def trial(index, program, period, policy):
    words = PROGRAMS[program]
    port = 19100 + index
    if program == "axum":
        words = words + ["127.0.0.1:%d" % port]
    # Nobody reads what the server prints.
    stdout = subprocess.DEVNULL if program == "axum" else subprocess.PIPE
    subject = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.DEVNULL, text=True)
    if program != "axum":
        subject.stdout.readline()
    time.sleep(2)
    log = "%s/%d.jsonl" % (home, index)
    attached = subprocess.Popen([lowtide, "attach", str(subject.pid), "-p", policy, "--log", log], stderr=subprocess.DEVNULL)

    def burst():
        if program == "axum":
            url = "http://127.0.0.1:%d/?server=axum&expire=1000" % port
            subprocess.run([lowtide, "load", url, "--http2", "-c", "8", "-m", "5000"], check=True, stdout=subprocess.DEVNULL)
        else:
            subject.stdin.write("burst\n")
            subject.stdin.flush()
            subject.stdout.readline()

    samples, durations = [], []
    next_burst = time.monotonic() + index * period / 40
    while next_burst < end:
        while (now := time.monotonic()) < min(next_burst, end):
            if durations:
                samples.append((round(now, 2), rss(subject.pid)))
            time.sleep(0.2)
        if now >= end:
            break
        begin = time.monotonic()
        burst()
        durations.append(round(time.monotonic() - begin, 3))
        next_burst += period
    result = {
        "program": program, "period_s": period, "policy": policy, "bursts": len(durations),
        "burst_s": round(sum(durations) / len(durations), 3), "idle_s": round(len(samples) * 0.2, 1),
        "least_rss": min(size for _, size in samples), "mean_idle_rss": sum(size for _, size in samples) // len(samples),
        "cpu_s": cpu_s(subject.pid), "minor_faults": int(fields(subject.pid)[7]), "lowtide_cpu_s": cpu_s(attached.pid),
    }
    attached.send_signal(signal.SIGTERM)
    attached.wait()
    subject.kill()
    subject.wait()
    acts = [json.loads(line) for line in open(log)] if os.path.exists(log) else []
    result["releases"] = sum(act["event"] == "act" and act["returned_bytes"] > 0 for act in acts)
    result["longest_pause_s"] = max([act["longest_pause_s"] for act in acts], default=0)
    with printing:
        print(json.dumps(result), flush=True)


trials = [(program, period, policy) for program in sys.argv[5:] or PROGRAMS for period in PERIODS for policy in POLICIES]
threads = [threading.Thread(target=trial, args=(index, *one)) for index, one in enumerate(trials)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
