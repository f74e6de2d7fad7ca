"""Compares what `lowtide inspect` reads of heaps with what allocators and programs say of themselves.

  python3 run.py LOWTIDE [--python INTERPRETER…] [--preload LIBRARY[@GLIBC]…] [--pandas INTERPRETER] [--redis]

Prints a table in Markdown: figure, the program's own count, lowtide's, and the difference in bytes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SUBJECT = os.path.join(HERE, "../../crates/probe/tests/walked/subject.c")
FREED = """import sys, random
random.seed(1)
blocks = [[i] for i in range(300000)] + ['x%d' % i for i in range(300000)]
blocks = [block for block in blocks if random.random() < 0.02]
sys._debugmallocstats()
print('counted', flush=True)
sys.stdin.read()"""


def rss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return int(re.search(r"^Rss:\s+(\d+) kB", file.read(), re.M).group(1)) * 1024


class Table:
    def __init__(self, lowtide):
        self.lowtide = lowtide
        print("| subject | figure | own count | lowtide | difference | CPU |")
        print("|---|---|---|---|---|---|")

    def inspect(self, process):
        found = subprocess.run([self.lowtide, "inspect", "--json", str(process.pid)], check=True, capture_output=True)
        return json.loads(found.stdout)

    def row(self, subject, figure, own, read, found):
        cost = f"{found['cpu_s'] * 1000:.0f} ms"
        print(f"| {subject} | {figure} | {own:,} | {read:,} | {read - own:,} | {cost} |", flush=True)


def start(command, **options):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def end(process):
    process.kill()
    process.wait()


def arenas(found, key):
    return sum((arena.get(key[0]) or {}).get(key[1], 0) for arena in found["arenas"])


def statistics(text):
    """The figures of `sys._debugmallocstats()`."""
    number = lambda pattern: int(re.search(pattern, text).group(1).replace(",", ""))
    return {
        "arenas": number(r"# arenas allocated current\s+=\s+([\d,]+)"),
        "allocated": number(r"# bytes in allocated blocks\s+=\s+([\d,]+)"),
        "available": number(r"# bytes in available blocks\s+=\s+([\d,]+)"),
        "unused pools": number(r"([\d,]+) unused pools"),
    }


def cpython(table, subject, text, found):
    own, heap = statistics(text), found["cpython"]
    table.row(subject, "arenas", own["arenas"], heap["arenas"], found)
    table.row(subject, "bytes in allocated blocks", own["allocated"], heap["allocated_bytes"], found)
    table.row(subject, "bytes in available blocks", own["available"], heap["free_block_bytes"], found)
    table.row(subject, "unused pools", own["unused pools"], heap["free_pools"], found)


def of_python(table, interpreter):
    with tempfile.TemporaryFile() as errors:
        process = start([interpreter, "-c", FREED], stderr=errors)
        process.stdout.readline()
        errors.seek(0)
        found = table.inspect(process)
        version = next(r["version"] for r in found["runtimes"] if r["name"] == "CPython")
        cpython(table, f"CPython {version}", errors.read().decode(), found)
        end(process)


def of_library(table, library, program):
    library, _, directory = library.partition("@")
    command, environment = [program], dict(os.environ)
    if directory:
        paths = f"{directory}:/usr/lib/x86_64-linux-gnu"
        command = [f"{directory}/ld-linux-x86-64.so.2", "--library-path", paths, "--preload", library, program]
    else:
        environment["LD_PRELOAD"] = library
    keep = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
    environment.update(MALLOC_CONF=keep, MIMALLOC_PURGE_DELAY="1000000")
    process = start([*command, "500000000", "10", "4"], env=environment)
    process.stdout.readline()

    def ask(what):
        process.stdin.write(what + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    ask("statistics")
    own = ask("statistics")
    found = table.inspect(process)
    if not found["heaps"]:
        print(f"| {os.path.basename(library)} | not walked | | | | |")
        end(process)
        return
    kind = found["heaps"][0]["allocator"]
    subject = f"{kind} {found['allocator']['version']}"
    allocated = sum(arena["allocated_bytes"] for arena in found["arenas"])
    if kind == "jemalloc":
        table.row(subject, "allocated", own["allocated"], allocated, found)
        table.row(subject, "active", own["active"], arenas(found, ("jemalloc", "active_bytes")), found)
        table.row(subject, "dirty", own["dirty_pages"] * 4096, arenas(found, ("jemalloc", "dirty_bytes")), found)
        table.row(subject, "in threads' caches", own["cached"], found["heaps"][0]["cached_bytes"], found)
    elif kind == "gperftools":
        of = lambda key: arenas(found, ("gperftools", key))
        cached = of("thread_cache_bytes") + of("transfer_cache_bytes")
        table.row(subject, "allocated", own["allocated"], allocated - cached, found)
        table.row(subject, "in threads' caches", own["cached"], of("thread_cache_bytes"), found)
        table.row(subject, "in transfer", own["transfer"], of("transfer_cache_bytes"), found)
        table.row(subject, "in central lists", own["central"], of("central_free_bytes"), found)
        table.row(subject, "free spans", own["free"], of("page_heap_free_bytes"), found)
    else:
        table.row(subject, "usable bytes of the program", own["usable"], allocated, found)
    predicted = sum(cure["predicted_bytes"] for cure in found["cures"] if cure["cure"] == "purge")
    before = rss(process.pid)
    ask("purge")
    table.row(subject, "RSS that a purge returns", before - rss(process.pid), predicted, found)
    end(process)


def of_pandas(table, interpreter):
    with tempfile.TemporaryFile() as errors:
        process = start([interpreter, os.path.join(HERE, "pandas_script.py")], stderr=errors)
        _, backend, allocated = process.stdout.readline().split()
        # The pool returns a part by itself in the first second.
        time.sleep(3)
        errors.seek(0)
        found = table.inspect(process)
        cpython(table, "pandas script", errors.read().decode(), found)
        heap = next(heap for heap in found["heaps"] if heap["allocator"] == backend and "library" in heap)
        subject = f"pandas script, {backend} of {heap['library']}"
        table.row(subject, "pyarrow's bytes_allocated()", int(allocated), heap["allocated_bytes"], found)
        predicted = sum(cure["predicted_bytes"] for cure in found["cures"] if cure["cure"] == "purge")
        before = rss(process.pid)
        process.stdin.write("release\n")
        process.stdin.flush()
        process.stdout.readline()
        table.row(subject, "RSS that release_unused() returns", before - rss(process.pid), predicted, found)
        end(process)


def of_redis(table):
    port = "7791"
    process = start(["redis-server", "--port", port, "--save", "", "--enable-debug-command", "yes"])
    ask = lambda *words: subprocess.run(["redis-cli", "-p", port, *words], capture_output=True, text=True).stdout
    while ask("ping") != "PONG\n":
        time.sleep(0.05)
    ask("debug", "populate", "1000000", "k", "200")
    ask("eval", "for i=0,999999 do if i%2==0 then redis.call('del','k:'..i) end end return 1", "0")
    # INFO tells what it counted 100 ms before, and the program goes on with its tables.
    time.sleep(15)
    ask("info", "memory")
    time.sleep(1)
    found = table.inspect(process)
    text = ask("info", "memory")
    own = {name: int(value) for name, value in re.findall(r"^(allocator_\w+|used_memory_rss):(\d+)\r?$", text, re.M)}
    allocated = sum(arena["allocated_bytes"] for arena in found["arenas"])
    subject = f"redis, jemalloc {found['allocator']['version']}"
    table.row(subject, "allocator_allocated", own["allocator_allocated"], allocated, found)
    table.row(subject, "allocator_active", own["allocator_active"], arenas(found, ("jemalloc", "active_bytes")), found)
    table.row(subject, "used_memory_rss", own["used_memory_rss"], found["rss_bytes"], found)
    end(process)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lowtide")
    parser.add_argument("--python", nargs="*", default=[])
    parser.add_argument("--preload", nargs="*", default=[])
    parser.add_argument("--pandas")
    parser.add_argument("--redis", action="store_true")
    options = parser.parse_args()
    table = Table(options.lowtide)
    for interpreter in options.python:
        of_python(table, interpreter)
    with tempfile.TemporaryDirectory() as home:
        program = os.path.join(home, "subject")
        subprocess.run(["cc", "-O1", "-pthread", "-o", program, SUBJECT, "-lm", "-ldl"], check=True)
        for library in options.preload:
            of_library(table, library, program)
    if options.pandas:
        of_pandas(table, options.pandas)
    if options.redis:
        of_redis(table)


main()
