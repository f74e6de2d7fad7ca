#!/usr/bin/env python3
"""CPU time and memory of what `lowtide inspect` does with heaps of 1 GB: alone, with the line on the
cause of a fragmentation, with --pins and with --blocks.

usage: run.py PROGRAM [ROUNDS]

PROGRAM is the example `pins` of crates/leaks. The commands of a round run in turn. CPU time is user and
system time; memory is the peak RSS of the program.
"""

import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# Name, program, and its arguments: for `blocks.c` the number of blocks, the smallest size, the step of
# sizes, and how many of 16 stay; for `linked.cpp` the number of objects.
SUBJECTS = [
    ("many", "blocks.c", ["7500000", "24", "20", "11"]),
    ("fragmented", "blocks.c", ["3400000", "88", "34", "1"]),
    ("held", "blocks.c", ["1530000", "300", "55", "15"]),
    ("linked", "linked.cpp", ["1500000"]),
]
COMMANDS = ["inspect", "cause", "pins", "blocks"]


def measured(words):
    """Runs a command. Returns its output, its CPU time in seconds, and its peak RSS in MiB."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{words} failed")
    return output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as directory:
        print(f"{rounds} rounds; CPU in s: median (lowest to highest); peak RSS in MiB: highest")
        for name, source, words in SUBJECTS:
            built = os.path.join(directory, name)
            compiler = "c++" if source.endswith("cpp") else "cc"
            subprocess.run([compiler, "-O1", "-o", built, os.path.join(HERE, source)], check=True)
            subject = subprocess.Popen([built, *words], stdout=subprocess.PIPE)
            subject.stdout.readline()
            cpu = {command: [] for command in COMMANDS}
            peak = dict.fromkeys(COMMANDS, 0)
            for _ in range(rounds):
                for command in COMMANDS:
                    output, seconds, mib = measured([program, command, str(subject.pid)])
                    cpu[command].append(seconds)
                    peak[command] = max(peak[command], mib)
            rss, count = map(int, output.split())
            print(f"\n{name}: RSS {rss / 1e9:.2f} GB, {count:,} blocks in use")
            for command in COMMANDS:
                times = sorted(cpu[command])
                pairs = [a / b for a, b in zip(cpu[command], cpu["inspect"])]
                print(
                    f"  {command:8} {statistics.median(times):6.3f} ({times[0]:.3f} to {times[-1]:.3f})"
                    f"  {statistics.median(pairs):5.2f} times inspect  {peak[command]:6.1f} MiB"
                )
            subject.kill()
            subject.wait()


if __name__ == "__main__":
    main()
