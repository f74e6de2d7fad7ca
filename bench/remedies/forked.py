"""Workers that are forked after the data was loaded. With an argument, the data is frozen before."""
import gc
import os
import sys

is_frozen = len(sys.argv) > 1
if is_frozen:
    gc.disable()
table = {i: ("key%d" % i, [i, str(i)]) for i in range(300_000)}
if is_frozen:
    gc.freeze()
reader, writer = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        if is_frozen:
            gc.enable()
        own = [[i] for i in range(100_000)]
        read = [table[i] for i in range(0, 300_000, 30)]
        gc.collect()
        os.write(writer, b"x")
        sys.stdin.read()
        os._exit(0)
for _ in range(3):
    os.read(reader, 1)
print("ready", flush=True)
sys.stdin.read()
