#!/usr/bin/env python3
"""What lowtide costs on a machine with many cgroups: CPU time (user and system) and peak RSS of each command.

    sudo python3 bench/cgroup-ledger/many.py LOWTIDE [GROUPS] [PROCESSES]

It makes GROUPS memory cgroups below one, with a process in each of the first PROCESSES, and removes them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PLACES = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
ROOT = next(place for place in PLACES if (place / "cgroup.procs").exists()) / "lowtide-many"
EXPORTER_SECONDS = 60
PORT = 19798


def make(groups, processes):
    """Makes the groups, and processes that wait. Returns their PIDs."""
    ROOT.mkdir()
    if (ROOT / "cgroup.subtree_control").exists():
        (ROOT / "cgroup.subtree_control").write_text("+memory")
    pids = []
    for number in range(groups):
        group = ROOT / f"group-{number}"
        group.mkdir()
        if number >= processes:
            continue
        pid = os.fork()
        if pid == 0:
            signal.pause()
        (group / "cgroup.procs").write_text(str(pid))
        pids.append(pid)
    return pids


def remove(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for group in ROOT.iterdir():
        if group.is_dir():
            group.rmdir()
    ROOT.rmdir()


def cost(words, seconds=None):
    """Runs a command, until it ends or for a number of seconds. Returns its CPU time, its peak RSS in MiB, and its output."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if seconds:
        time.sleep(seconds)
        metrics = subprocess.run(["curl", "-s", f"http://127.0.0.1:{PORT}/metrics"], capture_output=True).stdout
        process.send_signal(signal.SIGINT)
    out = metrics if seconds else process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out


def main():
    lowtide = sys.argv[1]
    groups, processes = (int(sys.argv[index]) if len(sys.argv) > index else given for index, given in [(2, 10000), (3, 300)])
    pids = []
    try:
        print(f"| groups | processes in them | command | CPU, s | peak RSS, MiB | |\n|---:|---:|---|---:|---:|---|")
        for count in (1, groups):
            pids = make(count, min(count, processes))
            path = f"/{ROOT.name}"
            for name, words in {
                "top --once --by cgroup": ["top", "--once", "--json", "--by", "cgroup"],
                "inspect --cgroup, all": ["inspect", "--json", "--cgroup", path],
                "inspect --cgroup, one": ["inspect", "--json", "--cgroup", f"{path}/group-0"],
            }.items():
                cpu, rss, out = cost([lowtide, *words])
                found = json.loads(out.splitlines()[-1])
                charged = [group for group in found.get("groups", []) if group.get("charge")] if "groups" in found else None
                said = f"{len(charged)} with a charge" if charged is not None else f"{found['cgroup']['groups']} groups, {found['cgroup']['notes']}"
                print(f"| {count} | {len(pids)} | `{name}` | {cpu:.2f} | {rss:.1f} | {said} |", flush=True)
            words = [lowtide, "exporter", "--listen", f"127.0.0.1:{PORT}", "--group-by", "cgroup", "--max-groups", "10000"]
            cpu, rss, out = cost(words, EXPORTER_SECONDS)
            known = out.count(b'kind="anon"')
            print(f"| {count} | {len(pids)} | `exporter`, {EXPORTER_SECONDS} s | {cpu:.2f} | {rss:.1f} | {known} with a charge |", flush=True)
            remove(pids)
    except BaseException:
        remove(pids)
        raise


main()
