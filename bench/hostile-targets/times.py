#!/usr/bin/env python3
"""How long each verb takes to end for hostile targets.

    sudo times.py LOWTIDE DIRECTORY

Prints a row for each target: seconds from the start to the end of each verb, with its exit code where that is not 0. `attach`, `watch`,
`top` and `exporter` run for 6 s and then get SIGINT: their time is that from the signal to the end."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

lowtide, out = sys.argv[1], Path(sys.argv[2]).resolve()
only = sys.argv[3:]
here = Path(__file__).parent
fixtures = here.parents[1] / "crates/cli/tests/fixtures"
out.mkdir(parents=True, exist_ok=True)
ENDS, SIGNALLED, LIMIT = {
    "inspect": ["inspect"],
    "inspect --json --arenas": ["inspect", "--json", "--arenas"],
    "release --dry-run": ["release", "--untested", "--dry-run"],
    "release": ["release", "--untested"],
    "leaks, 3 s": ["leaks", "--duration", "3s"],
    "top --once": ["top", "--once"],
}, {
    "attach": ["attach", "--policy", "periodic=2s"],
    "watch": ["watch", "--json"],
    "top": ["top", "--json"],
    "exporter": ["exporter", "--listen", "127.0.0.1:0", "--remote-files"],
}, 300


def build(source, *flags):
    program = out / source.stem
    subprocess.run(["cc", "-O2", "-pthread", "-o", program, source, *flags], check=True)
    return str(program)


def start(words):
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
    time.sleep(1.5)
    return child


def slow(delay_ms):
    home = out / f"slow-{delay_ms}"
    (home / "mount").mkdir(parents=True, exist_ok=True)
    (home / "slow").unlink(missing_ok=True)
    child = start([slow_files, home / "mount", memory, str(delay_ms), home / "slow", "blocks:30", "keep:10"])
    (home / "slow").touch()
    return child


def frozen():
    child = start([hostile])
    os.kill(child.pid, signal.SIGSTOP)
    return child


def traced():
    child = start([hostile])
    tracer = subprocess.Popen(["strace", "-f", "-p", str(child.pid)], stderr=subprocess.DEVNULL)
    time.sleep(1)
    others.append(tracer)
    return child


def run(words):
    return subprocess.Popen([lowtide, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def cell(time_s, code):
    return time_s + (f" ({code})" if code else "")


def time_to_end(ran, began):
    try:
        code = ran.wait(LIMIT)
    except subprocess.TimeoutExpired:
        ran.kill()
        ran.wait()
        return f"> {LIMIT}"
    return cell(f"{time.monotonic() - began:.2f}", code)


def outcome(words):
    began = time.monotonic()
    return time_to_end(run(words), began)


def after_signal(words):
    ran = run(words)
    try:
        return cell("ended before", ran.wait(6))
    except subprocess.TimeoutExpired:
        began = time.monotonic()
        ran.send_signal(signal.SIGINT)
        return time_to_end(ran, began)


hostile, memory, slow_files = build(here / "hostile.c"), build(fixtures / "memory.c"), build(fixtures / "slow_files.c")
others = []
TARGETS = {
    "ordinary": lambda: start([hostile]),
    "its file is read in 50 ms for 4 KiB": lambda: slow(50),
    "its file is read in 500 ms": lambda: slow(500),
    "its file is never read": lambda: slow(0),
    **{name: (lambda mode=mode: start([hostile, mode])) for name, mode in {
        "pages served by nobody (userfaultfd)": "fault",
        "60,000 mappings": "maps",
        "2,000 threads": "threads",
        "forks and executes all the time": "forks",
        "waits in vfork": "vfork",
        "random words in its heap": "noise",
        "cycles in its heap": "cycles",
        "four threads that allocate all the time": "spin",
        "a filter that kills": "filter",
    }.items()},
    "stopped (SIGSTOP)": frozen,
    "traced by another": traced,
}
print("| target | " + " | ".join([*ENDS, *SIGNALLED]) + " | lives on |")
print("|---|" + "---:|" * (len(ENDS) + len(SIGNALLED)) + "---|")
for name, begin in TARGETS.items():
    if only and not any(word in name for word in only):
        continue
    target = begin()
    pid = str(target.pid)
    cells = [outcome(words if words[0] == "top" else [*words, pid]) for words in ENDS.values()]
    cells += [after_signal(words if words[0] in ("top", "exporter") else [*words, pid]) for words in SIGNALLED.values()]
    lives = "yes" if target.poll() is None else f"no: {target.returncode}"
    print(f"| {name} | " + " | ".join(cells) + f" | {lives} |", flush=True)
    while others:
        tracer = others.pop()
        tracer.terminate()
        tracer.wait()
    os.kill(target.pid, signal.SIGCONT)
    os.killpg(target.pid, signal.SIGKILL)
    target.wait()
