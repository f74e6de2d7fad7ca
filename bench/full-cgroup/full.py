#!/usr/bin/env python3
"""Does a nearly full memory cgroup make an allocator return memory? A program fills a map of vectors and drops it.
Then the limit of its cgroup is set 8 MiB above its use, and a second process in the cgroup needs 64 MiB. Prints a
JSON line for each allocator: RSS and LazyFree of the program before and after, and how much the second process got.

Two more cases: memory that a program has freed with MADV_FREE, and glibc under `lowtide attach -p pressure`.

Usage: full.py SUBJECT CGROUP LOWTIDE     SUBJECT is subjects/containers, a release build; CGROUP is a directory of
cgroup v1's memory controller in which directories can be created. The allocators' libraries are those that `lowtide study`
unpacks in /var/cache/lowtide."""

import ctypes
import glob
import json
import os
import subprocess
import sys
import time

subject, parent, lowtide = sys.argv[1:]
MIB = 1 << 20
STEP, NEEDED, ROOM = 4 * MIB, 64 * MIB, 8 * MIB
cgroup = os.path.join(parent, "lowtide-full")


def library(name):
    return glob.glob(f"/var/cache/lowtide/{name}")[0]


CASES = [
    ("glibc", {}),
    ("jemalloc", {"LD_PRELOAD": library("libjemalloc-*.so")}),
    ("jemalloc, nothing decays", {"LD_PRELOAD": library("libjemalloc-*.so"), "MALLOC_CONF": "dirty_decay_ms:-1"}),
    ("mimalloc2", {"LD_PRELOAD": library("libmimalloc2-*.so")}),
    ("mimalloc", {"LD_PRELOAD": library("libmimalloc-*.so")}),
    ("tcmalloc", {"LD_PRELOAD": "libtcmalloc.so.4"}),
    ("MADV_FREE", {}),
    ("glibc, lowtide attach -p pressure", {}),
]
# Maps 256 MiB, writes to them, and frees them lazily.
LAZY = """
import ctypes, mmap, time
memory = mmap.mmap(-1, 256 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 1, 256 << 20)
memory.madvise(mmap.MADV_FREE)
print("dropped", flush=True)
time.sleep(1000)
"""


def write(name, value):
    with open(os.path.join(cgroup, name), "w") as file:
        file.write(str(value))


def read(name):
    with open(os.path.join(cgroup, name)) as file:
        return int(file.read())


def memory(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        sizes = dict(line.split(":") for line in list(file)[1:])
    return {key: int(sizes[key].split()[0]) * 1024 for key in ("Rss", "LazyFree")}


def eater():
    """Runs in the child: joins the cgroup, is the first to be killed, and touches memory step by step."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    write("cgroup.procs", os.getpid())
    held = []
    for _ in range(NEEDED // STEP):
        block = ctypes.create_string_buffer(STEP)
        ctypes.memset(block, 1, STEP)
        held.append(block)
        time.sleep(0.5)
        print(len(held) * STEP, flush=True)


if os.environ.get("EATER"):
    eater()
    sys.exit()

for case, variables in CASES:
    os.mkdir(cgroup)
    words = [subject, "mode=map-of-vec", "rounds=1", "pause=3000", "until=dropped"]
    if case == "MADV_FREE":
        words = [sys.executable, "-c", LAZY]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables},
        preexec_fn=lambda: write("cgroup.procs", os.getpid()),
    )
    try:
        for line in process.stdout:
            if line.startswith("dropped"):
                break
        before = memory(process.pid)
        keeper = None
        if "attach" in case:
            keeper = subprocess.Popen([lowtide, "attach", "-p", "pressure", str(process.pid)], stderr=subprocess.PIPE)
            time.sleep(3)
        limit = read("memory.usage_in_bytes") + ROOM
        write("memory.limit_in_bytes", limit)
        second = subprocess.run([sys.executable, *sys.argv], stdout=subprocess.PIPE, text=True, env={**os.environ, "EATER": "1"})
        got = [int(line) for line in second.stdout.split()]
        time.sleep(1)
        print(json.dumps({
            "case": case, "rss_before": before["Rss"], "lazyfree_before": before["LazyFree"], "limit": limit,
            "second_got": got[-1] if got else 0, "second_needed": NEEDED, "second_exit": second.returncode,
            "rss_after": memory(process.pid)["Rss"], "lives": process.poll() is None,
        }), flush=True)
        if keeper:
            keeper.terminate()
            keeper.wait()
    finally:
        process.kill()
        process.wait()
        os.rmdir(cgroup)
