#!/usr/bin/env python3
"""How much memory comes back after a release, for each remedy against huge pages.

    sudo remedies.py LOWTIDE JEMALLOC DIRECTORY

Sets the system's `enabled` and `max_ptes_none`, and restores them. Prints a row for each process: MiB of RSS, and of it in huge
pages, before the release, after it, and 120 s later."""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

lowtide, jemalloc, out = sys.argv[1:4]
program = str(Path(out) / "keep")
subprocess.run(["cc", "-O2", "-o", program, Path(__file__).parent / "keep.c"], check=True)
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
CASES = {
    "glibc": {},
    "glibc, hugetlb=1": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "glibc, hugetlb=0": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"},
    "jemalloc": {"LD_PRELOAD": jemalloc, "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"},
    "jemalloc, thp:never": {"LD_PRELOAD": jemalloc, "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:never"},
    "jemalloc, thp:always": {"LD_PRELOAD": jemalloc, "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always"},
}


def sizes(pid):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return tuple(int(re.search(rf"^{key}:\s+(\d+)", text, re.M)[1]) / 1024 for key in ("Rss", "AnonHugePages"))


def setting(name, value=None):
    if value is not None:
        (SETTINGS / name).write_text(str(value))
    text = (SETTINGS / name).read_text()
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else text.strip()


def run(enabled, fills):
    setting("enabled", enabled)
    setting("khugepaged/max_ptes_none", fills)
    children = {}
    for name, environment in CASES.items():
        child = subprocess.Popen([program], env=os.environ | environment, stdout=subprocess.PIPE)
        child.stdout.readline()
        children[name] = child
    rows = {name: [sizes(child.pid)] for name, child in children.items()}
    notes = {}
    for name, child in children.items():
        ran = subprocess.run([lowtide, "release", "--untested", str(child.pid)], capture_output=True, text=True)
        text = ran.stdout + ran.stderr
        rows[name].append(sizes(child.pid))
        remedy = re.search(r"much\): (.*?) prevents that", " ".join(text.split()))
        notes[name] = remedy[1] if remedy else "–"
    time.sleep(120)
    for name, child in children.items():
        rows[name].append(sizes(child.pid))
        child.kill()
        child.wait()
        cells = " | ".join(f"{rss:.1f} ({huge:.0f})" for rss, huge in rows[name])
        print(f"| {enabled} | {fills} | {name} | {cells} | {notes[name]} |", flush=True)


was = setting("enabled"), setting("khugepaged/max_ptes_none")
print("| enabled | max_ptes_none | process | before | after the release | 120 s later | remedy that lowtide names |")
print("|---|---:|---|---:|---:|---:|---|")
try:
    for enabled in ("madvise", "always"):
        for fills in (511, 0):
            run(enabled, fills)
finally:
    setting("enabled", was[0])
    setting("khugepaged/max_ptes_none", was[1])
