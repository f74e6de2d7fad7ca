#!/usr/bin/env python3
"""How much memory a program that goes on taking and freeing gives back within 5 s, by a release and by malloc_trim
on an identical twin. In pairs, in a drawn order.
   cargo build --release && bench/release-churn/run.py && bench/release-churn/summary.py > summary.txt
   PAIRS=10 MB=1000 PROGRAMS="one many churn" SEED=1, and LOWTIDE for another binary"""
import json, os, random, shutil, subprocess, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
lowtide = os.environ.get("LOWTIDE", os.path.join(here, "../../target/release/lowtide"))
pairs = int(os.environ.get("PAIRS", "10"))
mb = int(os.environ.get("MB", "1000"))
seed = int(os.environ.get("SEED", "1"))
programs = os.environ.get("PROGRAMS", "one many churn").split()
WITHIN_S = 5

work = tempfile.mkdtemp()
crates = os.path.join(here, "../../crates")
hoard, churner = os.path.join(work, "hoard"), os.path.join(work, "subject")
subprocess.run(["cc", "-O2", "-pthread", "-o", hoard, os.path.join(crates, "release/tests/programs/hoard.c")], check=True)
subprocess.run(["cc", "-O1", "-o", churner, os.path.join(crates, "probe/tests/heap/subject.c"), "-lpthread"], check=True)


class Subject:
    """One that hoards and goes on with requests (one arena, many), or whose 4 threads do nothing but take and free."""

    def __init__(self, program, seed):
        if program == "churn":
            command, self.last = [churner, "churn", "4", str(mb << 20)], "done\n"
        else:
            command, self.last = [hoard, f"mb={mb}", f"arenas={program}", "work=malloc", f"seed={seed}"], None
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self):
        for line in self.process.stdout:
            if self.last in (None, line):
                return
        raise SystemExit(f"the subject ended: {self.process.wait()}")

    def trim(self):
        self.process.stdin.write("trim\n")
        self.process.stdin.flush()
        self.answer()

    def anonymous(self):
        with open(f"/proc/{self.process.pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))


def measure(program, kind, seed):
    subject = Subject(program, seed)
    before, began = subject.anonymous(), time.monotonic()
    row = {}
    if kind == "release":
        out = subprocess.run([lowtide, "release", "--json", str(subject.process.pid)], capture_output=True, text=True)
        told = json.loads(out.stdout.splitlines()[-1])
        # An error has no outcome.
        told = told if "outcome" in told else {"outcome": "failed", "reason": told.get("message")}
        row = {name: told.get(name) for name in ["outcome", "hazard", "reason", "runs_in", "predicted_bytes", "returned_bytes", "elapsed_s", "passes",
                                             "pauses", "median_pause_s", "longest_pause_s", "lock_holds", "longest_lock_s", "p99_lock_s", "skipped_ranges"]}
    else:
        subject.trim()
    row["act_s"] = time.monotonic() - began
    row["fell_at_once_bytes"] = before - subject.anonymous()
    time.sleep(max(0, began + WITHIN_S - time.monotonic()))
    row["fell_bytes"] = before - subject.anonymous()
    row["before_bytes"] = before
    subject.process.kill()
    subject.process.wait()
    return row


draw = random.Random(seed)
with open(os.environ.get("RAW", os.path.join(here, "raw.jsonl")), "w") as raw:
    for program in programs:
        for pair in range(pairs):
            order = ["release", "trim"]
            draw.shuffle(order)
            row = {"program": program, "mb": mb, "pair": pair, "order": order}
            for kind in order:
                row[kind] = measure(program, kind, seed + pair)
            raw.write(json.dumps(row) + "\n")
            raw.flush()
shutil.rmtree(work)
