"""Measures what each remedy of the table gains on a real program.

    run.py LOWTIDE DIRECTORY [NAME ...]

Each subject runs twice: as it is, and with the remedy. `lowtide inspect` has to advise the row on the first one. DIRECTORY
gets gains.tsv (row, subject, MiB before, MiB predicted, MiB after) and the programs that are built. NAME selects rows.
"""

import json
import subprocess
import sys
import time

from subjects import OUT, SUBJECTS, Missing, Subject, rss

LOWTIDE = sys.argv[1]
MIB = 1 << 20


def inspect(pid):
    done = subprocess.run([LOWTIDE, "inspect", "--json", str(pid)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measure(row, start, remedy):
    """Returns the bytes before, predicted and after; `None` for a row that was not advised."""
    command, env = start()
    subject = Subject(command, env)
    try:
        time.sleep(3)
        found, before = inspect(subject.pid), rss(subject.pid)
        advised = [cure for cure in found["cures"] if cure.get("row") == row]
        if not advised:
            return None
        after = None
        if "line" in remedy:
            subject.line()
        elif "command" in remedy:
            subprocess.run(remedy["command"].format(pid=subject.pid), shell=True, check=True, stdout=subprocess.DEVNULL)
        if "line" in remedy or "command" in remedy:
            time.sleep(remedy.get("settle", 5))
            after = rss(subject.pid)
    finally:
        subject.end()
    if "env" in remedy or "argument" in remedy:
        more = remedy.get("env", {})
        more = more() if callable(more) else more
        subject = Subject(command + ([remedy["argument"]] if "argument" in remedy else []), env | more)
        try:
            time.sleep(remedy.get("settle", 5))
            after = rss(subject.pid)
        finally:
            subject.end()
    return before, advised[0]["predicted_bytes"], after, advised[0]["how"]


def main():
    wanted, failed, lines = sys.argv[3:], 0, []
    for row, name, start, remedy in SUBJECTS:
        if wanted and row not in wanted:
            continue
        try:
            measured = measure(row, start, remedy)
        except Missing as what:
            print(f"{row}: not tried, {what} is missing")
            continue
        if measured is None:
            print(f"{row}: NOT ADVISED on {name}")
            failed += 1
            continue
        figures = ["-" if bytes is None else f"{bytes / MIB:.1f}" for bytes in measured[:3]]
        lines.append("\t".join([row, name, *figures]))
        print(lines[-1], flush=True)
    (OUT / "gains.tsv").write_text("\n".join(lines) + "\n")
    sys.exit(failed > 0)


main()
