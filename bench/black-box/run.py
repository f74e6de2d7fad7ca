#!/usr/bin/env python3
"""How often does the record of a black box name the owner that the killed program's own log names?

    bench/black-box/run.py target/debug/lowtide [--times N] [CASE…]

Real OOM kills by the kernel, in memory cgroups that this script makes (needs root). None is left out. Each
program counts what it holds; its last line is compared with `lowtide report --json`. The exit status is 1 if
a kill was not recognised, or a wrong owner was named."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 1 << 20
# Time for the walk after an inspection, in seconds.
WALK_S = 10
LIMIT = 200 * MIB
ROOTS = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
# The file of the limit, and the one that counts kills, in versions 1 and 2.
FILES = [("memory.limit_in_bytes", "memory.oom_control"), ("memory.max", "memory.events.local")]
ROOT, (LIMIT_FILE, KILLS_FILE) = next(found for found in zip(ROOTS, FILES) if (found[0] / "cgroup.procs").exists())
HERE = Path(__file__).resolve().parent

# Name: words of the command, and the owners that are right.
CASES = {
    "leak of 10 MB/s": (["{grow}", "blocks", "10"], ["allocated"]),
    "leak of 100 MB/s": (["{grow}", "blocks", "100"], ["allocated"]),
    "leak of 400 MB/s": (["{grow}", "blocks", "400"], ["allocated"]),
    "burst": (["{grow}", "large", "0"], ["allocated"]),
    "mappings of 100 MB/s": (["{grow}", "anonymous", "100"], ["anonymous_other"]),
    "shared memory of 100 MB/s": (["{grow}", "memfd", "100"], ["shared"]),
    "files in tmpfs, 50 MB/s": (["{grow}", "tmpfs", "50"], ["shared_unmapped"]),
    "leak of 100 MB/s beside page cache": (["{grow}", "cache", "100"], ["allocated"]),
    "freed blocks": (["{grow}", "hoard", "100"], ["reclaimable"]),
    "Python, 50 MB/s": (["python3", str(HERE / "programs/grow.py"), "50"], ["allocated"]),
    # V8's heap is one owner.
    "Node.js, 50 MB/s": (["node", "--max-old-space-size=1000", str(HERE / "programs/grow.js"), "50"], ["runtime"]),
    # With --policy pressure: half of 150 MB is free, and 100 MB of mappings come.
    "rescue at 10 MB/s": (["{grow}", "half", "10"], ["reclaimable"]),
    "rescue at 50 MB/s": (["{grow}", "half", "50"], ["reclaimable"]),
    "rescue at 100 MB/s": (["{grow}", "half", "100"], ["reclaimable"]),
    "rescue at 200 MB/s": (["{grow}", "half", "200"], ["reclaimable"]),
    "children, one each 40 ms": (["{grow}", "children", "100"], ["other_process"]),
}


def until(what, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    return None


def report(lowtide, directory):
    ran = subprocess.run([lowtide, "report", str(directory), "--json"], capture_output=True, text=True)
    return json.loads(ran.stdout) if ran.returncode == 0 else None


class Group:
    def __init__(self, number):
        self.path = ROOT / f"lowtide-bench-{os.getpid()}-{number}"
        self.path.mkdir()
        (self.path / LIMIT_FILE).write_text(str(LIMIT))

    def kills(self):
        return int((self.path / KILLS_FILE).read_text().split("oom_kill ")[1].split()[0])

    def end(self):
        def is_removed():
            for pid in (self.path / "cgroup.procs").read_text().split():
                os.kill(int(pid), 9)
            try:
                self.path.rmdir()
                return True
            except OSError:
                return False
        until(is_removed)


def once(lowtide, words, home, number, policy):
    group = Group(number)
    directory, file = home / f"box-{number}", Path(f"/dev/shm/lowtide-bench-{os.getpid()}-{number}")
    if "cache" in words:
        file = home / f"file-{number}"
    environment = {**os.environ, "GROW_FILE": str(file)}
    join = f"echo $$ > {group.path}/cgroup.procs; exec \"$@\""
    subject = subprocess.Popen(["sh", "-c", join, "sh", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    time.sleep(0.3)
    attach = subprocess.Popen([lowtide, "attach", "-p", policy, "--black-box", str(directory), str(subject.pid)], stderr=subprocess.DEVNULL)
    try:
        until(lambda: (report(lowtide, directory) or {}).get("ledger"))
        begin = time.monotonic()
        subject.stdin.write(b"x\n")
        subject.stdin.flush()
        if "half" in words:
            # A service has freed its memory some time before. An inspection has seen it, and a walk can follow.
            until(lambda: ((report(lowtide, directory) or {}).get("reclaimable_bytes") or 0) > 60 * MIB)
            time.sleep(WALK_S)
            subject.stdin.write(b"x\n")
            subject.stdin.flush()
        # A killed child does not end its parent.
        until(lambda: subject.poll() is not None or group.kills() > 0, 120)
        took = time.monotonic() - begin
        time.sleep(3 if subject.poll() is None else 0)
        kills = group.kills()
        group.end()
        lines = subject.stdout.read().decode().split("\n")
        subject.wait()
        if until(lambda: attach.poll() is not None) is None:
            attach.terminate()
        attach.wait()
        return kills, took, [line.split() for line in lines if line][-1:], report(lowtide, directory) or {}
    finally:
        for process in (subject, attach):
            if process.poll() is None:
                process.kill()
        group.end() if group.path.exists() else None
        file.unlink(missing_ok=True)


def report_rescues(name, rows):
    """Prints one row: how many programs survived, and when the release began and what it returned."""
    survived = sum(bool(row[2]) and row[2][0][0] == "survived" for row in rows)
    first = [(row[3].get("releases") or [{}])[0] for row in rows]
    returned = ", ".join(str(release.get("returned_bytes", 0) // MIB) for release in first)
    print(f"| {name} | {survived} of {len(rows)} | {returned} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lowtide")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--policy", default="none")
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="black-box."))
    grow = home / "grow"
    subprocess.run(["cc", "-O1", "-w", "-o", grow, HERE / "programs/grow.c"], check=True)
    lowtide = str(Path(arguments.lowtide).resolve())
    total, is_wrong = [0, 0], False
    number = 0
    if arguments.policy != "none":
        print("| case | survived | returned (MiB) |\n|---|---|---|")
    else:
        print("| case | kills | cause | limit | owner right | named | own log, record (MiB) | last full ledger (s) |")
        print("|---|---|---|---|---|---|---|---|")
    kept_low = [name for name in CASES if name.startswith("rescue")]
    usual = [name for name in CASES if (name in kept_low) == (arguments.policy != "none")]
    for name in arguments.cases or usual:
        words, owners = CASES[name]
        words = [word.format(grow=grow) for word in words]
        rows = []
        for _ in range(arguments.times):
            number += 1
            rows.append(once(lowtide, words, home, number, arguments.policy))
        if name.startswith("rescue"):
            report_rescues(name, rows)
            continue
        right = [row for row in rows if (row[3].get("dominant") or {}).get("owner") in owners]
        named = sorted({(row[3].get("dominant") or {}).get("owner", "nothing") for row in rows})
        causes = sum(row[3].get("cause") == "oom_kill" for row in rows)
        limits = sum(row[3].get("limit_bytes") == LIMIT for row in rows)
        sizes = ", ".join(
            f"{int(row[2][0][1]) // MIB if row[2] else '?'}:{((row[3].get('dominant') or {}).get('bytes', 0)) // MIB}" for row in rows
        )
        ages = ", ".join(f"{row[3]['last_full_ledger_age_s']:.2f}" if row[3].get("last_full_ledger_age_s") is not None else "none" for row in rows)
        killed = [row for row in rows if row[0] > 0]
        named_wrongly = [row for row in killed if (row[3].get("dominant") or {}).get("owner") not in [*owners, "unknown"]]
        is_wrong |= bool(named_wrongly) or any(row[3].get("cause") != "oom_kill" for row in killed)
        total[0] += len(right)
        total[1] += len(rows)
        print(f"| {name} | {sum(row[0] > 0 for row in rows)} of {len(rows)} | {causes} | {limits} | {len(right)} | {', '.join(named)} | {sizes} | {ages} |", flush=True)
    if total[1]:
        print(f"\n{total[0]} of {total[1]} records name the right owner. Files: {home}", file=sys.stderr)
    return int(is_wrong)


sys.exit(main())
