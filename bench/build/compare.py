#!/usr/bin/env python3
"""CPU time of two builds of lowtide at the same work, in pairs: compare.py OLD NEW RECORD

RECORD is a record of a study, such as the one packed in a folder of bench/, unpacked."""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

OLD, NEW, RECORD = sys.argv[1:]
HERE = os.path.dirname(os.path.abspath(__file__))
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def cpu_s(command):
    def used():
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    before = used()
    subprocess.run(command, check=True, **SILENT)
    return used() - before


def pairs(name, measure, count):
    found = []
    for place in range(count):
        order = (OLD, NEW) if place % 2 == 0 else (NEW, OLD)
        one = {binary: measure(binary) for binary in order}
        found.append((one[OLD], one[NEW]))
    ratios = sorted(new / old for old, new in found)
    noise = sorted(measure(OLD) / old for old, _ in found[:3])
    print(
        f"{name}: old {statistics.median(old for old, _ in found):.4f} s, "
        f"new {statistics.median(new for _, new in found):.4f} s, "
        f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f}), "
        f"old/old {noise[0]:.2f}-{noise[-1]:.2f}",
        flush=True,
    )


with tempfile.TemporaryDirectory() as home:
    program = os.path.join(home, "mixed")
    subprocess.run(["cc", "-O1", "-o", program, os.path.join(HERE, "mixed.c")], check=True)
    report = [RECORD, "--force"]
    pairs("report --html", lambda b: cpu_s([b, "report", *report, "--html", home + "/r.html"]), 9)
    pairs("report --png", lambda b: cpu_s([b, "report", *report, "--png", home + "/r.png"]), 9)

    with subprocess.Popen([program], stdout=subprocess.PIPE) as heap:
        heap.stdout.readline()

        def inspect(binary):
            command = [binary, "--json", "inspect", str(heap.pid)]
            return json.loads(subprocess.run(command, capture_output=True).stdout)["cpu_s"]

        pairs("inspect, 800 MiB", inspect, 15)
        heap.kill()

    with subprocess.Popen(
        [OLD, "demo-server", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as server:
        address = next(l.split()[2] for l in server.stdout if l.startswith("listening on "))
        url = f"http://{address}/?expire=2000"
        pairs(
            "load, 480,000 in flight",
            lambda b: cpu_s([b, "load", url, "-c", "8", "-m", "60000"]),
            9,
        )
        server.kill()
