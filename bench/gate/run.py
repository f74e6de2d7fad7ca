#!/usr/bin/env python3
"""Compares programs with themselves, and with versions that keep 1 to 20 % more.

    python3 run.py LOWTIDE OUT [--same N] [--changed N] [--parallel N] [--minutes N]

Several comparisons run at once, so each has the others as its load. OUT/raw.jsonl has a line for each
comparison, and OUT/summary.txt the tables. Run it again with the same OUT to add to them.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
SIZES = [1, 2, 3, 5, 8, 10, 15, 20]
# Name: the command for KIB that stay, the KIB, and the KIB of settled memory beside them, of which
# the change is a percentage too.
SUBJECTS = {
    "c, 1 thread": (["{out}/cache", "{kib}", "1", "1024"], 24 << 10, 14 << 10),
    "c, 4 threads": (["{out}/cache", "{kib}", "4", "240"], 24 << 10, 54 << 10),
    "python": (["python3", "{out}/cache.py", "{kib}"], 16 << 10, 48 << 10),
    "node": (["node", "{out}/cache.js", "{kib}"], 16 << 10, 57 << 10),
}
lock = threading.Lock()


def command(words, out, kib):
    return [word.format(out=out, kib=kib) for word in words]


def compare(lowtide, out, number, name, percent):
    words, kib, beside = SUBJECTS[name]
    more = kib + (kib + beside) * percent // 100
    record = out / f"record-{number}"
    shutil.rmtree(record, ignore_errors=True)
    old = command(words, out, kib)
    if percent == 0 and number % 2 and name.startswith("c,"):
        # The same program in another file, as a build of the base is.
        old[0] += "-copy"
    study = [
        lowtide, "study", "--json", "--against", " ".join(old), "--phase", "load_end=log:done",
        "--settle", "1s", "--interval", "200ms", "--timeout", "4m", "--seed", str(random.randrange(1 << 32)),
        "--fail-on", "worse", "--fail-on", "difference>5%", "--output", str(record),
        "--", *command(words, out, more),
    ]  # fmt: skip
    began, load = time.time(), os.getloadavg()[0]
    ran = subprocess.run(study, capture_output=True, text=True, timeout=3600)
    line = {"number": number, "subject": name, "percent": percent, "exit": ran.returncode,
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
            "took_s": round(time.time() - began, 1)}  # fmt: skip
    try:
        line |= json.loads(ran.stdout)["comparison"] | {"against": None}
        trials = json.loads(ran.stdout)["trials"]
        line["settled"] = [[t["treatment"]["tune"], t["settled_bytes"]] for t in trials]
    except (ValueError, TypeError, KeyError):
        line["error"] = ran.stderr[-600:]
    with lock, open(out / "raw.jsonl", "a") as raw:
        raw.write(json.dumps(line) + "\n")
    shutil.rmtree(record, ignore_errors=True)
    return line


def jobs(same, changed):
    """In turn: equal versions of each subject, and each size of change."""
    names = list(SUBJECTS)
    equal = [(names[i % len(names)], 0) for i in range(same)]
    sizes = [(names[i % len(names)], SIZES[i // len(names) % len(SIZES)]) for i in range(changed)]
    order = []
    while equal or sizes:
        order += equal[:5] + sizes[:2]
        equal, sizes = equal[5:], sizes[2:]
    return order


def summary(lines):
    # A study that failed (1) compares nothing.
    failed = sum(line["exit"] not in (0, 99) for line in lines)
    lines = [line for line in lines if line["exit"] in (0, 99)]
    rows = ["change   measured   comparisons   worse   same   not resolved   better   difference>5%   owner named right"]
    for percent in [0, *SIZES]:
        these = [line for line in lines if line["percent"] == percent]
        if not these:
            continue
        count = lambda verdict: sum(line["verdict"] == verdict for line in these)
        crossed = sum(over(line, 0.05) for line in these)
        worse = [line for line in these if line["verdict"] == "worse"]
        right = sum(any(is_right(line, grown) for grown in line["grew"]) for line in worse)
        found = sorted(100 * line["difference_bytes"]["median"] / line["base_bytes"] for line in these if line["base_bytes"])
        rows.append(
            f"{percent:4} %  {found[len(found) // 2]:7.1f} %  {len(these):11}  {count('worse'):6}  {count('same'):5}  {count('not_resolved'):13}"
            f"  {count('better'):7}  {crossed:14}   {f'{right} of {len(worse)}' if worse else '–'}"
        )
    rows += ["", "equal versions, by subject: comparisons, worse, better, same, not resolved; greatest median "
             "difference and widest interval in % of the older version; peak worse; an owner worse"]  # fmt: skip
    for name in SUBJECTS:
        these = [line for line in lines if line["percent"] == 0 and line["subject"] == name]
        if not these:
            continue
        count = lambda verdict: sum(line["verdict"] == verdict for line in these)
        known = [line for line in these if line["difference_bytes"] and line["base_bytes"]]
        share = lambda line, bytes: 100 * bytes / line["base_bytes"]
        middle = max(abs(share(line, line["difference_bytes"]["median"])) for line in known)
        width = max(
            share(line, line["difference_bytes"]["high"] - line["difference_bytes"]["low"]) for line in known
        )
        peak = sum(line["peak"]["verdict"] == "worse" for line in these)
        owner = sum(any(o["verdict"] == "worse" for o in line["by_owner"]) for line in these)
        rows.append(
            f"{name:13} {len(these):4} {count('worse'):4} {count('better'):4} {count('same'):4} "
            f"{count('not_resolved'):4}   {middle:6.2f} %  {width:6.2f} %   {peak}  {owner}"
        )
    equal = [line for line in lines if line["percent"] == 0]
    rows += ["", f"equal versions whose differences all exceed the margin, so that another order could have been an alarm:"
             f" {sum(map(could_alarm, equal))} of {len(equal)}"]  # fmt: skip
    loads = sorted(line["load"][1] for line in lines)
    rows += ["", f"comparisons that failed, because a trial did, and are not counted: {failed}"]
    rows += ["", f"load average at the end of a comparison: {loads[0]} to {loads[-1]}, median {loads[len(loads) // 2]};"
             f" {os.cpu_count()} CPUs"]  # fmt: skip
    return "\n".join(rows) + "\n"


def could_alarm(line):
    settled = [bytes for _, bytes in line["settled"]]
    pairs = [pair for pair in zip(settled[::2], settled[1::2]) if None not in pair]
    return all(abs(a - b) > line["margin_bytes"] for a, b in pairs)


def over(line, share):
    difference = line["difference_bytes"]
    return line["repeats"] >= 10 and difference["low"] > share * line["base_bytes"]


def is_right(line, grown):
    # What stays is in blocks of malloc, and in CPython also in its arenas.
    is_python = line["subject"] == "python" and (grown["name"] or "").startswith("CPython")
    return grown["owner"] == "allocated" or is_python


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lowtide")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--same", type=int, default=150)
    parser.add_argument("--changed", type=int, default=64)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=1e9)
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    raw = out / "raw.jsonl"
    known = [json.loads(line) for line in raw.read_text().splitlines()] if raw.exists() else []
    subprocess.run(["cc", "-O1", "-pthread", "-o", out / "cache", HERE / "programs/cache.c"], check=True)
    shutil.copy(out / "cache", out / "cache-copy")
    for script in ["cache.py", "cache.js"]:
        shutil.copy(HERE / "programs" / script, out)
    lowtide = str(pathlib.Path(options.lowtide).resolve())
    deadline = time.time() + options.minutes * 60
    todo = jobs(options.same, options.changed)[len(known):]
    with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
        def one(job):
            if time.time() < deadline:
                place, (name, percent) = job
                compare(lowtide, out, place, name, percent)
        for failure in pool.map(one, enumerate(todo, len(known))):
            assert failure is None
    lines = [json.loads(line) for line in raw.read_text().splitlines()]
    (out / "summary.txt").write_text(summary(lines))
    sys.stdout.write(summary(lines))
    alarms = [line for line in lines if line["percent"] == 0 and line["exit"] == 99]
    sys.exit(1 if alarms else 0)


if __name__ == "__main__":
    main()
