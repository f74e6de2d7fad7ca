"""Grows by small objects of CPython until it is killed. Prints what it holds, as grow.c does."""
import sys
import time

rate = float(sys.argv[1]) * 1e6
sys.stdin.readline()
kept, held, begin = [], 0, time.monotonic()
while True:
    if held > (time.monotonic() - begin) * rate:
        time.sleep(0.001)
        continue
    for _ in range(500):
        kept.append(("x" * 150) + str(len(kept)))
    held += 500 * 208
    if held % (2 << 20) < 500 * 208:
        print("allocated", held, flush=True)
