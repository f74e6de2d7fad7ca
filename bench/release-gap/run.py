#!/usr/bin/env python3
"""The longest gap of a hoarding program's request threads, in windows in which its memory is given back in one
way or another, and in windows in which nothing is done. In each round every kind once, in a drawn order.
   cargo build --release && bench/release-gap/run.py && bench/release-gap/summary.py > summary.txt
   ROUNDS=30 MB=3000 WINDOW=6 KINDS=... CONFIGS=... GDB_EVERY=3 SEED=1, LOWTIDE for another binary, and OTHER for
   that of the kind "other", which is a release too. Of the kind "trimmed", malloc_trim is over when the window begins:
   what it shows is what any memory costs that has to be taken from the kernel again."""
import atexit, json, os, random, shutil, subprocess, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
lowtide = os.environ.get("LOWTIDE", os.path.join(here, "../../target/release/lowtide"))
rounds = int(os.environ.get("ROUNDS", "30"))
mb = int(os.environ.get("MB", "3000"))
# Longer than any of the acts takes: else the windows are not alike, and the summary says so.
window_s = float(os.environ.get("WINDOW", "6"))
seed = int(os.environ.get("SEED", "1"))
# nothing and again: their difference is the noise. gdb: today's way. stopped: the same, and no other thread goes on.
kinds = os.environ.get("KINDS", "nothing again release trim gdb stopped").split()
configs = os.environ.get("CONFIGS", "one+malloc many+malloc many+none").split()
# What gdb does is not close, and takes long: in every third round only.
gdb_every = int(os.environ.get("GDB_EVERY", "3"))
SETTLE_S = 0.3
GDB_LIMIT_S = 60

work = tempfile.mkdtemp()
binary = os.path.join(work, "hoard")
source = os.path.join(here, "../../crates/release/tests/programs/hoard.c")
subprocess.run(["cc", "-O2", "-pthread", "-o", binary, source], check=True)
idle = subprocess.Popen(["sleep", "1000000"])
atexit.register(lambda: (idle.kill(), shutil.rmtree(work)))
raw = open(os.environ.get("RAW", os.path.join(here, "raw.jsonl")), "w")


class Hoard:
    def __init__(self, config):
        arenas, does = config.split("+")
        arguments = [f"mb={mb}", f"arenas={arenas}", f"work={does}", f"seed={seed}"]
        self.process = subprocess.Popen([binary, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"hoard ended: {self.process.wait()}")
        return line

    def say(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def ask(self, what):
        self.say(what)
        return json.loads(self.answer())

    def rss(self):
        with open(f"/proc/{self.process.pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Rss:"))


def told(command, binary=lowtide):
    out = subprocess.run([binary, "release", "--json", *command], capture_output=True, text=True)
    try:
        return json.loads(out.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"outcome": "failed", "reason": (out.stderr or out.stdout).strip()}


def gdb(pid, stops_all):
    lock = "on" if stops_all else "off"
    command = ["gdb", "-nx", "-batch", "-p", str(pid), "-ex", f"set scheduler-locking {lock}",
               "-ex", "call (int) malloc_trim(0)"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=GDB_LIMIT_S)
    return {"gdb_called": "$1 = " in out.stdout}


FIGURES = ["outcome", "hazard", "reason", "runs_in", "waiting_in", "predicted_bytes", "returned_bytes", "elapsed_s", "pauses",
           "longest_pause_s", "median_pause_s", "lock_holds", "longest_lock_s", "p99_lock_s", "passes", "skipped_ranges",
           "joined_blocks"]


def act(hoard, kind):
    pid = hoard.process.pid
    if kind in ("nothing", "again", "trimmed"):
        # The same program, with a process that has nothing: what starting it costs is in every kind.
        told(["--dry-run", str(idle.pid)])
        return {}
    if kind in ("release", "other"):
        answer = told([str(pid)], lowtide if kind == "release" else os.environ["OTHER"])
        return {name: answer[name] for name in FIGURES if answer.get(name) is not None}
    if kind == "trim":
        return {"trim_us": hoard.ask("trim")["trim_us"]}
    return gdb(pid, kind == "stopped")


def stolen_s():
    """What other guests of the host have taken of our processors, in seconds of one."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def reports():
    """How often this machine, where it is a virtual one, has told its host of free memory."""
    with open("/proc/interrupts") as file:
        lines = [line.split() for line in file if "reporting" in line]
    return sum(int(word) for line in lines for word in line[1:1 + os.cpu_count()])


def window(hoard, kind):
    hoard.say("hoard")
    hoard.answer()
    rss_before = hoard.rss()
    if kind == "trimmed":
        hoard.ask("trim")
    time.sleep(SETTLE_S)
    hoard.say("begin")
    began, stolen, reported = time.monotonic(), stolen_s(), reports()
    row = act(hoard, kind)
    act_s = time.monotonic() - began
    time.sleep(max(0, window_s - act_s))
    figures = hoard.ask("end")
    row["stolen_s"], row["reports"] = round(stolen_s() - stolen, 2), reports() - reported
    row.update(figures, act_s=round(act_s, 6), rss_before_bytes=rss_before, rss_after_bytes=figures["rss_kb"] << 10)
    return row


draw = random.Random(seed)
for config in configs:
    here_kinds = [kind for kind in kinds if kind not in ("gdb", "stopped") or shutil.which("gdb")]
    # With all others stopped, malloc_trim waits for ever where one of them holds a lock.
    here_kinds = [kind for kind in here_kinds if kind != "stopped" or config.endswith("+none")]
    hoard = Hoard(config)
    for number in range(rounds):
        order = [kind for kind in here_kinds if kind not in ("gdb", "stopped") or number % gdb_every == 0]
        draw.shuffle(order)
        for place, kind in enumerate(order):
            row = {"config": config, "mb": mb, "window_s": window_s, "round": number, "place": place, "kind": kind}
            row.update(window(hoard, kind))
            raw.write(json.dumps(row) + "\n")
            raw.flush()
    hoard.say("quit")
    hoard.process.wait()
