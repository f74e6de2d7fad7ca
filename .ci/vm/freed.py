"""A heap of CPython of which little is kept, and CPython's own count of it."""

import sys

blocks = [[i] for i in range(60000)] + ["x%d" % i for i in range(60000)]
blocks = blocks[::50]
sys._debugmallocstats()
sys.stderr.flush()
print("ready", flush=True)
sys.stdin.read()
