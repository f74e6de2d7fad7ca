#!/usr/bin/env python3
"""Compares lowtide with LeakSanitizer and valgrind on all programs of crates/leaks/tests/live/corpus.c.

    cargo build --release -p lowtide-leaks --example reachable
    python3 bench/leaks-agreement/run.py target/release/examples/reachable [DIRECTORY]

It prints a table in Markdown. It needs a C compiler with LeakSanitizer, and valgrind. Exit code 1: a block that is kept was
called lost, by a program that is not known for it.
"""
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "crates/leaks/tests/live/corpus.c"
# Programs whose pointers no tool can see.
INVISIBLE = {"xored", "compressed", "in_pipe"}
SECONDS = 120


def compiled(home, name, *flags):
    subprocess.run([os.environ.get("CC", "cc"), "-pthread", *flags, "-o", home / name, SOURCE], check=True)
    return home / name


def start(words, **more):
    """Starts a program and reads what is true of its blocks."""
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    truth = []
    for line in child.stdout:
        if line.strip() == "ready":
            return child, truth
        truth.append(tuple(line.split()))
    raise RuntimeError(f"{words}: {child.stderr.read()}")


def of_lowtide(reachable, program, name, library):
    child, truth = start([program, name, library])
    try:
        lines = "".join(f"{word} {at}\n" for word, at in truth)
        done = subprocess.run([reachable, str(child.pid)], input=lines, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr}")
        return truth, {line.split()[0]: [int(n) for n in line.split()[1:]] for line in done.stdout.splitlines()}
    finally:
        child.kill()
        child.wait()


def of_sanitizer(program, name, library):
    """Returns how many of the lost and of the kept blocks LeakSanitizer reports."""
    options = {"LSAN_OPTIONS": "report_objects=1:max_leaks=0:print_suppressions=0", "PATH": os.environ["PATH"]}
    child, truth = start([program, name, library], env=options)
    _, text = child.communicate(timeout=SECONDS)
    if "has encountered a fatal error" in text:
        return None
    leaked = {int(at, 16) for at in re.findall(r"^(0x[0-9a-f]+) \(\d+ bytes\)", text, re.M)}
    return [sum(1 for word, at in truth if word == wanted and int(at, 16) in leaked) for wanted in ("lost", "kept")]


def of_valgrind(program, name, library):
    """Returns the numbers of blocks that valgrind calls lost (definitely or indirectly), and possibly lost."""
    command = ["valgrind", "--leak-check=full", "--show-leak-kinds=none", "--errors-for-leak-kinds=none", program, name, library]
    child, _ = start(command)
    _, text = child.communicate(timeout=SECONDS)

    def blocks(kind):
        # A child prints its own before.
        found = re.findall(rf"{kind} lost: [\d,]+ bytes in ([\d,]+) blocks", text)
        return int(found[-1].replace(",", "")) if found else 0

    return [blocks("definitely") + blocks("indirectly"), blocks("possibly")]


def main():
    reachable = Path(sys.argv[1]).resolve()
    home = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()).resolve()
    home.mkdir(exist_ok=True)
    plain = compiled(home, "corpus", "-O1", "-g")
    with_lsan = compiled(home, "corpus-lsan", "-O1", "-g", "-fsanitize=leak")
    library = compiled(home, "libcorpus.so", "-shared", "-fPIC", "-DLIBRARY")
    names = subprocess.run([plain], capture_output=True, text=True, check=True).stdout.split()

    def row(name):
        truth, ours = of_lowtide(reachable, plain, name, library)
        return name, truth, ours, of_sanitizer(with_lsan, name, library), of_valgrind(plain, name, library)

    print("| program | lost, in truth | lowtide: lost, unsure | LeakSanitizer | valgrind: lost, possibly | kept, in truth "
          "| lowtide: lost, unsure | LeakSanitizer: lost |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    failed = False
    with ThreadPoolExecutor(4) as pool:
        for name, truth, ours, lsan, valgrind in pool.map(row, names):
            count = {word: sum(1 for w, _ in truth if w == word) for word in ("lost", "kept")}
            shown = {word: ", ".join(map(str, ours[word][:2])) if word in ours else "" for word in ("lost", "kept")}
            lsan = [str(n) if count[word] else "" for n, word in zip(lsan, count)] if lsan else ["failed"] * 2
            print(f"| {name} | {count['lost'] or ''} | {shown['lost']} | {lsan[0]} | {', '.join(map(str, valgrind))} "
                  f"| {count['kept'] or ''} | {shown['kept']} | {lsan[1]} |", flush=True)
            failed |= name not in INVISIBLE and ours.get("kept", [0])[0] > 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
