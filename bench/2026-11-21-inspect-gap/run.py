#!/usr/bin/env python3
"""The longest gap of a thread that maps, touches and unmaps memory: in windows with an inspection of its
process, alternating with as many without, in a drawn order.
   cargo build --release && bench/2026-11-21-inspect-gap/run.py > summary.txt"""
import json, os, random, statistics, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
lowtide = os.environ.get("LOWTIDE", os.path.join(here, "../../target/release/lowtide"))
pairs = int(os.environ.get("PAIRS", "100"))
work = tempfile.mkdtemp()
binary = os.path.join(work, "target")
subprocess.run(["cc", "-O2", "-pthread", "-o", binary, os.path.join(here, "target.c")], check=True)
target = subprocess.Popen([binary, "512"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
target.stdout.readline()
draw = random.Random(0)


def tell():
    target.stdin.write("\n")
    target.stdin.flush()


def window(kind):
    tell()
    begin = time.monotonic()
    told = None
    if kind == "inspect":
        out = subprocess.run([lowtide, "inspect", "--json", str(target.pid)], capture_output=True, text=True, check=True)
        told = json.loads(out.stdout)
    else:
        # The same program, looking at a process that has nothing: what starting it costs is in both.
        subprocess.run([lowtide, "inspect", "--json", str(idle.pid)], capture_output=True, check=True)
    rest = 0.25 - (time.monotonic() - begin)
    time.sleep(max(0, rest))
    tell()
    gap = float(target.stdout.readline())
    return gap, told


idle = subprocess.Popen(["sleep", "100000"])
rows = []
with open(os.path.join(here, "raw.jsonl"), "w") as raw:
    for pair in range(pairs):
        order = ["inspect", "without"]
        draw.shuffle(order)
        row = {"pair": pair, "order": order}
        for kind in order:
            gap, told = window(kind)
            row[kind + "_us"] = gap
            if told:
                row.update(elapsed_s=told["elapsed_s"], cpu_s=told["cpu_s"], rss_bytes=told["rss_bytes"])
        rows.append(row)
        raw.write(json.dumps(row) + "\n")
target.kill()
idle.kill()

differences = sorted(r["inspect_us"] - r["without_us"] for r in rows)


def p95(values):
    return sorted(values)[int(len(values) * 0.95)]


def interval(values):
    # 95 % of the median, by order statistics.
    n = len(values)
    half = 0.98 * n ** 0.5
    low, high = int(n / 2 - half), int(n / 2 + half)
    return values[max(0, low)], values[min(n - 1, high)]


with_, without = [r["inspect_us"] for r in rows], [r["without_us"] for r in rows]
low, high = interval(differences)
print(f"longest gap of the thread in a window of 250 ms, {len(rows)} pairs, in microseconds")
print(f"with an inspection: median {statistics.median(with_):.0f}, p95 {p95(with_):.0f}, longest {max(with_):.0f}")
print(f"without (the noise): median {statistics.median(without):.0f}, p95 {p95(without):.0f}, longest {max(without):.0f}")
print(f"paired difference: median {statistics.median(differences):.0f} (95 % interval {low:.0f} to {high:.0f})")
print(f"one inspection: {1000 * statistics.median(r['elapsed_s'] for r in rows):.0f} ms, "
      f"{1000 * statistics.median(r['cpu_s'] for r in rows):.0f} ms of CPU, of a process with "
      f"{statistics.median(r['rss_bytes'] for r in rows) / 2**20:.0f} MiB resident")
