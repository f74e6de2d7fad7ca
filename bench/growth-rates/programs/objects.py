# Objects that are kept.
import sys, time
keep = []
end = time.monotonic() + 300
while time.monotonic() < end:
    keep.extend({"n": n, "s": "item %d" % n} for n in range(3000))
    with open("/proc/self/statm") as f: rss = int(f.read().split()[1]) * 4096
    print(time.monotonic(), len(keep) * (232 + 56), rss, flush=True)
    time.sleep(0.1)
