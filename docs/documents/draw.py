#!/usr/bin/env python3
"""Draws the figures that a post published beside ours: a row for each treatment, the post on the left, ours on the right,
with the same scales of memory and of time. Both are records of lowtide: a directory, or an archive of one. OURS may be several,
separated by commas.

Usage: draw.py [--style STYLE] [--own-scale] [--own-time] [--seconds N] [--together] PICTURE.svg DOCUMENT OURS TREATMENT…
A treatment is ALLOCATOR or ALLOCATOR/TUNE, or two of them with = between if ours has another name: tcmalloc=gperftools.
--style selects what is drawn (STYLES). --own-scale is for another size than the post's: each picture then has scales of its
own. --own-time: of time alone. --seconds draws the first N seconds of a trial. --together adds a row with RSS of all treatments."""

import argparse
import html
import json
import math
import pathlib
import sys
import tarfile

WIDTH, HEIGHT, LEFT, RIGHT, TOP, GAP = 360, 130, 70, 70, 40, 60
POINTS = 360
# Series: its key, its name, its colour, its form, and whether it is a number on the right axis.
STYLES = {
    "rss": [("rss", "RSS", "#0969da", "line", False), ("allocated", "allocated", "#1a7f37", "line", False)],
    # The colours of the post.
    "streams": [
        ("rss", "outer memory (RSS)", "#e3b341", "area", False),
        ("allocated", "inner memory (allocated)", "#54aeff", "area", False),
        ("tasks", "tasks", "#1a7f37", "line", True),
        ("in flight", "requests in flight", "#4ac26b", "dash", True),
    ],
    "process": [
        ("vsz", "VSZ", "#80ccff", "line", False),
        ("rss", "RSS", "#0550ae", "line", False),
        ("mean of vsz", "mean of VSZ", "#80ccff", "dash", False),
        ("mean of rss", "mean of RSS", "#0550ae", "dash", False),
    ],
    "node": [
        ("rss", "RSS", "#0969da", "line", False),
        ("heap total", "heapTotal", "#bf8700", "line", False),
        ("allocated", "heapUsed", "#1a7f37", "line", False),
    ],
}
TOGETHER = ["#0550ae", "#1a7f37", "#bf8700", "#cf222e", "#8250df"]
# Keys in figures of the subject, and what they are.
FIGURES = {
    "inner_memory_bytes": ("allocated", 2**20),
    "allocated_bytes": ("allocated", 2**20),
    "heap_total_bytes": ("heap total", 2**20),
    "alive_tasks": ("tasks", 1),
    "requests_in_flight": ("in flight", 1),
}


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
    """The first trial of each treatment: the points of its series, in seconds and MiB or numbers."""
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
        samples = [line for line in lines if line["kind"] == "sample" and line["rss_bytes"]]
        course = {key: [(line["t_s"], line[f"{key}_bytes"] / 2**20) for line in samples] for key in ("rss", "vsz")}
        for line in lines:
            if line["kind"] == "figures":
                for key, (name, unit) in FIGURES.items():
                    if key in line["values"]:
                        course.setdefault(name, []).append((line["t_s"], line["values"][key] / unit))
        if "in flight" not in course:
            course["in flight"] = [(line["t_s"], line["in_flight"]) for line in lines if line["kind"] == "load_sample"]
        if label not in found and len(samples) > 1:
            found[label] = course
    return found


def begun(course, seconds):
    """The first so many seconds of a course, from its first sample on, with the means of memory."""
    first = course["rss"][0][0]
    cut = {}
    for name, points in course.items():
        cut[name] = [(t_s - first, value) for t_s, value in points if 0 <= t_s - first <= seconds]
    for name in ("rss", "vsz"):
        mean = sum(value for _, value in cut[name]) / len(cut[name])
        cut[f"mean of {name}"] = [(0, mean), (cut[name][-1][0], mean)]
    return cut


def thinned(points):
    """At most so many points: the largest of each stretch of time."""
    if len(points) <= POINTS:
        return points
    first, last = points[0][0], points[-1][0]
    largest = {}
    for t_s, value in points:
        place = int((t_s - first) / (last - first) * (POINTS - 1))
        if place not in largest or value > largest[place][1]:
            largest[place] = (t_s, value)
    return [largest[place] for place in sorted(largest)]


def step(most):
    """A round number of which two to four fit."""
    for exponent in range(10):
        for digit in (1, 2, 5):
            if most / (digit * 10**exponent) <= 4:
                return digit * 10**exponent
    return most


def most_of(course, style, is_right):
    return max((value for key, *_, right in style if right == is_right for _, value in course.get(key, [])), default=0)


def length_of(course):
    return course["rss"][-1][0]


