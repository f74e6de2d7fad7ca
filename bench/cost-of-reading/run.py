#!/usr/bin/env python3
"""What reading a process costs it: run.py LOWTIDE ROUNDS SECONDS [reclaim].

Runs `faulting` (beside this file, compiled) with 1 GiB of heap and two threads. Each round measures it, in random order,
alone (twice: the noise floor), beside `inspect` in a loop, `top` and the exporter. With `reclaim`, the server is in a
memory cgroup (version 1) of 1.5 GiB, in which a reader of a file of 3 GiB keeps the kernel reclaiming pages. One JSON line
for each measurement."""

import json, os, random, subprocess, sys, time

lowtide, rounds, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
reclaim = sys.argv[4:] == ["reclaim"]
here = os.path.dirname(os.path.abspath(__file__))
group = "/sys/fs/cgroup/memory/lowtide-bench"
into = None
if reclaim:
    os.makedirs(group, exist_ok=True)
    with open(f"{group}/memory.limit_in_bytes", "w") as file:
        file.write(str(1536 << 20))

    def into():
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))


server = subprocess.Popen(["/tmp/faulting", "1024", "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=into)
assert server.stdout.readline() == "ready\n"
reader = None
if reclaim:
    path = "/var/tmp/lowtide-bench-file"
    with open(path, "wb") as file:
        for _ in range(3 << 10):
            file.write(os.urandom(1 << 10) * (1 << 10))
    # 100 MiB a second.
    code = f"""
import time
while True:
    with open({path!r}, 'rb', buffering=0) as file:
        while file.read(1 << 20): time.sleep(0.01)
"""
    reader = subprocess.Popen([sys.executable, "-c", code], preexec_fn=into)
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
pid = str(server.pid)


def beside(arm):
    if arm.startswith("alone"):
        return None
    if arm == "inspect":
        return subprocess.Popen(["sh", "-c", f"while :; do {lowtide} inspect {pid}; done"], start_new_session=True, **quiet)
    if arm == "top":
        return subprocess.Popen(["script", "-qc", f"{lowtide} top", "/dev/null"], stdin=subprocess.PIPE, start_new_session=True, **quiet)
    return subprocess.Popen([lowtide, "exporter", "--listen", "127.0.0.1:9187"], start_new_session=True, **quiet)


def faults_in_reclaim():
    if not reclaim:
        return None
    stat = dict(line.split() for line in open(f"{group}/memory.stat"))
    return int(stat["total_pgpgout"])


try:
    for number in range(rounds):
        arms = ["alone", "alone again", "inspect", "top", "exporter"]
        random.shuffle(arms)
        for arm in arms:
            other = beside(arm)
            time.sleep(2)
            before = faults_in_reclaim()
            server.stdin.write(f"{seconds}\n")
            server.stdin.flush()
            count, p50, p99, p999, most = map(float, server.stdout.readline().split())
            after = faults_in_reclaim()
            if other:
                os.killpg(other.pid, 15)
                other.wait()
            reclaimed = None if before is None else (after - before) * 4096 / seconds / 2**20
            print(json.dumps(dict(round=number, arm=arm, reclaim=reclaim, requests=int(count), p50_us=p50, p99_us=p99, p999_us=p999, max_us=most, evicted_mib_per_s=reclaimed and round(reclaimed, 1))), flush=True)
finally:
    for process in [server, reader]:
        if process:
            process.kill()
            process.wait()
    if reclaim:
        os.unlink(path)
        time.sleep(1)
        os.rmdir(group)
