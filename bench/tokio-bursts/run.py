#!/usr/bin/env python3
"""Bursts on the axum example of lowtide-tokio, under four allocators: resident memory 2 s after each burst.

Usage, from the root of the repository: run.py LOWTIDE SERVER [NAME…] > raw.jsonl. SERVER is the built example `axum`; the client for endless responses is
that of tokio-clients, built."""
import http.client, json, os, signal, subprocess, sys, threading, time

lowtide, server, only = sys.argv[1], sys.argv[2], sys.argv[3:]  # names of loads and allocators
# In the background, a shell makes it ignore what ends the second client.
signal.signal(signal.SIGINT, signal.default_int_handler)
PORT = 19300
ADDRESS = "127.0.0.1:%d" % PORT
ENDLESS = "bench/tokio-clients/target/release/endless"
ALLOCATORS = ["glibc", "mimalloc2", "mimalloc", "jemalloc"]
MIB = 2**20


def rss(pid):
    return int(open("/proc/%d/statm" % pid).read().split()[1]) * 4096


def child_of(pid, name):
    """The process of this name under a process, as soon as it exists."""
    while True:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if open("/proc/%s/comm" % entry).read().strip() == name and ("\nPPid:\t%d\n" % pid) in open("/proc/%s/status" % entry).read():
                    return int(entry)
            except OSError:
                pass
        time.sleep(0.05)


class Server:
    def __init__(self, allocator):
        words = [lowtide, "run", "-a", allocator, "-p", "none", "--", server, ADDRESS]
        self.run = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.run.stdout.readline()
        self.pid = child_of(self.run.pid, os.path.basename(server))
        self.connection = http.client.HTTPConnection("127.0.0.1", PORT)

    def figures(self):
        self.connection.request("GET", "/figures")
        return json.loads(self.connection.getresponse().read())

    def stop(self):
        self.run.terminate()
        self.run.wait()


def bursts(allocator, connections, streams, expire_ms, pause_s):
    """Three bursts, and a short request a second all the time."""
    one = Server(allocator)
    try:
        time.sleep(2)
        before, after, peak, is_high, marks, ended = rss(one.pid), [], 0, False, [], threading.Event()
        url = "http://%s/?expire=%d" % (ADDRESS, expire_ms)
        words = [lowtide, "load", url, "--http2", "-c", str(connections), "-m", str(streams), "--rounds", "3", "--pause", "%ds" % pause_s,
                 "--idle-close", "never", "--hold", "%ds" % pause_s, "--timeout", "400s", "--json"]
        # Short requests, one a second, on connections that stay open.
        trickle = subprocess.Popen([lowtide, "load", "http://%s/" % ADDRESS, "--http2", "-c", "8", "-m", "1", "--rate", "1", "-z", "1h",
                                    "--idle-close", "never", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        load = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        report = []
        reader = threading.Thread(target=lambda: report.append(load.stdout.read()))
        reader.start()
        total, figures = connections * streams, one.figures()
        while load.poll() is None or marks:
            now, figures = time.monotonic(), one.figures()
            peak = max(peak, rss(one.pid))
            if figures["in_flight"] > total / 2:
                is_high = True
            # This request is one of them, and so is one a second.
            elif is_high and figures["in_flight"] <= 20:
                is_high = False
                marks.append(now + 2)
            if marks and now >= marks[0]:
                marks.pop(0)
                after.append(rss(one.pid))
            time.sleep(0.1)
        reader.join()
        rounds = json.loads(report[0])["rounds"]
        trickle.send_signal(signal.SIGINT)
        trickled = json.loads(trickle.communicate()[0])["rounds"]
        final = one.figures()
        print(json.dumps({"allocator": allocator, "connections": connections, "streams": streams, "before": before, "peak": peak, "after": after,
                          "requests": sum(each["requests"] for each in rounds), "failed": sum(each["failed"] for each in rounds),
                          "trickle": sum(each["requests"] for each in trickled), "trickle_failed": sum(each["failed"] for each in trickled),
                          "figures": final}), flush=True)
    finally:
        one.stop()


def endless(allocator):
    """Eight connections, each with an endless response and 10,000 requests."""
    one = Server(allocator)
    try:
        time.sleep(2)
        before = rss(one.pid)
        client = subprocess.Popen([ENDLESS, ADDRESS], stdout=subprocess.PIPE, text=True)
        requests = json.loads(client.stdout.readline())
        time.sleep(2)
        after, figures = rss(one.pid), one.figures()
        cut = json.loads(client.stdout.readline())
        client.wait()
        print(json.dumps({"allocator": allocator, "endless": 8, "before": before, "after": [after], **requests, **cut, "figures": figures}),
              flush=True)
    finally:
        one.stop()


for allocator in [name for name in ALLOCATORS if name in only] or ALLOCATORS:
    if not set(only) - set(ALLOCATORS) or "million" in only:
        bursts(allocator, 8, 125000, 20000, 6)
    if not set(only) - set(ALLOCATORS) or "narrow" in only:
        bursts(allocator, 1000, 200, 5000, 6)
    if not set(only) - set(ALLOCATORS) or "endless" in only:
        endless(allocator)
