#!/usr/bin/env python3
"""Draws the figures that a document published beside ours: a row for each treatment, the document on the left, ours on the right,
with the same scale of memory. Both are records of lowtide: a directory, or an archive of one. OURS may be several, separated by
commas.

Usage: draw.py [--own-scale] [--seconds N] PICTURE.svg DOCUMENT OURS TREATMENT…
A treatment is ALLOCATOR or ALLOCATOR/TUNE, or two of them with = between if ours has another name: tcmalloc=gperftools.
--own-scale is for another size than the document's: each picture then has a scale of its own. --seconds draws the first N seconds
of a trial."""

import argparse
import html
import json
import math
import pathlib
import sys
import tarfile

WIDTH, HEIGHT, LEFT, TOP, GAP = 360, 120, 70, 40, 60
POINTS = 360
COLOURS = {"RSS": "#0969da", "allocated": "#1a7f37"}


def files(record):
    """Name and text of each file of a record."""
    if record.endswith(".tar.gz"):
        with tarfile.open(record) as archive:
            for member in archive.getmembers():
                if member.isfile() and member.name.endswith(".jsonl"):
                    yield member.name, archive.extractfile(member).read().decode()
    else:
        for path in sorted(pathlib.Path(record).rglob("*.jsonl")):
            yield str(path), path.read_text()


def courses(record):
    """The first trial of each treatment: its points of RSS and of allocated memory, in seconds and MiB."""
    found = {}
    for name, text in files(record):
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        trial = next((line for line in lines if line["kind"] == "trial"), None)
        if trial is None or "attempt" in name:
            continue
        treatment = trial["treatment"]
        label = treatment["allocator"] + (f"/{treatment['tune']}" if treatment.get("tune") else "")
        if treatment.get("policy", "none") != "none":
            label += f" + {treatment['policy']}"
        rss = [(line["t_s"], line["rss_bytes"] / 2**20) for line in lines if line["kind"] == "sample"]
        keys = ("inner_memory_bytes", "allocated_bytes")
        allocated = [(line["t_s"], line["values"][key] / 2**20) for line in lines if line["kind"] == "figures"
            for key in keys if key in line["values"]]
        if label not in found and len(rss) > 1:
            found[label] = {"RSS": rss, "allocated": allocated}
    return found


def begun(course, seconds):
    """The first so many seconds of a course."""
    first = course["RSS"][0][0]
    return {name: [point for point in points if point[0] - first <= seconds] for name, points in course.items()}


def thinned(points):
    """At most so many points: the largest of each stretch of time."""
    if len(points) <= POINTS:
        return points
    first, last = points[0][0], points[-1][0]
    largest = {}
    for t_s, mib in points:
        place = int((t_s - first) / (last - first) * (POINTS - 1))
        if place not in largest or mib > largest[place][1]:
            largest[place] = (t_s, mib)
    return [largest[place] for place in sorted(largest)]


def step(most):
    """A round number of which two to four fit."""
    for exponent in range(10):
        for digit in (1, 2, 5):
            if most / (digit * 10**exponent) <= 4:
                return digit * 10**exponent
    return most


def panel(x, y, course, most):
    """One course, with its axes."""
    out = []
    begin = min(t_s for t_s, _ in course["RSS"])
    length = max(t_s for t_s, _ in course["RSS"]) - begin
    every = step(most)
    for mib in range(0, int(most) + 1, every):
        at = y + HEIGHT - mib / most * HEIGHT
        out.append(f'<line x1="{x}" x2="{x + WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="#d0d7de"/>')
        out.append(f'<text x="{x - 6}" y="{at + 4:.1f}" text-anchor="end">{mib:,} MiB</text>')
    every = step(length)
    for t_s in range(0, int(length) + 1, every):
        at = x + t_s / length * WIDTH
        out.append(f'<text x="{at:.1f}" y="{y + HEIGHT + 16}" text-anchor="middle">{t_s} s</text>')
    for name, colour in COLOURS.items():
        points = [f"{x + (t_s - begin) / length * WIDTH:.1f},{y + HEIGHT - min(mib, most) / most * HEIGHT:.1f}"
            for t_s, mib in thinned(course[name]) if 0 <= t_s - begin <= length]
        if points:
            out.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--own-scale", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf)
    for name in ("picture", "document", "ours"):
        parser.add_argument(name)
    parser.add_argument("treatments", nargs="+")
    options = parser.parse_args()
    theirs, own = courses(options.document), {}
    for record in options.ours.split(","):
        own |= courses(record)
    rows = []
    for treatment in options.treatments:
        their_name, _, own_name = treatment.partition("=")
        own_name = own_name or their_name
        for name, known in ((their_name, theirs), (own_name, own)):
            if name not in known:
                sys.exit(f"there is no treatment {name}: there are {', '.join(known)}")
        rows.append((own_name, begun(theirs[their_name], options.seconds), begun(own[own_name], options.seconds)))
    width, height = 2 * (LEFT + WIDTH) + 30, TOP + len(rows) * (HEIGHT + GAP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#24292f">', f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    for number, title in enumerate(("the document", "here")):
        out.append(f'<text x="{LEFT + number * (WIDTH + LEFT)}" y="16" font-weight="bold">{title}</text>')
    at = width - 190
    for name, colour in COLOURS.items():
        if not any(course[name] for _, their, our in rows for course in (their, our)):
            continue
        out.append(f'<line x1="{at}" x2="{at + 20}" y1="12" y2="12" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{at + 25}" y="16">{name}</text>')
        at += 90
    for number, (name, their, our) in enumerate(rows):
        y = TOP + number * (HEIGHT + GAP) + 18
        peaks = [1.05 * max(mib for _, mib in course["RSS"]) for course in (their, our)]
        scales = peaks if options.own_scale else [max(peaks)] * 2
        out.append(f'<text x="{LEFT}" y="{y - 6}">{html.escape(name)}</text>')
        out += panel(LEFT, y, their, scales[0])
        out += panel(LEFT + WIDTH + LEFT, y, our, scales[1])
    out.append("</svg>")
    with open(options.picture, "w") as file:
        file.write("\n".join(out) + "\n")


main()
