#!/usr/bin/env python3
"""What raw.jsonl says: returned against predicted, and against what malloc_trim returned of a twin."""
import json, os, sys

here = os.path.dirname(os.path.abspath(__file__))
rows = [json.loads(line) for line in open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "raw.jsonl"))]
print("bytes; error: returned less predicted; RSS: by how much anonymous memory fell, less returned; more: returned less malloc_trim's; "
      "left: what malloc_trim then still found")
print(f"{'glibc':6}{'shape':14}{'predicted':>12}{'returned':>12}{'error':>8}{'RSS':>8}{'malloc_trim':>13}{'more':>12}{'left':>10}{'ms':>8}"
      f"{'trim ms':>9}{'passes':>7}{'lock ms':>9}")
for r in rows:
    if r["outcome"] not in ("released", "nothing_to_release"):
        print(f"{r['glibc']:6}{r['shape']:14}{r['outcome']}: {r['reason']} (RSS fell by {r['fell_bytes']}, malloc_trim's {r['malloc_trim_bytes']})")
        continue
    returned = r["returned_bytes"]
    print(f"{r['glibc']:6}{r['shape']:14}{r['predicted_bytes']:12}{returned:12}{returned - r['predicted_bytes']:8}{r['fell_bytes'] - returned:8}"
          f"{r['malloc_trim_bytes']:13}{returned - r['malloc_trim_bytes']:12}{r['trim_afterwards_bytes']:10}{r['elapsed_s'] * 1e3:8.0f}"
          f"{r['malloc_trim_ms']:9.1f}{r['passes']:7}{r['longest_lock_s'] * 1e3:9.3f}")
done = [r for r in rows if r["outcome"] == "released"]
none = [r for r in rows if r["outcome"] == "nothing_to_release"]
exact = [r for r in done if r["returned_bytes"] == r["predicted_bytes"]]
least = [r for r in done if r["returned_bytes"] >= r["malloc_trim_bytes"]]
print(f"{len(rows)} heaps: {len(done)} released, {len(none)} with nothing to release; of those released, returned was predicted in {len(exact)}, and "
      f"at least malloc_trim's in {len(least)}")
