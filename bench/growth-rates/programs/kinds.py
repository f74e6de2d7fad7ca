# Grows in one way, and prints what it keeps and its RSS ten times a second. usage: kinds.py KIND
import ctypes, mmap, os, resource, sqlite3, sys, time
from collections import deque

STEP = 400 << 10
keep, queue, counter = [], deque(), 0
base = sqlite3.connect(":memory:")
base.execute("create table t(a integer primary key, b text)")

def child(body):
    """Starts a child process that ends with this one."""
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 9)
        body()
        os._exit(0)

def grower():
    kept = []
    while True:
        kept.append(bytearray(b"z" * 8192)); time.sleep(0.1)

def sleeper():
    block = bytearray(b"y" * STEP); time.sleep(400)

def private():  # memory that the program maps itself
    m = mmap.mmap(-1, STEP, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.write(b"x" * STEP); keep.append(m)
    return STEP
def shared():   # shared memory without a name
    m = mmap.mmap(-1, STEP); m.write(b"x" * STEP); keep.append(m)
    return STEP
def open_memfd():   # open, and not mapped
    f = os.memfd_create("frame"); os.write(f, b"q" * STEP); keep.append(f)
    return STEP
def equal():    # a queue of equal strings: two come for one that goes
    for n in range(2000): queue.append("a request of the same text %d" % 7 + "x" * 100)
    for n in range(1000): queue.popleft()
    return 1000 * 177
def numbers():  # one long list
    keep.extend(range(len(keep), len(keep) + 8000))
    return 8000 * 40
def sqlite():   # a database in memory
    global counter
    base.executemany("insert into t values(?,?)", ((n, "x" * 400) for n in range(counter, counter + 1000)))
    counter += 1000
    return 1000 * 410
def children(): # a hundred children that grow
    if not keep: keep.extend(child(grower) for n in range(100))
    return 100 * 8192
def forks():    # a new child that stays
    child(sleeper)
    return STEP

resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
kept, step, end = 0, globals()[sys.argv[1]], time.monotonic() + 300
while time.monotonic() < end:
    kept += step()
    print(time.monotonic(), kept, int(open("/proc/self/statm").read().split()[1]) * 4096, flush=True)
    time.sleep(0.1)
