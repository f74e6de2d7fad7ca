#!/usr/bin/env python3
"""Draws RSS of one process that is purged never, every 5 minutes, and every 30 seconds.

Usage: periods.py PICTURE.svg PERIODS.jsonl"""

import json
import sys

picture, readings = sys.argv[1:]
COLOURS = {"none": "#6e7781", "periodic=5m": "#0969da", "periodic=30s": "#1a7f37"}
LEFT, TOP, WIDTH, HEIGHT = 70, 40, 760, 200
with open(readings) as file:
    lines = [json.loads(line) for line in file]
lines = [line for line in lines if "t_s" in line and "none" in line]
length = max(line["t_s"] for line in lines)
most = max(line[name] for line in lines for name in COLOURS) / 2**20 * 1.05
out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 280" width="860" height="280" font-family="sans-serif" '
    'font-size="12" fill="#24292f">', '<rect width="860" height="280" fill="#ffffff"/>']
for place, (name, colour) in enumerate(COLOURS.items()):
    x = LEFT + 130 * place
    out.append(f'<line x1="{x}" x2="{x + 20}" y1="16" y2="16" stroke="{colour}" stroke-width="2"/><text x="{x + 26}" y="20">{name}</text>')
    points = " ".join(f"{LEFT + line['t_s'] / length * WIDTH:.1f},{TOP + HEIGHT - line[name] / 2**20 / most * HEIGHT:.1f}" for line in lines)
    out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
for mib in range(0, int(most) + 1, 1000):
    y = TOP + HEIGHT - mib / most * HEIGHT
    out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d0d7de"/><text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mib:,} MiB</text>')
for minute in range(0, int(length / 60) + 1):
    x = LEFT + minute * 60 / length * WIDTH
    out.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{minute} min</text>')
out.append("</svg>")
with open(picture, "w") as file:
    file.write("\n".join(out) + "\n")
