#!/usr/bin/env python3
"""One table of raw.jsonl. Usage: summary.py < raw.jsonl"""
import json, sys

print("| client | body, bytes | lingering close | requests | failed | connections recycled |")
print("|---|---|---|---|---|---|")
for line in sys.stdin:
    one = json.loads(line)
    recycled = one["figures"]["recycled_connections"]
    if "steady" in one:
        for load in one["steady"]["rounds"]:
            print("| lowtide load, 2,000 requests/s | 0 | 1 s | {:,} | {:,} | {:,} |".format(load["requests"], load["failed"], recycled))
        continue
    result = one["result"]
    linger = "1 s" if one["linger_ms"] else "none"
    print("| {client} | {bytes:,} | {linger} | {sent:,} | {failed:,} | {recycled:,} |".format(**result, linger=linger, recycled=recycled))
