"""A worker that renders a large report, keeps one line of it, and waits for the next request: report.py [SECONDS]"""

import sys
import time


def render(rows):
    return [f"{row:09d};" + "x" * 900 for row in range(rows)]


def total(report):
    return f"{len(report)} rows " + "." * 2000


report = render(300_000)
cache = total(report)
del report
print("waiting", flush=True)
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 600)
