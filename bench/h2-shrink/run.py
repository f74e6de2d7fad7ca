#!/usr/bin/env python3
"""A server on h2 as it is, and on h2 whose tables shrink: CPU time of a request, and memory after a burst.

Usage: run.py LOWTIDE PLAIN PATCHED > raw.jsonl. PLAIN and PATCHED are builds of subjects/million-streams, the second with the patch."""
import json, os, subprocess, sys, time

lowtide, plain, patched = sys.argv[1:4]
PORT = 19600
TICK = os.sysconf("SC_CLK_TCK")
PAIRS = 20


class Server:
    def __init__(self, words):
        self.process = subprocess.Popen([*words, "127.0.0.1:%d" % PORT], stdout=subprocess.DEVNULL)
        time.sleep(0.7)

    def cpu_s(self):
        return sum(int(field) for field in open("/proc/%d/stat" % self.process.pid).read().rsplit(") ", 1)[1].split()[11:13]) / TICK

    def rss_mib(self):
        return int(open("/proc/%d/statm" % self.process.pid).read().split()[1]) * 4096 / 2**20

    def stop(self):
        self.process.kill()
        self.process.wait()


def load(*words):
    out = subprocess.run([lowtide, "load", "http://127.0.0.1:%d/%s" % (PORT, words[0]), "--http2", "-c", "8", *words[1:], "--json"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return json.loads(out)["rounds"]


def cpu_us(words, streams, requests, query=""):
    server = Server(words)
    before = server.cpu_s()
    rounds = load(query, "-m", str(streams), "-n", str(requests))
    took = server.cpu_s() - before
    server.stop()
    assert all(each["failed"] == 0 for each in rounds)
    return took / requests * 1e6


def memory(words):
    """Memory 3 s after three bursts of 200,000 streams, while all connections are open."""
    server = Server(words)
    load = subprocess.Popen([lowtide, "load", "http://127.0.0.1:%d/?expire=6000" % PORT, "--http2", "-c", "8", "-m", "25000", "--rounds", "3", "--pause", "4s",
                             "--idle-close", "never", "--hold", "6s", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lowest = []
    while load.poll() is None:
        lowest.append(server.rss_mib())
        time.sleep(0.2)
    # The last samples are those of the linger, with all connections open.
    after = min(lowest[-15:])
    report = json.loads(load.stdout.read())["rounds"]
    server.stop()
    return {"peak_mib": max(lowest), "after_mib": after, "failed": sum(each["failed"] for each in report)}


for name, words in [("plain", [plain]), ("patched", [patched]), ("plain, release", [plain, "--keep", "sweep,release"]),
                    ("patched, release", [patched, "--keep", "sweep,release"])]:
    print(json.dumps({"server": name, **memory(words)}), flush=True)
# 100 streams never make a table large. 5,000 streams at once make it large and empty it again, each 40,000 requests.
for kind, streams, requests, query in [("steady", 100, 300000, ""), ("waves", 5000, 200000, "?expire=200")]:
    for pair in range(PAIRS):
        order = [plain, patched, plain] if pair % 2 == 0 else [patched, plain, plain]
        times = [cpu_us([server], streams, requests, query) for server in order]
        first = times[0] if pair % 2 == 0 else times[1]
        second = times[1] if pair % 2 == 0 else times[0]
        print(json.dumps({"kind": kind, "plain_us": first, "patched_us": second, "again_us": times[2]}), flush=True)
