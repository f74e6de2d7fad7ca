#!/usr/bin/env python3
"""Two exporters, one of them with --remote-files, beside a fork bomb, slow file systems and a scrape storm.

    sudo soak.py LOWTIDE MINUTES DIRECTORY

It writes a line every 10 s to DIRECTORY/soak.jsonl, and prints the summary at the end. What disturbs runs under the nice
value 5, so that a machine with other work stays usable."""
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

here = Path(__file__).parent
fixtures = here.parents[1] / "crates/cli/tests/fixtures"
lowtide, minutes, out = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]).resolve()
out.mkdir(parents=True, exist_ok=True)
children, stop = [], threading.Event()
# These programs wait for their input to end.
QUIET = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}


def build(source, *flags):
    program = out / source.stem
    subprocess.run(["cc", "-O2", "-o", program, source, *flags], check=True)
    return str(program)


def start(words, **more):
    children.append(subprocess.Popen(words, **more))
    return children[-1]


def slow(program, memory, name, delay_ms):
    """Starts a program whose own file is read slowly; 0: never."""
    home = out / name
    mount = home / "mount"
    mount.mkdir(parents=True, exist_ok=True)
    trigger = home / "slow"
    trigger.unlink(missing_ok=True)
    start([program, mount, memory, str(delay_ms), trigger, "blocks:30", "keep:10"], **QUIET)
    time.sleep(2)
    trigger.touch()


def ask(port, path, seconds=30):
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as link:
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := link.recv(1 << 16):
            answer += part
    status = int(answer.split(b" ", 2)[1])
    return status, answer.decode(errors="replace"), time.monotonic() - began


class Exporter:
    def __init__(self, *flags):
        self.child = start([lowtide, "exporter", "--listen", "127.0.0.1:0", *flags], stderr=subprocess.PIPE, text=True)
        for line in self.child.stderr:
            if found := re.search(r"://127\.0\.0\.1:(\d+)", line):
                break
        self.port = int(found[1])
        threading.Thread(target=self.child.stderr.read, daemon=True).start()

    def state(self):
        row = {}
        try:
            row["healthz"] = ask(self.port, "/healthz")[0]
            status, text, row["scrape_s"] = ask(self.port, "/metrics")
        except OSError as error:
            return row | {"failed": str(error)}
        def values(name):
            return [(line, float(line.rsplit(" ", 1)[1])) for line in text.splitlines() if line.startswith(name)]
        ages = [v for _, v in values("lowtide_inspection_age_seconds{")]
        memory = values("lowtide_resident_bytes{")
        row |= {
            "status": status,
            "inspection_age_s": max(ages, default=None),
            "scan_age_s": values("lowtide_exporter_scan_age_seconds")[0][1],
            "uninspected": sum(v for _, v in values("lowtide_uninspected_processes{")),
            "slow": sum(v for line, v in values("lowtide_unreadable_processes{") if 'reason="slow"' in line),
            "hoard_bytes": sum(v for line, v in memory if "/memory\"" in line and "reclaimable" in line),
            "cpu_s": values("lowtide_exporter_cpu_seconds")[0][1],
            "serving_cpu_s": values("lowtide_exporter_serving_cpu_seconds")[0][1],
        }
        pid = self.child.pid
        status = Path(f"/proc/{pid}/status").read_text()
        row["rss_kib"] = int(re.search(r"VmRSS:\s+(\d+)", status)[1])
        row["threads"] = int(re.search(r"Threads:\s+(\d+)", status)[1])
        row["files"] = len(os.listdir(f"/proc/{pid}/fd"))
        row["children"] = len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return row


def storm(port, counts):
    """Scrapes again and again."""
    while not stop.is_set():
        try:
            counts["served" if ask(port, "/metrics", 60)[0] == 200 else "refused"] += 1
        except OSError:
            counts["failed"] += 1
        time.sleep(random.random() * 0.2)


def drip(port):
    """Holds 300 connections, and sends each of them a byte of a request now and then."""
    links = []
    while not stop.is_set():
        while len(links) < 300:
            link = socket.socket()
            link.setblocking(False)
            link.connect_ex(("127.0.0.1", port))
            links.append(link)
        kept = []
        for link in links:
            try:
                link.send(b"G")
                kept.append(link)
            except BlockingIOError:
                kept.append(link)
            except OSError:
                link.close()
        links = kept
        time.sleep(1)


def main():
    memory = build(fixtures / "memory.c", "-pthread")
    slow_files = build(fixtures / "slow_files.c")
    forks = build(here / "forks.c")
    exporters = {"default": Exporter(), "remote-files": Exporter("--remote-files")}
    os.nice(5)
    for _ in range(3):
        start([memory, "blocks:30", "keep:10"], **QUIET)
    for name, delay_ms in (("slow-50", 50), ("slow-500", 500), ("silent", 0)):
        slow(slow_files, memory, name, delay_ms)
    start([forks, "300", "600"])
    counts = dict.fromkeys(("served", "refused", "failed"), 0)
    for exporter in exporters.values():
        threading.Thread(target=drip, args=(exporter.port,), daemon=True).start()
        for _ in range(4):
            threading.Thread(target=storm, args=(exporter.port, counts), daemon=True).start()
    began, rows = time.monotonic(), []
    with open(out / "soak.jsonl", "w") as log:
        while time.monotonic() - began < minutes * 60 and not stop.is_set():
            row = {"t_s": round(time.monotonic() - began, 1), "load": os.getloadavg()[0], "storm": dict(counts)}
            row |= {name: exporter.state() for name, exporter in exporters.items()}
            rows.append(row)
            log.write(json.dumps(row) + "\n")
            log.flush()
            stop.wait(10)
    stop.set()
    ended = {name: exporter.child.poll() for name, exporter in exporters.items()}
    print(f"{rows[-1]['t_s'] / 60:.0f} min, {len(rows)} readings; exporters ended: {ended}; storm: {counts}")
    for name in exporters:
        ok = [row[name] for row in rows if "failed" not in row[name]]
        print(f"{name}: {len(rows) - len(ok)} readings failed; healthz not 200: {sum(r['healthz'] != 200 for r in ok)}")
        for key in ("inspection_age_s", "scan_age_s", "scrape_s", "uninspected", "slow", "hoard_bytes", "rss_kib", "threads", "files", "children"):
            values = sorted(r[key] for r in ok if r[key] is not None)
            print(f"  {key}: median {values[len(values) // 2]:.4g}, largest {values[-1]:.4g}, last {ok[-1][key]:.4g}")
        seconds = rows[-1]["t_s"] - rows[0]["t_s"]
        for key in ("cpu_s", "serving_cpu_s"):
            print(f"  {key}: {(ok[-1][key] - ok[0][key]) / seconds:.4f} of a core")


signal.signal(signal.SIGTERM, lambda *_: stop.set())
try:
    main()
finally:
    stop.set()
    for child in children:
        child.terminate()
    for child in children:
        child.wait()
