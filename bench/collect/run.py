#!/usr/bin/env python3
"""Runs `lowtide release --collect` on HotSpot in many configurations, and checks that none is harmed:
the program continues, prints nothing else (no stacks of threads), and no file is left.

    sudo bench/collect/run.py target/debug/lowtide > bench/collect/raw.jsonl
"""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

LOWTIDE = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
JAVA_25 = "/usr/lib/jvm/temurin-25-jdk-amd64/bin/java"
SMALL = ["-Xms16m", "-Xmx400m"]
CLASSES = tempfile.mkdtemp(dir="/var/tmp")
os.chmod(CLASSES, 0o755)
subprocess.run(["javac", "-d", CLASSES, f"{HERE}/Burst.java"], check=True)


class Subject:
    def __init__(self, flags, java="java", before=(), env=None, wait=True):
        command = [*before, java, *SMALL, *flags, "-cp", CLASSES, "Burst"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      env={**os.environ, **(env or {})})
        self.printed = b""
        if wait:
            while b"ready" not in self.printed:
                self.read(60)
        self.pid = self.java() if before else self.child.pid

    def java(self):
        """The PID of Java among the descendants of what was started."""
        pids, found = [self.child.pid], self.child.pid
        while pids:
            found = pids.pop()
            children = open(f"/proc/{found}/task/{found}/children").read().split()
            pids += map(int, children)
        return found

    def read(self, seconds):
        if select.select([self.child.stdout], [], [], seconds)[0]:
            part = os.read(self.child.stdout.fileno(), 1 << 16)
            if not part:
                raise EOFError(self.printed[-300:])
            self.printed += part
            return True
        return False

    def is_unharmed(self):
        """It answers, and has printed nothing but its answers."""
        try:
            self.child.stdin.write(b"?\n")
            self.child.stdin.flush()
            while b"alive" not in self.printed:
                if not self.read(60):
                    return "no answer"
        except (BrokenPipeError, EOFError):
            return "ended"
        lines = [line for line in self.printed.decode().splitlines() if not line.startswith("Picked up")]
        lines = [line for line in lines if "warning" not in line]
        return "unharmed" if lines == ["ready", "alive"] else f"printed {lines}"

    def end(self):
        for pid in {self.pid, self.child.pid}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.child.wait()


def rss(pid):
    try:
        pages = open(f"/proc/{pid}/statm").read().split()[1]
        return int(pages) * 4096
    except FileNotFoundError:
        return 0


def collect(pid):
    run = subprocess.run([LOWTIDE, "--json", "release", "--collect", str(pid)], capture_output=True, text=True)
    found = json.loads(run.stdout) if run.stdout.strip() else {}
    return run, found


def trial(name, subject, between=lambda subject: None, after=lambda subject: None):
    between(subject)
    before = rss(subject.pid)
    root = f"/proc/{subject.pid}/root/tmp"
    run, found = collect(subject.pid)
    after(subject)
    collected = found.get("collected")
    left = [file for file in (os.listdir(root) if os.path.isdir(root) else []) if file.startswith(".attach_pid")]
    row = {
        "configuration": name,
        "exit": run.returncode,
        "outcome": "collected" if collected else "refused" if found else "error",
        "reason": found.get("reason") if not collected else None,
        "by": collected and collected["by"],
        "collector": collected and collected["collector"],
        "pause_ms": collected and collected["pause_s"] and round(collected["pause_s"] * 1000, 1),
        "rss_before_mib": round(before / 2**20, 1),
        "rss_collected_mib": collected and round(collected["after_bytes"] / 2**20, 1),
        "rss_after_mib": round(rss(subject.pid) / 2**20, 1),
        "error": None if found else run.stderr.strip(),
        "files_left": left,
        "process": subject.is_unharmed(),
    }
    subject.end()
    print(json.dumps(row), flush=True)


