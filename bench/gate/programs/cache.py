"""A burst of objects, of which a part stays: cache.py KEEP_KIB. Then it prints `done` and waits."""

import random
import signal
import sys

signal.alarm(300)
kept = {}
keep = int(sys.argv[1]) * 1024
held = 0
burst = []
while held < keep:
    burst.append([random.random() for _ in range(random.randint(5, 60))])
    value = "x" * random.randint(200, 800)
    kept[len(kept)] = value
    held += len(value) + 150
del burst
print("done", flush=True)
signal.pause()
