#!/usr/bin/env python3
"""The server of document 000 after a burst of requests: what a release and the allocator's own purge return, and the longest gap
of a client. Prints a JSON line for each run.

Usage: server.py LOWTIDE SERVER STREAMS ROUNDS LIBRARY…, where a LIBRARY of `glibc` preloads none. A round has a run of each kind in a
drawn order, two of them with neither: the noise floor. ROUNDS of 0: one run of each library with a release and no clients."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

lowtide, server, streams, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
PORT, CONNECTIONS = 7700, 8
URL = "http://127.0.0.1:%d/?expire=" % PORT


def connect():
    for _ in range(200):
        try:
            stream = socket.create_connection(("127.0.0.1", PORT))
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stream, stream.makefile("rb")
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server does not listen")


def ask(stream, answers):
    """Sends a request, and returns the body of its answer."""
    stream.sendall(b"GET /?expire=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    length = 0
    while (line := answers.readline().strip()) != b"":
        name, _, value = line.lower().partition(b":")
        length = int(value) if name == b"content-length" else length
    return answers.read(length)


def client(stop, results):
    stream, answers = connect()
    longest, requests, wrong = 0, 0, 0
    expected = ask(stream, answers)
    while not stop.is_set():
        begin = time.perf_counter()
        found = ask(stream, answers)
        longest = max(longest, time.perf_counter() - begin)
        requests += 1
        wrong += found != expected or not found.startswith(b"axum(")
    results.append((longest, requests, wrong))


def anonymous_bytes(pid):
    for line in open("/proc/%d/status" % pid):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10


def act(kind, library, pid):
    """Releases or purges."""
    words = [lowtide, "release", "--json", "--untested", str(pid)]
    if kind == "purge":
        words[2:2] = ["--method", "trim"] if library == "glibc" else ["--method", "purge", "--unbounded"]
    done = json.loads(subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    wanted = ["allocator", "allocator_version", "outcome", "reason", "predicted_bytes", "returned_bytes", "elapsed_s", "longest_pause_s"]
    return {key: done.get(key) for key in wanted}


def run(number, kind, library, with_clients):
    more = {} if library == "glibc" else {"LD_PRELOAD": library}
    process = subprocess.Popen([server, "127.0.0.1:%d" % PORT], env={**os.environ, **more}, stdout=subprocess.DEVNULL)
    try:
        connect()
        each = str(streams // CONNECTIONS)
        words = [lowtide, "load", URL + str(max(3000, streams // 50)), "--http2", "-c", str(CONNECTIONS), "-m", each, "--timeout", "300s"]
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        time.sleep(1)
        before, stop, results, done = anonymous_bytes(process.pid), threading.Event(), [], None
        clients = [threading.Thread(target=client, args=(stop, results)) for _ in range(2 if with_clients else 0)]
        [one.start() for one in clients]
        time.sleep(1)
        begin = time.perf_counter()
        if kind in ["release", "purge"]:
            done = act(kind, library, process.pid)
        time.sleep(max(0, begin + 3 - time.perf_counter()))
        after = anonymous_bytes(process.pid)
        stop.set()
        [one.join() for one in clients]
        print(json.dumps({
            "library": library.split("/")[-1], "streams": streams, "round": number, "kind": kind, "before_bytes": before,
            "after_bytes": after, "longest_gap_s": max([one[0] for one in results], default=None),
            "requests": sum(one[1] for one in results), "wrong": sum(one[2] for one in results), "act": done,
        }), flush=True)
    finally:
        process.terminate()
        process.wait()


for library in sys.argv[5:]:
    if rounds == 0:
        run(0, "release", library, False)
    for number in range(rounds):
        kinds = ["neither", "neither again", "release", "purge"]
        random.Random(number).shuffle(kinds)
        for kind in kinds:
            run(number, kind, library, True)
