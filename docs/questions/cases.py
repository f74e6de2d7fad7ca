#!/usr/bin/env python3
"""Runs the commands on the pages of this folder on their programs, and checks what they print.

    docs/questions/cases.py LOWTIDE [--write] [PAGE…]      PAGE: rss-stays-high oom-killed is-it-a-leak …

A block after `<!-- case: NAME -->` is what a command printed. Each run must print the sentences of its case, and so must the
page. With --write, the blocks become those of this run. It needs root, for memory cgroups, and takes about five minutes."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
COLUMNS = "80"
MIB = 1 << 20
# The files of the limit in versions 1 and 2, below the root of memory cgroups.
ROOTS = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
CGROUPS, LIMIT = next((Path(root), limit) for root, limit in ROOTS if Path(root, "cgroup.procs").exists())
# The sentences of each case, as regular expressions; words may be on different lines.
SENTENCES = {
    "hoard": [r"hoard: .* were freed and are still held", r"lowtide release 4242"],
    "release": [r"RSS .* → ", r"released: .* were returned"],
    "leaks": [r"SESSIONS", r"session"],
    "charge": [r"shmem_unmapped .*MiB", r"/dev/shm/export\.csv"],
    "killed": [r"The kernel killed this process for lack of memory", r"limit of 256 MiB", r"was memory in use by the program"],
    "study": [r"glibc 2\.\d+ \+ adaptive", r"jemalloc", r"Use glibc \+ adaptive"],
}


class Run:
    """What the commands of one page printed."""

    def __init__(self, lowtide):
        self.lowtide, self.printed = lowtide, {}

    def show(self, name, shown, *arguments, pid=None):
        """Runs lowtide, and keeps its output under a name, with the command as a reader would type it."""
        environment = {**os.environ, "COLUMNS": COLUMNS, "NO_COLOR": "1"}
        done = subprocess.run([self.lowtide, *map(str, arguments)], cwd=PROGRAMS, env=environment, text=True, stdout=subprocess.PIPE,
                              stderr=sys.stderr, timeout=1800)
        text = done.stdout.replace(self.lowtide, "lowtide")
        if pid:
            text = re.sub(rf"\b{pid}\b", "4242", text)
        self.printed[name] = "$ {}\n{}\n".format(shown, text.strip("\n"))


@contextlib.contextmanager
def program(*words, ready="waiting", group=None):
    """Starts a program, in a cgroup if one is given, and waits until it is ready."""
    enter = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group else None
    with subprocess.Popen(words, cwd=PROGRAMS, stdout=subprocess.PIPE, text=True, preexec_fn=enter) as child:
        try:
            if ready and ready not in child.stdout.readline():
                sys.exit(f"{words} did not get ready")
            yield child.pid
        finally:
            child.kill()


@contextlib.contextmanager
def cgroup(name, limit=None):
    path = CGROUPS / name
    path.mkdir()
    try:
        if limit:
            (path / LIMIT).write_text(str(limit))
        yield path
    finally:
        end = time.monotonic() + 20
        while path.exists() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                path.rmdir()
            time.sleep(0.1)


def rss_stays_high(run):
    with program("python3", "report.py") as pid:
        run.show("hoard", "lowtide inspect 4242", "inspect", pid, pid=pid)
        run.show("release", "lowtide release 4242", "release", pid, pid=pid)


def is_it_a_leak(run):
    with program("python3", "sessions.py", ready=None) as pid:
        time.sleep(2)
        run.show("leaks", "lowtide leaks 4242 --duration 30s", "leaks", pid, "--duration", "30s", pid=pid)


def the_pod_counts_more(run):
    with cgroup("app.service") as group:
        try:
            with program("python3", "export_rows.py", group=group) as pid:
                run.show("charge", "lowtide inspect --cgroup 4242", "inspect", "--cgroup", pid, pid=pid)
        finally:
            Path("/dev/shm/export.csv").unlink(missing_ok=True)


def oom_killed(run):
    with tempfile.TemporaryDirectory() as box, cgroup("app.service", limit=256 * MIB) as group:
        with program("python3", "import_rows.py", ready=None, group=group) as pid:
            subprocess.run([run.lowtide, "attach", "--black-box", box, "-p", "none", str(pid)], check=True, stdout=subprocess.PIPE,
                           timeout=120)
        run.show("killed", "lowtide report /var/lib/lowtide/box", "report", box, pid=pid)
        run.printed["killed"] = run.printed["killed"].replace(box, "/var/lib/lowtide/box")


def which_allocator(run):
    with tempfile.TemporaryDirectory() as work:
        command = ["python3", "report.py", "15"]
        options = ["-a", "glibc,jemalloc", "-p", "none,adaptive", "--max-slowdown", "15%"]
        run.show("study", " ".join(["lowtide study", *options, "--", *command]), "study", *options, "-o", f"{work}/record", "--", *command)
        run.printed["study"] = run.printed["study"].replace(f"{work}/", "")


PAGES = {"rss-stays-high": rss_stays_high, "oom-killed": oom_killed, "is-it-a-leak": is_it_a_leak,
         "the-pod-counts-more": the_pod_counts_more, "which-allocator": which_allocator}


def block_of(name):
    return re.compile(rf"(<!-- case: {name} -->\n\n?```console\n)(.*?)(```\n)", re.DOTALL)


def fails(name, text, where):
    joined = " ".join(text.split())
    missing = [sentence for sentence in SENTENCES[name] if not re.search(sentence, joined)]
    if missing:
        print(f"{where}: the case {name} does not print {missing}:\n{text}", file=sys.stderr)
    return bool(missing)


def main():
    lowtide, *words = sys.argv[1:] or sys.exit(__doc__)
    chosen = [word for word in words if word != "--write"] or list(PAGES)
    failed = False
    for page in chosen:
        file = HERE / f"{page}.md"
        text = file.read_text()
        run = Run(os.path.realpath(lowtide))
        PAGES[page](run)
        for name, printed in run.printed.items():
            if not block_of(name).search(text):
                sys.exit(f"{file} has no block for the case {name}")
            if "--write" in words and not fails(name, printed, "this run"):
                text = block_of(name).sub(lambda found: found[1] + printed + found[3], text)
            failed |= fails(name, block_of(name).search(text)[2], file.name)
            failed |= "--write" not in words and fails(name, printed, "this run")
        file.write_text(text)
    sys.exit(failed)


main()
