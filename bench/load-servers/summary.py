#!/usr/bin/env python3
"""What raw.jsonl says: CPU time, requests a second and peak RSS of both clients, and the ratio of CPU in pairs."""
import json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
print(f"{'server':14}{'tool':9}{'succeeded':>10}{'CPU us each':>12}{'requests/s':>11}{'peak MiB':>9}   CPU to h2load's, in pairs: median (least to most)")
for server in dict.fromkeys(r["server"] for r in rows):
    cpu = {}
    for tool in ("lowtide", "h2load"):
        of = [r for r in rows if (r["server"], r["tool"]) == (server, tool)]
        assert all(r["exit"] == 0 and r["succeeded"] + r["failed"] == r["requests"] for r in of), of
        median = lambda key: statistics.median(r[key] for r in of)
        cpu[tool] = [r["cpu_s"] for r in sorted(of, key=lambda r: r["pair"])]
        ratios = sorted(a / b for a, b in zip(cpu["lowtide"], cpu.get("h2load", [])))
        told = f"   {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})" if ratios else ""
        print(f"{server:14}{tool:9}{median('succeeded'):10.0f}{median('cpu_s') / of[0]['requests'] * 1e6:12.2f}"
              f"{of[0]['requests'] / median('wall_s'):11.0f}{median('peak_rss_bytes') / 2**20:9.1f}{told}")
