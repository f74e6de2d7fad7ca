"""Runs the programs of crates/leaks/tests/live/subject.c under `lowtide leaks`, beside their own counts. Prints JSON lines.

    run.py LOWTIDE SUBJECT [PART …]      parts: found, intervals, before, level
"""

import json
import subprocess
import sys
import threading
import time

lowtide, subject, *parts = sys.argv[1:]
parts = parts or ["found", "intervals", "before", "level"]
lock = threading.Lock()


def watch(part, words, duration, every, warm, snapshots=None, blocks=None):
    """Watches a program, and prints what was found beside the truth."""
    program = subprocess.Popen([subject, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask():
        program.stdin.write("\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    time.sleep(warm)
    before = ask()
    counts, is_over = [before], threading.Event()

    def poll():
        while not is_over.wait(0.1):
            counts.append(ask())

    poller = threading.Thread(target=poll)
    poller.start()
    if snapshots:
        command = [snapshots, str(program.pid), str(int(duration / every) + 1), str(every), str(blocks)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        report = json.loads(output.splitlines()[-1])
    else:
        command = [lowtide, "leaks", "--json", str(program.pid), "--every", f"{every}s", "--duration", f"{duration}s"]
        report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    is_over.set()
    poller.join()
    program.kill()
    program.wait()
    bad = [group for group in report["groups"] if group["verdict"] not in ("level", "filling")]

    def lost_at(seconds):
        """What it had lost so many seconds after the first snapshot."""
        at = before["seconds"] + seconds
        for early, late in zip(counts, counts[1:]):
            if early["seconds"] <= at <= late["seconds"]:
                part = (at - early["seconds"]) / (late["seconds"] - early["seconds"])
                return early["lost"] + part * (late["lost"] - early["lost"])
        return counts[-1]["lost"]

    # The time in which the survivors were allocated.
    youngest = min((group["age_s"]["youngest"] for group in bad), default=report["elapsed_s"] / 2)
    window = report["elapsed_s"] - youngest
    line = {
        "part": part,
        "program": " ".join(words),
        "verdict": report["verdict"]["kind"],
        "looks": report["looks"],
        "torn_looks": report["torn_looks"],
        "sampled_share": report["sampled_share"],
        "cpu_s": round(report["cpu_s"], 3),
        "lost_per_s": round((lost_at(window) - lost_at(0)) / window, 3) if window else None,
        "lost_before": before["lost"],
        "groups": [
            {
                "verdict": group["verdict"],
                "size_bytes": group["size_bytes"],
                "count": group["count"],
                "per_s": round(group["bytes_per_hour"] / 3600 / (group["bytes"] / group["count"]), 3),
                "interval_per_s": [round(end / 3600 / (group["bytes"] / group["count"]), 3) for end in group["bytes_per_hour_interval"]],
                "because": group["because"],
            }
            for group in bad
        ],
    }
    with lock:
        print(json.dumps(line), flush=True)


def at_once(runs, most):
    """Does runs side by side: counts are compared, not times."""
    gate = threading.Semaphore(most)

    def one(run):
        with gate:
            watch(*run)

    threads = [threading.Thread(target=one, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if "found" in parts:
    # 200,000 allocations a second, of which one of 10,000 is lost.
    for duration in (40, 60):
        watch("found", ["mix", "100000", "10000"], duration, 5, 5)
if "intervals" in parts:
    snapshots = lowtide.replace("/lowtide", "/examples/snapshots")
    at_once([("intervals", ["mix", "20000", "400"], 24, 2, 3 + n / 10, snapshots, 20000) for n in range(20)], 5)
if "before" in parts:
    watch("before", ["lost_before", "2000", "500000000"], 40, 4, 20)
if "level" in parts:
    names = ["recent 500", "zeroed 2000", "refill 3000", "warm_up 2000", "double_buffer 5000", "arenas", "grow 3000", "tagged 500"]
    at_once([("level", name.split(), 60, 3, 3) for name in names], 4)
