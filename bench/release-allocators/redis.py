#!/usr/bin/env python3
"""redis with a hoard and two clients: what a release and the allocator's own purge return, and the longest gap of a client. Prints
a JSON line for each run.

Usage: redis.py LOWTIDE ROUNDS [LIBRARY.so]. A round has a run of each kind in a drawn order, two of them with neither: the noise
floor. LIBRARY.so takes the place of redis's jemalloc; its purge then runs in a borrowed thread instead of MEMORY PURGE."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

lowtide, rounds, library = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
KEYS, KEPT, PORT = 300_000, 10, 7600


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def connect():
    for _ in range(200):
        try:
            stream = socket.create_connection(("127.0.0.1", PORT))
            return stream, stream.makefile("rb")
        except OSError:
            time.sleep(0.05)
    raise SystemExit("redis does not listen")


def value(key):
    return b"%08d" % key * random.Random(key).choice([4, 20, 100, 400])


def hoard():
    """Sets keys, and deletes all but each tenth."""
    stream, answers = connect()
    for first in range(0, KEYS, 1000):
        keys = range(first, first + 1000)
        stream.sendall(b"".join(command(b"SET", b"k%d" % key, value(key)) for key in keys))
        [answers.readline() for _ in keys]
    for first in range(0, KEYS, 1000):
        keys = [key for key in range(first, first + 1000) if key % KEPT]
        stream.sendall(b"".join(command(b"DEL", b"k%d" % key) for key in keys))
        [answers.readline() for _ in keys]


def client(stop, results, seed):
    """Reads kept keys and replaces others, one at a time; what it reads must be right."""
    (stream, answers), draw = connect(), random.Random(seed)
    longest, requests, wrong = 0, 0, 0
    while not stop.is_set():
        key = draw.randrange(KEYS // KEPT) * KEPT
        begin = time.perf_counter()
        stream.sendall(command(b"GET", b"k%d" % key) + command(b"SET", b"t%d" % draw.randrange(20000), value(requests)))
        length = int(answers.readline()[1:])
        found = answers.read(length + 2)[:-2]
        done = answers.readline()
        longest = max(longest, time.perf_counter() - begin)
        requests += 1
        wrong += found != value(key) or done != b"+OK\r\n"
    results.append((longest, requests, wrong))


def lost():
    stream, answers = connect()
    count = 0
    for key in range(0, KEYS, KEPT):
        stream.sendall(command(b"GET", b"k%d" % key))
        count += answers.read(int(answers.readline()[1:]) + 2)[:-2] != value(key)
    return count


def anonymous_bytes(pid):
    for line in open("/proc/%d/status" % pid):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10


def released(pid, *flags):
    words = [lowtide, "release", "--json", *flags, str(pid)]
    done = json.loads(subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    wanted = ["outcome", "predicted_bytes", "returned_bytes", "elapsed_s", "longest_lock_s", "longest_pause_s"]
    return {key: done[key] for key in wanted}


def run(number, kind):
    preload = {"LD_PRELOAD": library} if library else {}
    words = ["redis-server", "--port", str(PORT), "--save", ""]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, **preload})
    try:
        hoard()
        before, stop, results, release = anonymous_bytes(server.pid), threading.Event(), [], None
        clients = [threading.Thread(target=client, args=(stop, results, seed)) for seed in range(2)]
        [one.start() for one in clients]
        time.sleep(1)
        begin = time.perf_counter()
        if kind == "release":
            release = released(server.pid)
        elif kind == "purge" and library:
            release = released(server.pid, "--method", "purge", "--unbounded")
        elif kind == "purge":
            stream, answers = connect()
            stream.sendall(command(b"MEMORY", b"PURGE"))
            answers.readline()
        time.sleep(max(0, begin + 2 - time.perf_counter()))
        after = anonymous_bytes(server.pid)
        stop.set()
        [one.join() for one in clients]
        print(json.dumps({
            "round": number, "kind": kind, "before_bytes": before, "after_bytes": after,
            "longest_gap_s": max(one[0] for one in results), "requests": sum(one[1] for one in results),
            "wrong": sum(one[2] for one in results), "lost": lost(), "release": release,
        }), flush=True)
    finally:
        server.terminate()
        server.wait()


for number in range(rounds):
    kinds = ["neither", "neither again", "release", "purge"]
    random.Random(number).shuffle(kinds)
    for kind in kinds:
        run(number, kind)
