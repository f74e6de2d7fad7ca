#!/usr/bin/env python3
"""Draws what a command shows on a terminal as an SVG.

Usage: terminal.py PICTURE.svg COLUMNS LINES SECONDS [--keys KEYS] -- COMMAND…      needs pyte (pip)

The command runs in a terminal of that size for at most so many seconds, and is then ended. The picture has the lines up to
the last one with text. Each of the keys is sent a second after the one before; SECONDS counts from the last.
"""

import fcntl
import html
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

import pyte

words = sys.argv[1:]
place = words.index("--")
command, words = words[place + 1:], words[:place]
keys = words[words.index("--keys") + 1] if "--keys" in words else ""
picture, columns, lines, seconds = words[0], int(words[1]), int(words[2]), float(words[3])
WIDTH, HEIGHT, SIZE = 7.83, 17, 13
COLOURS = {"black": "#24292f", "red": "#cf222e", "green": "#1a7f37", "brown": "#9a6700", "blue": "#0969da", "magenta": "#8250df",
    "cyan": "#1b7c83", "white": "#6e7781", "default": "#24292f"}

pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm-256color"
    os.execvp(command[0], command)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
screen = pyte.Screen(columns, lines)
stream = pyte.ByteStream(screen)
deadline = time.monotonic() + (1 if keys else seconds)
ended = False
while not ended:
    if time.monotonic() >= deadline:
        if not keys:
            break
        os.write(terminal, keys[0].encode())
        keys = keys[1:]
        deadline = time.monotonic() + (1 if keys else seconds)
    if select.select([terminal], [], [], 0.1)[0]:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            data = b""
        ended = not data
        stream.feed(data)
if not ended:
    os.kill(pid, signal.SIGTERM)
os.waitpid(pid, 0)
lines = 1 + max((row for row in range(lines) if screen.display[row].strip()), default=0)


def colour(name):
    if name in COLOURS:
        return COLOURS[name]
    return "#" + name if len(name) == 6 else COLOURS.get(name.replace("bright", ""), COLOURS["default"])


# Column and row of each dot of a Braille character, from the lowest bit of its code: few fonts have them, so they are drawn.
DOTS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]


def dots(character, x, y):
    code = ord(character) - 0x2800
    for bit, (column, row) in enumerate(DOTS):
        if 0 <= code < 256 and code >> bit & 1:
            yield "M%.1f %.1fh0" % (x + WIDTH * (0.25 + 0.5 * column), y + HEIGHT * (0.125 + 0.25 * row))


parts = []
for row in range(lines):
    column = 0
    while column < columns:
        style = screen.buffer[row][column]
        end = column
        while end < columns and screen.buffer[row][end][1:] == style[1:]:
            end += 1
        text = "".join(screen.buffer[row][at].data for at in range(column, end))
        ink, paper = colour(style.fg), None if style.bg == "default" else colour(style.bg)
        if style.reverse:
            ink, paper = "#ffffff" if paper is None else paper, ink
        x, y = 10 + column * WIDTH, 10 + row * HEIGHT
        if paper:
            parts.append('<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"/>' % (x, y, (end - column) * WIDTH, HEIGHT, paper))
        marks = [dot for at, character in enumerate(text) for dot in dots(character, x + at * WIDTH, y)]
        if marks:
            parts.append('<path d="%s" stroke="%s" stroke-width="2.6" stroke-linecap="round"/>' % ("".join(marks), ink))
        text = "".join(" " if 0x2800 <= ord(character) < 0x2900 else character for character in text)
        if text.strip():
            weight = ' font-weight="bold"' if style.bold else ""
            parts.append('<text x="%.1f" y="%.1f" fill="%s"%s textLength="%.1f" xml:space="preserve">%s</text>'
                % (x, y + 13, ink, weight, (end - column) * WIDTH, html.escape(text)))
        column = end
size = (20 + columns * WIDTH, 20 + lines * HEIGHT)
with open(picture, "w") as file:
    file.write('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" '
        'font-size="%d">\n<rect width="100%%" height="100%%" rx="6" fill="#f6f8fa"/>\n%s\n</svg>\n' % (*size, SIZE, "\n".join(parts)))
