#!/usr/bin/env python3
"""What the exporter costs on a host with many processes, and how old its figures become. Prints a JSON line a minute, and a
summary.

Usage, from the root of the repository, as root: host.py LOWTIDE mixed|small MINUTES
`mixed`: 150 C programs, 40 Pythons and 10 redis, 8 GB in all, of which five change by a fifth every minute.
`small`: 2,000 processes of `sleep`."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

lowtide, kind, minutes = sys.argv[1], sys.argv[2], float(sys.argv[3])
here = os.path.dirname(os.path.abspath(__file__))
home = tempfile.mkdtemp()
os.chmod(home, 0o755)
PORT = 19797
started, sized = [], []


def start(*words):
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started.append(process)
    return process


def scrape():
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % PORT).read().decode()
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def total(metrics, name):
    return sum(value for key, value in metrics.items() if key == name or key.startswith(name + "{"))


if kind == "mixed":
    subject = home + "/subject"
    subprocess.run(["gcc", "-O2", "-o", subject, here + "/subject.c"], check=True)
    # 5 to 67 MiB, each a program of its own, so that each has a group.
    for number in range(150):
        program = "%s/program%03d" % (home, number)
        os.link(subject, program)
        sized.append(start(program, str(5 + number % 32 * 2)))
    for number in range(40):
        code = "import ssl, json, asyncio, time\nkept = [str(i) for i in range(%d)]\ntime.sleep(1e9)" % (number * 10000)
        start("python3", "-c", code)
    for number in range(10):
        start("redis-server", "--port", str(18100 + number), "--save", "", "--daemonize", "no")
        time.sleep(0.1)
        fill = "redis-cli -p %d debug populate 200000 >/dev/null" % (18100 + number)
        subprocess.run(fill, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
else:
    for number in range(2000):
        start("sleep", "100000")
time.sleep(10)

exporter = subprocess.Popen([lowtide, "exporter", "--listen", "127.0.0.1:%d" % PORT], stderr=subprocess.DEVNULL)
began = time.monotonic()
oldest, peak, ended = 0, 0, began + minutes * 60
# The programs that changed and have not been inspected since, by the moment; and the longest that one waited.
changed, waited = {}, 0


def look_at_changed():
    global waited
    metrics, now = scrape(), time.monotonic()
    for program, since in list(changed.items()):
        age = metrics.get('lowtide_inspection_age_seconds{groupname="%s"}' % program)
        if age is not None:
            waited = max(waited, now - since)
            if age < now - since - 1:
                del changed[program]


while time.monotonic() < ended:
    if sized:
        for process in sized[:5]:
            process.send_signal(signal.SIGUSR1)
            changed.setdefault(process.args[0], time.monotonic())
        sized = sized[5:] + sized[:5]
    for _ in range(12):
        time.sleep(5)
        look_at_changed()
    now = time.monotonic() - began
    metrics = scrape()
    ages = [value for key, value in metrics.items() if key.startswith("lowtide_inspection_age_seconds{")]
    status = open("/proc/%d/status" % exporter.pid).read()
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024
    oldest = max(oldest, max(ages))
    print(json.dumps({
        "minute": round(now / 60, 1),
        "processes": total(metrics, "lowtide_processes"),
        "rss_bytes": total(metrics, "lowtide_rss_bytes"),
        "uninspected": total(metrics, "lowtide_uninspected_processes"),
        "oldest_s": round(max(ages)),
        "changed_and_waiting": len(changed),
        "inspections": metrics['lowtide_exporter_inspections_total{result="done"}'],
        "cpu_s": round(metrics["lowtide_exporter_cpu_seconds_total"], 3),
        "share_of_a_core": round(metrics["lowtide_exporter_cpu_seconds_total"] / now, 5),
        "own_rss_bytes": metrics["lowtide_exporter_resident_bytes"],
    }), flush=True)
print(json.dumps({"oldest_s": round(oldest), "changed_waited_s": round(waited), "peak_bytes": peak}), flush=True)
exporter.terminate()
exporter.wait()
for process in started:
    process.kill()
for process in started:
    process.wait()
