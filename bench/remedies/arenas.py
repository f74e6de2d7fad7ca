"""Long-lived objects among short-lived ones; with the argument `apart`, before them."""
import sys

COUNT = 1_500_000
kept = [str(i) + "kept" for i in range(COUNT // 100)] if "apart" in sys.argv else []
every = 0 if kept else 100
short = []
for i in range(COUNT):
    short.append(str(i) + "short")
    if every and i % every == 0:
        kept.append(str(i) + "kept")
del short
print("ready", flush=True)
sys.stdin.readline()
