#!/usr/bin/env python3
"""Releases the memory of programs with two heaps until enough releases have returned memory.

    cargo build --release --bin lowtide --example own_allocator
    bench/two-heaps/run.py [RELEASES] > summary.txt

`own_allocator churns` fills, frees and verifies blocks of glibc and of mimalloc in four threads. It exits with 1 at the
first wrong byte. A program is released 50 times, then its input is closed, and the next one begins.
"""

import json
import os
import subprocess
import sys
import time

TARGET = os.path.join(os.path.dirname(__file__), "../../target/release")
PER_PROGRAM = 50


def main():
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    counts = dict.fromkeys(["programs", "releases", "returned", "of both", "rounds"], 0)
    refused, longest, over = {}, [], 0
    environment = {**os.environ, "MIMALLOC_PURGE_DELAY": "1000000"}
    while counts["returned"] < wanted:
        program = subprocess.Popen([f"{TARGET}/examples/own_allocator", "churns"], env=environment, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert program.stdout.readline() == "ready\n"
        for number in range(PER_PROGRAM):
            done = subprocess.run([f"{TARGET}/lowtide", "release", "--untested", "--json", str(program.pid)],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            release = json.loads(done.stdout)
            counts["releases"] += 1
            for heap in release.get("heaps", []):
                if heap["outcome"] == "refused":
                    why = f"{heap['allocator']}: {release['hazard'] or heap['reason'][:60]}"
                    refused[why] = refused.get(why, 0) + 1
            returned = [heap["allocator"] for heap in release.get("heaps", []) if heap["returned_bytes"] > 0]
            counts["returned"] += bool(returned)
            counts["of both"] += len(returned) == 2
            longest.append(release.get("longest_pause_s", 0.0))
            over += release.get("pauses_over_bound", 0)
            assert program.poll() is None, "the program has ended"
            time.sleep(number % 7 / 100)
        out, _ = program.communicate()
        assert program.returncode == 0, f"{out} {program.returncode}"
        counts["rounds"] += int(out)
        counts["programs"] += 1
        print(counts, file=sys.stderr, flush=True)
    for name, count in counts.items():
        print(f"{name:10} {count}")
    longest.sort()
    print(f"longest pause of a release: median {longest[len(longest) // 2] * 1e3:.2f} ms, "
          f"99 % {longest[len(longest) * 99 // 100] * 1e3:.2f} ms; {over} pauses above 1 ms")
    for why, count in sorted(refused.items()):
        print(f"refused    {count:5} {why}")


main()
