#!/usr/bin/env python3
"""What a release of an idle heap returns, for each shape of heap under each glibc: predicted, returned, and what
malloc_trim returns of a twin of the same seed.
   cargo build --release
   for s in bullseye trixie sid experimental; do .ci/fetch-glibc $s target/glibc-$s; done
   bench/release-idle/run.py 2.31=target/glibc-bullseye/lib 2.36=/lib/x86_64-linux-gnu ...
   bench/release-idle/summary.py > summary.txt
   SCALE=1 (of 1 GiB), SHAPES=..., LOWTIDE for another binary"""
import json, os, re, shutil, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
lowtide = os.environ.get("LOWTIDE", os.path.join(here, "../../target/release/lowtide"))
scale = float(os.environ.get("SCALE", "1"))
GB, MB = 1 << 30, 1 << 20
SHAPES = {"uniform": (8, GB), "log_uniform": (8, GB), "heaps": (2, GB), "single": (0, GB), "pieces": (0, GB),
          "mmapped": (0, GB), "realloc": (3, GB), "sbrk": (0, GB), "small": (2, GB), "fast": (0, GB),
          "fast_all": (2, 512 * MB), "fast_shuffled": (0, 128 * MB)}
wanted = os.environ.get("SHAPES", " ".join(SHAPES)).split()

work = tempfile.mkdtemp()
binary = os.path.join(work, "subject")
threads_library = subprocess.run(["cc", "-print-file-name=libpthread.so.0"], capture_output=True, text=True).stdout.strip()
subprocess.run(["cc", "-O1", "-DOLDEST", "-fno-pie", "-no-pie", "-nostartfiles", "-o", binary,
                os.path.join(here, "../../crates/probe/tests/heap/subject.c"), "-Wl,--no-as-needed", threads_library], check=True)


class Subject:
    def __init__(self, directory, shape):
        threads, size = SHAPES[shape]
        command = [f"{directory}/ld-linux-x86-64.so.2", "--library-path", directory, binary, shape, str(threads), str(int(size * scale))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self):
        lines = []
        for line in self.process.stdout:
            if line == "done\n":
                return "".join(lines)
            lines.append(line)
        raise SystemExit(f"the subject ended: {self.process.wait()}")

    def trim(self):
        """By how much its anonymous memory fell, and how long that took in ms."""
        self.process.stdin.write("trim\n")
        self.process.stdin.flush()
        text = self.answer()
        before, after = map(int, re.search(r"anonymous (\d+) (\d+)", text).groups())
        return before - after, int(re.search(r"nanoseconds (\d+)", text).group(1)) / 1e6

    def anonymous(self):
        with open(f"/proc/{self.process.pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))

    def release(self, *options):
        out = subprocess.run([lowtide, "release", "--json", *options, str(self.process.pid)], capture_output=True, text=True)
        told = json.loads(out.stdout.splitlines()[-1])
        # An error has no outcome.
        return told if "outcome" in told else {"outcome": "failed", "reason": told.get("message")}

    def end(self):
        self.process.kill()
        self.process.wait()


with open(os.environ.get("RAW", os.path.join(here, "raw.jsonl")), "w") as raw:
    for library in sys.argv[1:]:
        version, directory = library.split("=")
        for shape in wanted:
            one, twin = Subject(directory, shape), Subject(directory, shape)
            dry = one.release("--dry-run")
            before = one.anonymous()
            done = one.release()
            fell = before - one.anonymous()
            again = one.release()
            left, _ = one.trim()
            # The twin's own prediction: how much alike the two are.
            dry_twin = twin.release("--dry-run", "--method", "trim")
            trimmed, trim_ms = twin.trim()
            row = {"glibc": version, "shape": shape, "threads": SHAPES[shape][0], "bytes": int(SHAPES[shape][1] * scale),
                   "predicted_bytes": dry.get("predicted_bytes"), "fell_bytes": fell, "malloc_trim_bytes": trimmed,
                   "malloc_trim_predicted_bytes": dry_twin.get("predicted_bytes"), "malloc_trim_ms": trim_ms,
                   "trim_afterwards_bytes": left, "again": again["outcome"], "again_predicted_bytes": again.get("predicted_bytes")}
            row.update({name: done.get(name) for name in ["outcome", "hazard", "reason", "runs_in", "returned_bytes", "elapsed_s", "passes", "pauses",
                                                      "median_pause_s", "longest_pause_s", "lock_holds", "longest_lock_s", "p99_lock_s",
                                                      "joined_blocks", "skipped_ranges"]})
            raw.write(json.dumps(row) + "\n")
            raw.flush()
            one.end()
            twin.end()
shutil.rmtree(work)
