#!/usr/bin/env python3
"""ns per malloc+free pair with and without the library, alternating.
    cargo build --release -p lowtide-preload && bench/freed-hook/run.py > raw.jsonl
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS = int(os.environ.get("ROUNDS", "21"))
# Threads, sizes, pairs per thread.
SHAPES = {"64 B, 1 thread": (1, 64, 64, 20_000_000), "64 B, 4 threads": (4, 64, 64, 10_000_000),
          "16 B to 2 KB, 1 thread": (1, 16, 2048, 10_000_000)}


def library():
    if "LOWTIDE_FREED" in os.environ:
        return os.environ["LOWTIDE_FREED"]
    target = os.environ.get("CARGO_TARGET_DIR", f"{HERE}/../../target")
    built = glob.glob(f"{target}/*/build/lowtide-preload-*/out/freed.so")
    return os.path.abspath(max(built, key=os.path.getmtime))


def main():
    freed = library()
    with tempfile.TemporaryDirectory() as work:
        program = f"{work}/pairs"
        subprocess.run(["cc", "-O2", "-fno-builtin", "-pthread", "-o", program, f"{HERE}/pairs.c"], check=True)
        for round_ in range(ROUNDS):
            for shape, numbers in SHAPES.items():
                row = {"shape": shape, "round": round_}
                order = ["without", "with"]
                for way in order if round_ % 2 else reversed(order):
                    environment = {"LD_PRELOAD": freed} if way == "with" else {}
                    command = [program, *map(str, numbers)]
                    row[way] = float(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
                print(json.dumps(row), flush=True)


sys.exit(main())
