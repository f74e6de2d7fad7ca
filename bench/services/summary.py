#!/usr/bin/env python3
"""Tables of raw.jsonl: what was said of each service before and after, and what a release came to."""
import json, os

here = os.path.dirname(os.path.abspath(__file__))
lines = [json.loads(line) for line in open(os.path.join(here, "raw.jsonl"))]
MIB = 1 << 20


def mib(bytes):
    return f"{bytes / MIB:.1f}"


def owners(found):
    rows = {row["owner"]: row["bytes"] for row in found["ledger"] if row["bytes"] >= MIB / 2}
    named = [(m["name"], m["bytes"]) for m in found.get("managers") or [] if m["bytes"] >= MIB / 2]
    if named:
        rows.pop("runtime", None)
    all = sorted(list(rows.items()) + named, key=lambda row: -row[1])
    return ", ".join(f"{name} {mib(bytes)}" for name, bytes in all)


for line in lines:
    if line["act"] == "inspect":
        found = line["found"]
        if line["state"] == "before":
            print(f"\n{line['service']} ({line['malloc']}); {line['says'] or 'no statistics of its own'}")
        adds = "adds up" if sum(r["bytes"] for r in found["ledger"]) == found["kernel_rss_bytes"] else \
            f"kernel says {mib(found['kernel_rss_bytes'] or 0)}"
        print(f"  {line['state']:6} RSS {mib(found['rss_bytes'])} MiB, {adds}; {found['verdict']['kind']}: {owners(found)}")
    else:
        dry, done = line["dry"], line["done"]
        word = {None: "", True: ", serves", False: ", DOES NOT SERVE"}[line["serves"]]
        if done["outcome"] == "refused":
            agree = "dry run agrees" if dry["outcome"] == "refused" else "THE DRY RUN PROMISED IT"
            print(f"  release refused ({done['hazard']}; {agree}){word}")
        else:
            print(f"  release {done['outcome']}: predicted {mib(dry['predicted_bytes'])}, returned {mib(done['returned_bytes'])} MiB in "
                  f"{done['elapsed_s']:.2f} s, {done['pauses']} pauses, {done.get('pauses_over_bound', 0)} over the bound{word}")
