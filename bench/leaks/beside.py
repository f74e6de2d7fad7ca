#!/usr/bin/env python3
"""One program that leaks, under memleak (bcc's, built on libbpf), heaptrack and `lowtide leaks` with stacks: the rank of the stack
that leaks, after what time, and what it costs the program. Prints a JSON line for each run.

Usage, as root: beside.py LOWTIDE SUBJECT MEMLEAK...  SUBJECT is crates/leaks/tests/live/subject.c, built with -O1 -g
-fno-inline -fno-omit-frame-pointer, since memleak follows frame pointers. MEMLEAK is the command of memleak."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

lowtide, subject, *memleak = sys.argv[1:]
SECONDS = 60


class Program:
    """The subject: two threads with per_thread steps a second each. One step in 10,000 loses 72 bytes."""

    def __init__(self, per_thread, **others):
        words = [subject, "mix", str(per_thread), "10000"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, text=True, **pipes, **others)

    def ask(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit("the program has ended")
            if line.startswith("{"):
                return json.loads(line)

    def per_second(self, seconds):
        """Steps a second, over so many seconds. The program counts every 64th."""
        early = self.ask()
        time.sleep(seconds)
        late = self.ask()
        return round(64 * (late["steps"] - early["steps"]) / (late["seconds"] - early["seconds"]))

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def speed(program, results):
    """Measures the speed of the program from 10 s to 50 s after a tool starts; returns the thread."""
    def measure():
        time.sleep(10)
        results["steps_per_s"] = program.per_second(40)
    thread = threading.Thread(target=measure)
    thread.start()
    return thread


def alone(per_thread):
    program = Program(per_thread)
    time.sleep(5)
    line = {"tool": "none", "steps_per_s": program.per_second(40)}
    program.end()
    return line


def with_lowtide(per_thread, seconds):
    program = Program(per_thread)
    time.sleep(5)
    line = {"tool": "lowtide leaks"}
    thread = speed(program, line)
    before = time.monotonic()
    command = [lowtide, "leaks", "--json", str(program.process.pid), "--every", "5s", "--stacks", "--duration", f"{seconds}s"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    thread.join()
    lost = [group for group in report["groups"] if group["verdict"] == "lost"]
    others = [group for group in report["groups"] if group["verdict"] == "growing"]
    per_s = lost[0]["bytes_per_hour"] / 3600 / (lost[0]["bytes"] / lost[0]["count"]) if lost else None
    line |= {
        "answer_after_s": round(time.monotonic() - before, 1),
        "found": [group["size_bytes"] for group in lost] == [[80, 80]],
        "found_per_s": per_s and round(per_s, 2),
        "false": len(others) + max(len(lost) - 1, 0),
        "cpu_s": round(report["cpu_s"], 2),
        "exposure": round(report["exposure"], 4),
        "sampling": report["sampling"],
    }
    stacks = [stack for group in lost for stack in group["stacks"]]
    functions = [[frame["function"] for frame in stack["frames"]] for stack in stacks]
    ranks = [rank for rank, frames in enumerate(functions, 1) if "lose" in frames]
    line |= {
        "stacks": len(stacks),
        "rank_of_the_leak": ranks[0] if ranks else None,
        "samples": [stack["samples"] for stack in stacks],
        "proof": stacks[0]["proof"] if stacks else None,
    }
    program.end()
    return line


def with_memleak(per_thread, older_s):
    program = Program(per_thread)
    time.sleep(5)
    line = {"tool": "memleak --older %d" % (older_s * 1000)}
    thread = speed(program, line)
    before = time.monotonic()
    command = [*memleak, "-p", str(program.process.pid), "-o", str(older_s * 1000), "-T", "50", str(SECONDS), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    line["answer_after_s"] = round(time.monotonic() - before, 1)
    thread.join()
    # Each stack is a line "N bytes in M allocations from stack", then its frames.
    stacks = re.split(r"\n\s*(?=\d+ bytes in \d+ allocations from stack)", "\n" + done.stdout)[1:]
    sizes = [(int(re.match(r"(\d+) bytes", stack)[1]), "lose" in stack) for stack in stacks]
    sizes.sort(reverse=True)
    ranks = [rank for rank, (_, is_leak) in enumerate(sizes, 1) if is_leak]
    line |= {"stacks": len(stacks), "rank_of_the_leak": ranks[0] if ranks else None}
    if not stacks:
        line["output"] = (done.stdout + done.stderr)[-400:]
    program.end()
    return line


def bytes_of(size):
    """A size as heaptrack prints it."""
    return float(size.rstrip("BKMG")) * {"B": 1, "K": 1e3, "M": 1e6, "G": 1e9}[size[-1]]


def with_heaptrack(per_thread):
    # The script of heaptrack takes away standard input, so that the parts that it starts are started here.
    home = tempfile.mkdtemp()
    raw, record = home + "/raw", home + "/record.gz"
    library = "/usr/lib/heaptrack/libheaptrack_preload.so"
    interpret = "/usr/lib/heaptrack/libexec/heaptrack_interpret"
    os.mkfifo(raw)
    interpreting = subprocess.Popen("%s < %s | gzip > %s" % (interpret, raw, record), shell=True)
    before = time.monotonic()
    program = Program(per_thread, env=os.environ | {"LD_PRELOAD": library, "DUMP_HEAPTRACK_OUTPUT": raw})
    line = {"tool": "heaptrack, from the start"}
    time.sleep(5)
    speed(program, line).join()
    time.sleep(max(0, SECONDS + 5 - (time.monotonic() - before)))
    truth = program.ask()
    program.end()
    interpreting.wait()
    output = subprocess.run(["heaptrack_print", "--print-leaks", "1", "--print-peaks", "0", "--print-allocators", "0",
        "--print-temporary", "0", "-f", record], capture_output=True, text=True).stdout
    line["answer_after_s"] = round(time.monotonic() - before, 1)
    line["record_bytes"] = os.path.getsize(record)
    leaks = output.split("MEMORY LEAKS", 1)[-1]
    # Each stack is a line "BYTES leaked over N calls from:", then its frames.
    parts = re.split(r"\n(\S+) leaked over \d+ calls from:\n", "\n" + leaks)[1:]
    stacks = [(bytes_of(size), re.search(r"\n    lose\n", "\n" + frames) is not None) for size, frames in zip(parts[::2], parts[1::2])]
    stacks.sort(reverse=True)
    ranks = [rank for rank, (_, is_leak) in enumerate(stacks, 1) if is_leak]
    line |= {"stacks": len(stacks), "rank_of_the_leak": ranks[0] if ranks else None, "lost": truth["lost"]}
    return line


for per_thread, seconds in ((100_000, 60), (1_000_000, 300)):
    lowtide_run = lambda rate: with_lowtide(rate, seconds)
    for run in (alone, lowtide_run, lambda rate: with_memleak(rate, 15), with_heaptrack, alone):
        print(json.dumps({"steps_per_s_wanted": 2 * per_thread} | run(per_thread)), flush=True)
