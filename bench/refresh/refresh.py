#!/usr/bin/env python3
"""A million requests on the server of document 000 with a refresh of its runtime, on glibc with one setting or another: RSS,
allocated bytes, and what each arena holds, every two seconds. Prints a JSON line for each reading, and one at the end.

Usage: refresh.py LOWTIDE SERVER CASE...   SERVER is subjects/million-streams. A case is NAME=VALUE,NAME=VALUE of the
environment, or "plain"; with "+keep" at its end, the server does not refresh its runtime."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

lowtide, server, *cases = sys.argv[1:]
CONNECTIONS, STREAMS, EXPIRE_MS = 8, int(os.environ.get("STREAMS", 125_000)), int(os.environ.get("EXPIRE", 40_000))
PORT = 17100


def arenas(pid):
    """System bytes and free bytes of each arena, and bytes of blocks that have a mapping of their own, in MiB."""
    command = [lowtide, "inspect", "--malloc-info", str(pid)]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    found = []
    for heap in text.split("<heap nr=")[1:]:
        system = re.search(r'<system type="current" size="(\d+)"', heap)[1]
        free = re.search(r'<total type="rest" count="\d+" size="(\d+)"', heap)[1]
        found.append([int(system) >> 20, int(free) >> 20])
    mapped = re.search(r'<total type="mmap" count="\d+" size="(\d+)"', text)
    return found, mapped and int(mapped[1]) >> 20


def rss_mib(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) >> 8


def run(case):
    name, _, keeps = case.partition("+")
    settings = dict(pair.split("=") for pair in name.split(",")) if name != "plain" else {}
    figures = tempfile.NamedTemporaryFile()
    flags = [] if keeps else ["--refresh"]
    command = [server, *flags, "--figures", figures.name, f"127.0.0.1:{PORT}"]
    process = subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.DEVNULL)
    time.sleep(1)
    begin = time.monotonic()

    def reading(moment):
        with open(figures.name) as text:
            try:
                own = json.load(text)
            except ValueError:
                own = {}
        line = {"case": case, "t_s": round(time.monotonic() - begin, 1), "moment": moment, "rss_mib": rss_mib(process.pid)}
        found, mapped = arenas(process.pid)
        print(json.dumps(line | {"figures": own, "arenas_mib": found, "mapped_mib": mapped}), flush=True)

    for number in (1, 2):
        url = f"http://127.0.0.1:{PORT}/?server=axum&expire={EXPIRE_MS}"
        words = [lowtide, "--json", "load", url, "--http2", "-c", str(CONNECTIONS), "-m", str(STREAMS)]
        load = subprocess.Popen([*words, "--hold", "8s", "--timeout", "240s"], stdout=subprocess.PIPE, text=True)
        while load.poll() is None:
            reading(f"load {number}")
            time.sleep(2)
        report = json.load(load.stdout)["rounds"][0]
        counts = {key: report[key] for key in ("succeeded", "failed", "peak_in_flight")}
        print(json.dumps({"case": case, "round": number} | counts), flush=True)
        time.sleep(10)
        reading(f"settled {number}")
    inspection = subprocess.run([lowtide, "--json", "inspect", "--arenas", str(process.pid)], capture_output=True, text=True)
    ledger = json.loads(inspection.stdout)["ledger"]
    released = subprocess.run([lowtide, "--json", "release", str(process.pid)], capture_output=True, text=True)
    released = json.loads(released.stdout)
    print(json.dumps({"case": case, "ledger": ledger, "released": {key: released[key] for key in ("outcome", "returned_bytes", "rss_after_bytes")}}), flush=True)
    process.terminate()
    process.wait()


for case in cases:
    run(case)
