#!/usr/bin/env python3
"""Sums up raw.jsonl: bytes of the client for a request in flight, and CPU time, pair by pair."""
import collections, json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
for requests in sorted({r["requests"] for r in rows}):
    cpu, memory = collections.defaultdict(dict), collections.defaultdict(list)
    for r in (r for r in rows if r["requests"] == requests):
        assert r["answered"] == requests and r["exit"] == 0, r
        cpu[r["pair"]][r["tool"]] = r["cpu_s"]
        memory[r["tool"]].append((r["peak_rss_bytes"] - r["idle_rss_bytes"]) / requests)
    print(f"{requests} requests in flight over 8 connections, {len(cpu)} pairs")
    for tool in ("lowtide", "h2load"):
        of = [pair[tool] for pair in cpu.values()]
        print(f"  {tool:8} {statistics.median(memory[tool]):7.1f} B a request beyond the idle client "
              f"({min(memory[tool]):.1f} to {max(memory[tool]):.1f}); "
              f"CPU {statistics.median(of):.3f} s ({min(of):.3f} to {max(of):.3f})")
    ratios = sorted(pair["lowtide"] / pair["h2load"] for pair in cpu.values())
    print(f"  CPU, lowtide to h2load, in pairs: median {statistics.median(ratios):.3f} "
          f"({ratios[0]:.3f} to {ratios[-1]:.3f})")
