"""Follows `next:` on real programs, from `lowtide inspect` to the end of the path.

    walk.py LOWTIDE DIRECTORY [NAME ...]

Fails if a step is refused, says nothing new, or returns to an earlier one. DIRECTORY gets walk.txt with all steps, and the programs that are built.
NAME selects programs by a part of their name. Searches and watches are shortened; a study runs one trial of each treatment.
"""

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from subjects import HERE, OUT, SUBJECTS, Missing, Subject, built_c, needs

LOWTIDE = str(Path(sys.argv[1]).resolve())
MAX_STEPS = 10
# What the steps of a path take at most, in seconds.
TIMEOUT = 300
SHORTER = {"2h": "75s", "30m": "60s", "10m": "45s", "5m": "30s", "60s": "20s"}


def musl():
    needs("musl-gcc")
    program = OUT / "hold-musl"
    subprocess.run(["musl-gcc", "-O1", "-static", "-pthread", HERE / "hold.c", "-o", program], check=True)
    return str(program)


def redis():
    """Starts a server, fills it and empties it again, and answers like the other programs."""
    needs("redis-server", "redis-cli")
    fill = "for at = 1, 300000 do redis.call('set', at, string.rep('x', at % 400)) end"
    server = f"redis-server --port 16379 --save '' --dir {OUT} --logfile {OUT}/redis.txt"
    keep = "for at = 1, 300000 do if at % 20 > 0 then redis.call('del', at) end end"
    client = "redis-cli -p 16379"
    return ["sh", "-c", f'{server} & until {client} ping > {OUT}/ping.txt 2>&1; do sleep 0.1; done; {client} eval "{fill}" 0 > {OUT}/fill.txt; '
                        f'{client} eval "{keep}" 0 > {OUT}/keep.txt; echo ready; read line; kill $!']


def grows(form, *command):
    """A program whose memory grows while it waits."""
    return lambda: ([*command] if command else [built_c("grow"), form], {})


def script(interpreter, name, text):
    def start():
        needs(interpreter)
        path = OUT / name
        path.write_text(text)
        return [interpreter, str(path)], {}
    return start


GROW_PYTHON = """
import sys, threading, time
kept = []
def grow():
    while True:
        kept.append([str(len(kept))] * 1000)
        time.sleep(0.002)
threading.Thread(target=grow, daemon=True).start()
print('ready', flush=True)
sys.stdin.readline()
"""
GROW_NODE = """
const kept = [];
setInterval(() => kept.push({ at: kept.length, text: 'x'.repeat(2000) + kept.length, more: new Array(2000).fill(1) }), 2);
console.log('ready');
process.stdin.on('data', () => process.exit()).on('end', () => process.exit());
"""
GROW_RUBY = """
kept = []
Thread.new { loop { kept << Array.new(100) { |i| "#{i} is text" }; sleep 0.005 } }
puts 'ready'
$stdout.flush
$stdin.gets
"""
WALKED = [(name, start) for row, name, start, _ in SUBJECTS if row not in ("glibc/trim_threshold",)] + [
    ("hold top", lambda: ([built_c("hold"), "top"], {})),
    ("hold free", lambda: ([built_c("hold"), "free"], {})),
    ("hold, musl", lambda: ([musl(), "free"], {})),
    ("redis", lambda: (redis(), {})),
    ("leak, C", grows("lost")),
    ("growing cache, C", grows("kept")),
    ("growing block, C", grows("block")),
    ("growing mappings, C", grows("maps")),
    ("growing shared memory, C", grows("shared")),
    ("growing stacks, C", grows("stacks")),
    ("idle, C", grows("idle")),
    ("grow.py", script("python3", "grow.py", GROW_PYTHON)),
    ("grow.js", script("node", "grow.js", GROW_NODE)),
    ("grow.rb", script("ruby", "grow.rb", GROW_RUBY)),
]


