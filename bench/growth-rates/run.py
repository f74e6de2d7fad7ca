#!/usr/bin/env python3
"""Compares the rates that lowtide prints with those that programs count themselves.

usage: run.py LOWTIDE [NAME...]   prints one line of JSON for each program

Each program grows in one way, and prints its RSS and what it keeps ten times a second. Meanwhile
`leaks` (40 s) and `inspect --watch 30s` watch it. The true rate is the slope of a line through what
the program printed while lowtide watched: of its RSS, and of what it keeps.
"""
import json, os, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
P = lambda name: os.path.join(HERE, "programs", name)
WORK = tempfile.mkdtemp(prefix="growth-rates-")
subprocess.run(["gcc", "-O1", "-pthread", "-w", "-o", f"{WORK}/grow", P("grow.c")], check=True)

def grow(kind, rate=4096):
    return lambda: [f"{WORK}/grow", kind, str(rate)]
def go():
    subprocess.run(["go", "build", "-o", f"{WORK}/objects", P("objects.go")], check=True)
    return [f"{WORK}/objects"]
def java(*words):
    def command():
        subprocess.run(["javac", "-d", WORK, P("Objects.java")], check=True)
        return ["java", "-Xmx900m", "-cp", WORK, "Objects", *words]
    return command
def erlang():
    subprocess.run(["erlc", "-o", WORK, P("binaries.erl")], check=True)
    return ["erl", "-noinput", "-pa", WORK, "-eval", "binaries:main([])", "-s", "init", "stop"]
CASES = {k: grow(k) for k in """unjoined memfd sysv anonymous reserve break clean dirty copies one_block
  vector lost random_sizes list backlog fragments bursts saw late stops level""".split()}
CASES |= {"living": grow("living", 1024), "deep": grow("deep", 160), "slow": grow("lost", 64),
  "node": lambda: ["node", P("node.js")], "node_buffers": lambda: ["node", P("node_buffers.js")],
  "php": lambda: ["php", P("objects.php")], "python": lambda: [sys.executable, P("objects.py")],
  "python_malloc": lambda: ["env", "PYTHONMALLOC=malloc", sys.executable, P("objects.py")],
  "ruby": lambda: ["ruby", P("objects.rb")], "java": java(), "java_native": java("native"),
  "go": go, "perl": lambda: ["perl", P("cycles.pl")], "luajit": lambda: ["luajit", P("tables.lua")],
  "erlang": erlang, "php_string": lambda: ["php", "-d", "memory_limit=-1", P("string.php")]}
def kind(name):
    return lambda: [sys.executable, P("kinds.py"), name]
CASES |= {f"py_{name}": kind(name)
          for name in "private shared open_memfd equal numbers sqlite children forks".split()}

def slope(lines, column, begin, end):
    """Returns the slope of the line of least squares through what the program printed, an hour."""
    inside = [l for l in lines if begin <= l[0] <= end]
    if len(inside) < 2: return None
    mean_s, mean = (sum(l[c] for l in inside) / len(inside) for c in (0, column))
    spread = sum((l[0] - mean_s) ** 2 for l in inside)
    return sum((l[0] - mean_s) * (l[column] - mean) for l in inside) / spread * 3600

def watch(lowtide, words, pid, into):
    begin = time.monotonic()
    done = subprocess.run([lowtide, *words, "--json", str(pid)], capture_output=True, text=True)
    found = None
    for line in done.stdout.splitlines():
        found = json.loads(line)
    into.update(begin=begin, end=time.monotonic(), found=found, code=done.returncode, err=done.stderr[-300:])

def case(lowtide, name):
    command = CASES[name]()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=WORK)
    lines = []
    def read():
        for line in child.stdout:
            try: lines.append([float(word) for word in line.split()])
            except ValueError: pass
    reader = threading.Thread(target=read); reader.start()
    while len(lines) < 20 and child.poll() is None: time.sleep(0.05)
    leaks, watched = {}, {}
    threads = [threading.Thread(target=watch, args=(lowtide, ["leaks", "--no-stacks", "--duration", "40s"], child.pid, leaks)),
               threading.Thread(target=watch, args=(lowtide, ["inspect", "--watch", "30s"], child.pid, watched))]
    for t in threads: t.start()
    for t in threads: t.join()
    child.kill(); child.wait(); reader.join()
    row = {"name": name}
    for what, run in (("leaks", leaks), ("watch", watched)):
        found = run["found"] or {}
        growth = found.get("growth") or {}
        # What it does at its end, such as the search for pointers, is not part of the window.
        window = run["begin"], run["begin"] + (growth.get("elapsed_s") or found.get("elapsed_s") or 30)
        # On a busy machine, it begins late: when RSS was what it saw first.
        first = (growth.get("rss_bytes") or [0])[0] * 1.002
        before = [l[0] for l in lines if window[0] <= l[0] <= window[0] + 30 and l[2] <= first]
        if before and before[-1] < window[0] + 29:
            window = before[-1], before[-1] + window[1] - window[0]
        truth = slope(lines, 2, *window)
        row[what] = {
            "verdict": (found.get("verdict") or {}).get("kind"), "because": (found.get("verdict") or {}).get("because"),
            "course": growth.get("course"), "true_rss_per_hour": truth, "true_kept_per_hour": slope(lines, 1, *window),
            "printed_per_hour": found.get("bytes_per_hour", growth.get("rss_bytes_per_hour")),
            "rss_per_hour": growth.get("rss_bytes_per_hour"), "seconds_to_limit": found.get("seconds_to_limit", growth.get("seconds_to_limit")),
            "true_newer_rss_per_hour": slope(lines, 2, sum(window) / 2, window[1]),
            "by": [(p["owner"], p["name"], p["bytes"]) for p in growth.get("by", [])[:3]],
            "code": run["code"], "next": found.get("next"),
        }
        if run["code"]: row[what]["err"] = run["err"]
    return row

if __name__ == "__main__":
    lowtide, names = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(CASES)
    lock = threading.Lock()
    todo = list(names)
    def work():
        while True:
            with lock:
                if not todo: return
                name = todo.pop(0)
            try: row = case(lowtide, name)
            except Exception as error: row = {"name": name, "error": repr(error)}
            with lock: print(json.dumps(row), flush=True)
    workers = [threading.Thread(target=work) for _ in range(2)]
    for w in workers: w.start()
    for w in workers: w.join()