def panel(x, y, course, style, most, most_right, length):
    """One course, with its axes."""
    out = []
    for mib in range(0, int(most) + 1, step(most)):
        at = y + HEIGHT - mib / most * HEIGHT
        out.append(f'<line x1="{x}" x2="{x + WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="#d0d7de"/>')
        out.append(f'<text x="{x - 6}" y="{at + 4:.1f}" text-anchor="end">{mib:,} MiB</text>')
    for number in range(0, int(most_right) + 1, step(most_right)) if most_right else ():
        at = y + HEIGHT - number / most_right * HEIGHT
        out.append(f'<text x="{x + WIDTH + 6}" y="{at + 4:.1f}" fill="#1a7f37">{number:,}</text>')
    for t_s in range(0, int(length) + 1, step(length)):
        out.append(f'<text x="{x + t_s / length * WIDTH}" y="{y + HEIGHT + 16}" text-anchor="middle">{t_s} s</text>')
    for key, _, colour, form, is_right in style:
        top = most_right if is_right else most
        points = [f"{x + t_s / length * WIDTH:.1f},{y + HEIGHT - min(value, top) / top * HEIGHT:.1f}"
            for t_s, value in thinned(course.get(key, [])) if t_s <= length]
        if not points:
            continue
        if form == "area":
            ends = (points[0].split(",")[0], points[-1].split(",")[0])
            corners = [f"{ends[0]},{y + HEIGHT}", *points, f"{ends[1]},{y + HEIGHT}"]
            out.append(f'<polygon points="{" ".join(corners)}" fill="{colour}" fill-opacity="0.8"/>')
        else:
            dash = ' stroke-dasharray="5 4"' if form == "dash" else ""
            out.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--style", choices=STYLES, default="rss")
    parser.add_argument("--own-scale", action="store_true")
    parser.add_argument("--own-time", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--together", action="store_true")
    for name in ("picture", "document", "ours"):
        parser.add_argument(name)
    parser.add_argument("treatments", nargs="+")
    options = parser.parse_args()
    theirs, own = courses(options.document), {}
    for record in options.ours.split(","):
        own |= courses(record)
    style = STYLES[options.style]
    rows = []
    for treatment in options.treatments:
        their_name, _, own_name = treatment.partition("=")
        own_name = own_name or their_name
        for name, known in ((their_name, theirs), (own_name, own)):
            if name not in known:
                sys.exit(f"there is no treatment {name}: there are {', '.join(known)}")
        rows.append((own_name, begun(theirs[their_name], options.seconds), begun(own[own_name], options.seconds), style))
    if options.together:
        colours = dict(zip((row[0] for row in rows), TOGETHER))
        both = [{"rss": max((row[side]["rss"] for row in rows), key=lambda points: points[-1][0])} for side in (1, 2)]
        for name, *pair, _ in rows:
            for side in (0, 1):
                both[side][name] = pair[side]["rss"]
        rows.append(("all, RSS", *both, [(name, name, colour, "line", False) for name, colour in colours.items()]))
    has_right = any(right for *_, right in style)
    column = LEFT + WIDTH + (RIGHT if has_right else 0)
    width, height = 2 * column + 30, TOP + 18 + len(rows) * (HEIGHT + GAP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#24292f">', f'<rect width="{width}" height="{height}" fill="#ffffff"/>']

    def legend(x, y, shown):
        for _, name, colour, form, _ in shown:
            dash = ' stroke-dasharray="5 4"' if form == "dash" else ""
            thick = 8 if form == "area" else 2
            out.append(f'<line x1="{x}" x2="{x + 20}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="{thick}"{dash}/>')
            out.append(f'<text x="{x + 25}" y="{y}">{html.escape(name)}</text>')
            x += 40 + 7 * len(name)

    for number, title in enumerate(("the post", "here")):
        out.append(f'<text x="{LEFT + number * column}" y="16" font-weight="bold">{title}</text>')
    legend(LEFT, 36, [one for one in style if any(course.get(one[0]) for row in rows for course in row[1:3])])
    for number, (name, their, our, style) in enumerate(rows):
        y = TOP + number * (HEIGHT + GAP) + 38
        peaks = [1.05 * most_of(course, style, False) for course in (their, our)]
        rights = [1.05 * most_of(course, style, True) for course in (their, our)]
        lengths = [length_of(course) for course in (their, our)]
        if not options.own_scale:
            peaks, rights = ([max(pair)] * 2 for pair in (peaks, rights))
        if not options.own_scale and not options.own_time:
            lengths = [max(lengths)] * 2
        out.append(f'<text x="{LEFT}" y="{y - 6}">{html.escape(name)}</text>')
        if name == "all, RSS":
            legend(LEFT + 80, y - 6, style)
        for side, course in enumerate((their, our)):
            out += panel(LEFT + side * column, y, course, style, peaks[side], rights[side], lengths[side])
    out.append("</svg>")
    with open(options.picture, "w") as file:
        file.write("\n".join(out) + "\n")


main()