def shortened(step, pid):
    """Returns a step that runs in seconds, with the lowtide that is tested."""
    step = re.sub(r"(--duration|--watch) (\w+)", lambda found: f"{found[1]} {SHORTER.get(found[2], found[2])}", step)
    step = re.sub(r"(^|&& )lowtide ", lambda found: f"{found[1]}{LOWTIDE} ", step).replace("-- sleep 60", "-- sleep 3")
    if " study " in step:
        name = OUT / f"study-{pid}-{time.monotonic_ns()}"
        step = step.replace(" -- ", f" --repeat 1 --settle 1s --timeout 60s -o {name} -- ", 1)
        step = step.replace("'YOUR LOAD'", "'redis-benchmark -p 16379 -q -n 2000'")
    return step


class Walk:
    """The steps from one program, and what is wrong with them."""

    def __init__(self, subject):
        self.subject, self.lines, self.seen, self.steps = subject, [], set(), set()

    def say(self, text):
        self.lines.append(text)
        print(text, flush=True)

    def run(self, step):
        """Runs a step; returns its exit status and what it printed."""
        command = shortened(step, self.subject.pid)
        if " --ready " in command:
            # Its port is in use.
            self.subject.end()
        attached = " attach " in command
        started = subprocess.Popen(["bash", "-c", f"exec {command}" if attached else command], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=OUT)
        if attached:
            # It runs until it is interrupted.
            time.sleep(12)
            started.send_signal(signal.SIGINT)
        try:
            text, _ = started.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            started.kill()
            return 124, started.communicate()[0] + "\nno end"
        return started.returncode, text

    def follow(self):
        """Follows the path; returns what is wrong, or None."""
        step = f"lowtide inspect {self.subject.pid}"
        for _ in range(MAX_STEPS):
            key = re.sub(r"\s+", " ", step)
            if key in self.steps:
                return f"returns to: {step}"
            self.steps.add(key)
            status, text = self.run(step)
            self.say(f"  {step}  → {status}")
            if status not in (0, 130) or (status == 130 and " attach " not in step):
                self.say(text)
                return f"refused, {status}: {step}"
            # A figure that changed says nothing new.
            said = {re.sub(r"[\d.,]+", "0", line.strip()) for line in text.splitlines() if line.strip() and not line.startswith("next:")}
            if not said - self.seen:
                self.say(text)
                return f"says nothing new: {step}"
            self.seen |= said
            found = re.search(r"^ *next: (.*(?:\n      .*)*)", text, re.M)
            if not found:
                return None
            # Remarks are in brackets, after some blanks or on a line of their own.
            lines = [re.sub(r" {5}\(.*\)$", "", line).strip() for line in found[1].splitlines()]
            is_search = " leaks " in step
            step, others = lines[0], [line for line in lines[1:] if not line.startswith("(")]
            for other in others:
                self.say(f"  or: {other}")
            # A sentence is no command: what to find out, or that there is nothing to do.
            program = step.split()[0]
            is_command = program in ("lowtide", "cd") or (shutil.which(program) and not step.startswith("find "))
            in_the_program = "(in the " in found[1] or "(between " in found[1] or "(HOST:PORT" in found[1]
            # A search for leaks recommends longer ones only, but this one was shortened.
            is_longer = is_search and step.startswith("lowtide leaks ")
            is_command = is_command or step.startswith("(")
            if not is_command or is_longer or in_the_program or "-- CMD" in step:
                self.say(f"  end: {' '.join(lines)}")
                return None
        return f"has no end after {MAX_STEPS} steps"


def main():
    wanted, failed, all_lines = sys.argv[3:], [], []
    for name, start in WALKED:
        if wanted and not any(part in name for part in wanted):
            continue
        print(f"{name}:", flush=True)
        try:
            command, env = start()
            subject = Subject(command, env)
        except Missing as what:
            print(f"  not tried, {what} is missing")
            continue
        path = Walk(subject)
        try:
            time.sleep(2)
            wrong = path.follow()
        finally:
            subject.end()
        all_lines += [f"{name}:", *path.lines]
        if wrong:
            failed.append(f"{name}: {wrong}")
            print(f"  WRONG: {wrong}", flush=True)
    (OUT / "walk.txt").write_text("\n".join(all_lines + failed) + "\n")
    print("\n".join(failed) or "all paths end")
    sys.exit(len(failed) > 0)


main()
