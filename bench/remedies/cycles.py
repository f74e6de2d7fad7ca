"""Reference cycles that nothing else refers to, and a collector that is switched off."""
import gc
import sys

gc.disable()


class Node:
    pass


for i in range(300_000):
    a, b = Node(), Node()
    a.other, b.other, a.text = b, a, [i] * 10
print("ready", flush=True)
sys.stdin.readline()
gc.collect()
print("done", flush=True)
sys.stdin.readline()
