#!/usr/bin/env python3
"""Services that leak and services that do not, side by side under `lowtide leaks` for a time. Prints a JSON line for each:
its verdict, the groups with their types and holders, and whether the verdict is the expected one.

Usage, from the root of the repository, as root: mixed.py LOWTIDE MINUTES DIRECTORY. DIRECTORY keeps the programs and the records.
Needs redis-server, memcached, node with its headers, python3 with its headers, g++, rustc, PostgreSQL 15 and nghttpd."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

lowtide, minutes, out = os.path.abspath(sys.argv[1]), float(sys.argv[2]), os.path.abspath(sys.argv[3])
here = os.path.dirname(os.path.abspath(__file__))
types = os.path.join(here, "../../../crates/leaks/tests/live/types")
os.makedirs(out, exist_ok=True)
os.chmod(out, 0o755)
started, is_over = [], threading.Event()
POSTGRES = "/usr/lib/postgresql/15/bin/"


def build(*words):
    subprocess.run(words, check=True)


def start(*words, **others):
    program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **others)
    started.append(program)
    return program.pid


def connect(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.1)
    raise SystemExit("nothing listens at port %d" % port)


def send(port, request, reply, per_second):
    """Sends requests until the end; each is made of its number."""
    def work():
        connection = connect(port)
        number = 0
        while not is_over.is_set():
            for _ in range(10):
                connection.sendall(request(number))
                number += 1
                received = b""
                while not received.endswith(reply):
                    received += connection.recv(1000)
            time.sleep(10 / per_second)
    threading.Thread(target=work, daemon=True).start()


def redis(port, per_second, keys, *flags):
    pid = start("redis-server", "--port", str(port), "--save", "", "--appendonly", "no", *flags)
    def request(number):
        key = b"session:%d" % (number if keys is None else random.randrange(keys))
        value = b"%d" % number * 20
        return b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value)
    send(port, request, b"+OK\r\n", per_second)
    return pid


def memcached(port):
    pid = start("memcached", "-u", "root", "-p", str(port), "-m", "64", "-U", "0")
    def request(number):
        value = b"v" * random.randrange(100, 2000)
        return b"set key:%d 0 0 %d\r\n%s\r\n" % (random.randrange(200000), len(value), value)
    send(port, request, b"STORED\r\n", 500)
    return pid


def postgres():
    data = out + "/postgres"
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    os.mkdir(data)
    build("chown", "postgres", data)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    subprocess.run([*as_postgres, POSTGRES + "initdb", "-D", data], check=True, **quiet)
    start(*as_postgres, POSTGRES + "postgres", "-D", data, "-c", "listen_addresses=", "-k", data, "-c", "fsync=off", cwd="/")
    while subprocess.run([*as_postgres, POSTGRES + "pg_isready", "-h", data], **quiet).returncode:
        time.sleep(0.2)
    subprocess.run([*as_postgres, POSTGRES + "createdb", "-h", data, "bank"], check=True, **quiet)
    subprocess.run([*as_postgres, POSTGRES + "pgbench", "-h", data, "-i", "-q", "-s", "5", "bank"], check=True, **quiet)
    seconds = int(minutes * 60) + 300
    start(*as_postgres, POSTGRES + "pgbench", "-h", data, "-n", "-c", "1", "-R", "50", "-T", str(seconds), "bank", cwd="/")
    query = "select pid from pg_stat_activity where application_name = 'pgbench'"
    while True:
        words = [*as_postgres, POSTGRES + "psql", "-h", data, "-Atc", query, "bank"]
        ask = lambda: subprocess.run(words, capture_output=True, text=True, cwd="/").stdout.strip()
        pid = ask()
        time.sleep(1)
        # The first connection of pgbench only counts.
        if pid and pid == ask():
            return int(pid)


def nghttpd(port):
    os.makedirs(out + "/www", exist_ok=True)
    with open(out + "/www/page", "w") as page:
        page.write("x" * 20000)
    pid = start("nghttpd", "--no-tls", "-d", out + "/www", str(port))
    def work():
        while not is_over.is_set():
            connections = str(random.randrange(1, 100))
            words = ["h2load", "-n", "2000", "-c", connections, "-m", "20", "http://127.0.0.1:%d/page" % port]
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(3)
    connect(port).close()
    threading.Thread(target=work, daemon=True).start()
    return pid


build("g++", "-O2", "-pthread", "-o", out + "/sessions", types + "/sessions.cc")
build("rustc", "-O", "--edition", "2021", "-o", out + "/cycle", types + "/cycle.rs")
build("gcc", "-O2", "-shared", "-fPIC", "-I/usr/include/node", "-o", out + "/addon.node", here + "/addon.c")
include = subprocess.run(["python3", "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"], capture_output=True, text=True)
build("gcc", "-O2", "-shared", "-fPIC", "-I" + include.stdout.strip(), "-o", out + "/extension.so", here + "/extension.c")

BAD = ("lost", "growing")
services = [
    # Name, pid, the verdict that is right.
    ("redis, growing key space", redis(7301, 200, None), "growing"),
    ("redis, at its bound", redis(7302, 1000, 10**6, "--maxmemory", "40mb", "--maxmemory-policy", "allkeys-lru"), None),
    ("memcached", memcached(7303), None),
    ("PostgreSQL, a backend", postgres(), None),
    ("nghttpd", nghttpd(7304), None),
    ("node, an addon that leaks", start("node", here + "/addon.js", out + "/addon.node"), "lost"),
    ("node, steady", start("node", here + "/steady.js"), None),
    ("CPython, an extension that leaks", start("python3", here + "/extension.py", out), "lost"),
    ("CPython, a growing dict", start("python3", types + "/cache.py"), "lost"),
    ("CPython, a late collector", start("python3", here + "/late.py"), None),
    ("C++, sessions", start(out + "/sessions"), "lost"),
    ("Rust, a cycle of Rc", start(out + "/cycle"), "lost"),
]
time.sleep(20)
watchers = []
for name, pid, _ in services:
    record = "%s/%s.json" % (out, "".join(letter for letter in name if letter.isalnum()))
    words = [lowtide, "leaks", str(pid), "--json", "--duration", "%dm" % minutes, "-o", record]
    watchers.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
for (name, pid, right), watcher in zip(services, watchers):
    output, errors = watcher.communicate()
    if watcher.returncode not in (0, 1, 3):
        print(json.dumps({"service": name, "exit": watcher.returncode, "error": errors.strip()}), flush=True)
        continue
    report = json.loads(output)
    kind = report["verdict"]["kind"]
    groups = [
        {
            key: group[key]
            for key in ("verdict", "size_bytes", "count", "bytes", "bytes_per_hour", "type", "holders", "roots", "because")
            if group.get(key)
        }
        for group in report["groups"]
        if group["verdict"] not in ("level",)
    ][:8]
    # The innermost functions of the most frequent stack, if stacks were taken.
    with_stacks = [group for group in report["groups"] if group["verdict"] != "level"][:8]
    for shown, group in zip(groups, with_stacks):
        for stack in group["stacks"][:1]:
            shown["stack"] = [frame["function"] for frame in stack["frames"][:8]]
            shown["stack_samples"], shown["stack_share"], shown["proof"] = stack["samples"], stack["share"], stack["proof"]
    line = {
        "service": name,
        "expected": right or "not lost, not growing",
        "verdict": kind,
        "right": kind == right if right else kind not in BAD,
        "minutes": round(report["elapsed_s"] / 60, 1),
        "looks": report["looks"],
        "torn_looks": report["torn_looks"],
        "sampled_share": report["sampled_share"],
        "cpu_s": round(report["cpu_s"], 2),
        "exposure": report["exposure"],
        "sampling": report.get("sampling"),
        "groups": groups,
    }
    print(json.dumps(line), flush=True)
is_over.set()
for program in reversed(started):
    program.terminate()
    program.wait()
