#!/usr/bin/env python3
"""Medians and ranges of raw.jsonl."""
import json, os, statistics as s

here = os.path.dirname(os.path.abspath(__file__))
lines = [json.loads(line) for line in open(os.path.join(here, "raw.jsonl"))]
for arenas in ["one", "many"]:
    for work in ["none", "malloc"]:
        print(f"3 GB, {arenas} arena(s), request threads {'allocate' if work == 'malloc' else 'compute'}:")
        by = {}
        for line in lines:
            if line["kind"] == "time" and (line["arenas"], line["work"]) == (arenas, work):
                by.setdefault(line["state"], []).append(line)
        for state, found in by.items():
            wall, gap = [l["wall_s"] for l in found], [l["longest_gap_us"] / 1000 for l in found]
            share = [l["returned_bytes"] / max(1, l["predicted_bytes"]) for l in found]
            print(f"  {state:6} n {len(found)}  wall {s.median(wall):.2f} s ({min(wall):.2f} to {max(wall):.2f})  longest gap {s.median(gap):.1f} ms "
                  f"({min(gap):.1f} to {max(gap):.1f})  returned {min(share):.3f} to {max(share):.3f} of predicted")
for busy in sorted({l["busy_loops"] for l in lines if l["kind"] == "signal"}):
    print(f"from the signal to the exit, beside {busy} busy loops:")
    for state in dict.fromkeys(l["state"] for l in lines if l["kind"] == "signal"):
        late = sorted(l["exit_s"] for l in lines if l["kind"] == "signal" and (l["state"], l["busy_loops"]) == (state, busy))
        if late:
            print(f"  {state:6} n {len(late)}  median {s.median(late):.3f} s, longest {late[-1]:.3f} s")
