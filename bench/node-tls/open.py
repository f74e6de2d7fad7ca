#!/usr/bin/env python3
"""Prints V8's heap and RSS of each trial when all connections were open: the last such reading of the server in the
first, the second and the last round, in MiB, as the post prints them: total/used/RSS. After the last close: RSS.

Usage: open.py RECORD…      directories, or archives of one"""

import json
import pathlib
import sys
import tarfile


def files(record):
    if record.endswith(".tar.gz"):
        with tarfile.open(record) as archive:
            for member in archive.getmembers():
                if "/trials/" in member.name and member.name.endswith(".jsonl") and ".load-" not in member.name:
                    yield archive.extractfile(member).read().decode()
    else:
        for path in sorted(pathlib.Path(record, "trials").glob("*.jsonl")):
            if ".load-" not in path.name:
                yield path.read_text()


for record in sys.argv[1:]:
    for text in files(record):
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        trial = next(line for line in lines if line["kind"] == "trial")["treatment"]
        figures = [line for line in lines if line["kind"] == "figures"]
        most = max(line["values"]["connections"] for line in figures)
        rounds, was_open = [], False
        for line in figures:
            is_open = line["values"]["connections"] == most
            if is_open and not was_open:
                rounds.append(None)
            if is_open:
                rounds[-1] = line["values"]
            was_open = is_open
        def shown(values):
            return "/".join(f"{values[key] / 2**20:.0f}" for key in ("heap_total_bytes", "heap_used_bytes", "rss_bytes"))
        last = [line for line in lines if line["kind"] == "sample" and line["rss_bytes"]][-1]
        print(f"{trial['tune']} + {trial['policy']}: {most:.0f} connections, {len(rounds)} rounds:", ", ".join(shown(r) for r in (rounds[0], rounds[min(1, len(rounds) - 1)], rounds[-1])),
            f"; at the end {last['rss_bytes'] / 2**20:.0f}")