def stale_socket(subject):
    """A socket of the same name, as of an earlier process with the same PID."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"/tmp/.java_pid{subject.pid}")
    listener.close()


def foreign_socket(subject):
    """Another process listens in the place of HotSpot."""
    subject.listener = socket.socket(socket.AF_UNIX)
    subject.listener.bind(f"/tmp/.java_pid{subject.pid}")
    subject.listener.listen(1)


def forget_socket(subject):
    os.unlink(f"/tmp/.java_pid{subject.pid}")


def removed_socket(subject):
    collect(subject.pid)
    forget_socket(subject)


def link(subject):
    os.symlink("/etc/passwd", f"/tmp/.java_pid{subject.pid}")


def stop(subject):
    os.kill(subject.pid, signal.SIGSTOP)
    while open(f"/proc/{subject.pid}/stat").read().rsplit(")")[1].split()[0] != "T":
        time.sleep(0.01)


def go_on(subject):
    os.kill(subject.pid, signal.SIGCONT)


def start_up():
    """`--collect` at many moments of the start, from the first instruction on."""
    outcomes = {}
    for step in range(16):
        subject = Subject([], wait=False)
        time.sleep(step * 0.05)
        run, found = collect(subject.pid)
        outcome = "collected" if found.get("collected") else "refused" if found else "error"
        while b"ready" not in subject.printed and subject.read(60):
            pass
        key = f"{outcome}, {subject.is_unharmed()}"
        outcomes[key] = outcomes.get(key, 0) + 1
        subject.end()
    print(json.dumps({"configuration": "start-up, 16 moments", "outcomes": outcomes}), flush=True)


def main():
    if sys.argv[2:] == ["start-up"]:
        return start_up()
    unlock = "-XX:+UnlockExperimentalVMOptions"
    for name in ["Serial", "Parallel", "G1", "Shenandoah", "Z"]:
        trial(f"17 {name}", Subject([f"-XX:+Use{name}GC"]))
    trial("17 Epsilon", Subject([unlock, "-XX:+UseEpsilonGC", "-Xmx2g"]))
    for name in ["Serial", "G1", "Shenandoah", "Z"]:
        trial(f"25 {name}", Subject([f"-XX:+Use{name}GC"], JAVA_25))
    trial("25 -Xrs", Subject(["-Xrs"], JAVA_25))
    trial("-Xrs", Subject(["-Xrs"]))
    trial("-Xrs in JAVA_TOOL_OPTIONS", Subject([], env={"JAVA_TOOL_OPTIONS": "-Xrs"}))
    trial("-Xrs -XX:+StartAttachListener", Subject(["-Xrs", "-XX:+StartAttachListener"]))
    trial("-XX:+StartAttachListener", Subject(["-XX:+StartAttachListener"]))
    trial("-XX:+DisableAttachMechanism", Subject(["-XX:+DisableAttachMechanism"]))
    with open(f"{CLASSES}/flags", "w") as flags:
        flags.write("-XX:+DisableAttachMechanism\n")
    trial("the same in an argument file", Subject([f"@{CLASSES}/flags"]))
    trial("-XX:+DisableExplicitGC", Subject(["-XX:+DisableExplicitGC"]))
    trial("-XX:-UsePerfData", Subject(["-XX:-UsePerfData"]))
    trial("another user", Subject([], before=["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]))
    trial("a PID namespace", Subject([], before=["unshare", "-pf", "--mount-proc"]))
    trial("a user namespace", Subject([], before=["unshare", "-Ur"]))
    private = "mount -t tmpfs {} tmpfs /tmp && exec \"$@\""
    trial("its own /tmp", Subject([], before=["unshare", "-m", "sh", "-c", private.format("-o mode=1777"), "sh"]))
    trial("a read-only /tmp", Subject([], before=["unshare", "-m", "sh", "-c", private.format("-r"), "sh"]))
    trial("stopped", Subject([]), stop, go_on)
    trial("a socket to which nothing listens", Subject([]), stale_socket)
    trial("another process listens", Subject([]), foreign_socket, forget_socket)
    trial("a link in place of the socket", Subject([]), link, forget_socket)
    trial("the socket was removed", Subject([]), removed_socket)
    start_up()


main()
