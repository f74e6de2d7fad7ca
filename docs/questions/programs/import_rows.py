"""An import that holds all rows until the last one is read."""

import time

rows = []
while True:
    rows.append(f"{len(rows):012d}" * 100)
    if len(rows) % 500 == 0:
        time.sleep(0.02)
