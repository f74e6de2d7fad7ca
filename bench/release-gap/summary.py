#!/usr/bin/env python3
"""What raw.jsonl says: each kind of window against that of the same round in which nothing was done."""
import json, os, random, statistics, sys

here = os.path.dirname(os.path.abspath(__file__))
rows = [json.loads(line) for line in open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "raw.jsonl"))]
NAMES = {"again": "nothing, again", "trimmed": "trimmed before", "release": "lowtide release", "other": "release, other build",
         "trim": "malloc_trim", "gdb": "gdb, malloc_trim",
         "stopped": "all stopped, malloc_trim"}
MEDIAN_AIM_MS, P95_AIM_MS = 2, 10


def p95(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def of_median(values):
    # 95 % of the median, by order statistics.
    values, n = sorted(values), len(values)
    half = 0.98 * n ** 0.5
    return values[max(0, int(n / 2 - half))], values[min(n - 1, int(n / 2 + half))]


def of_p95_difference(pairs):
    # 95 % by the bootstrap: rounds are drawn again, in pairs.
    draw = random.Random(0)
    found = []
    for _ in range(2000):
        again = draw.choices(pairs, k=len(pairs))
        found.append(p95([a for a, _ in again]) - p95([b for _, b in again]))
    found.sort()
    return found[50], found[1949]


def ms(us):
    return us / 1000


def span(low, high):
    return f"{low:.2f} to {high:.2f}"


for config in dict.fromkeys(row["config"] for row in rows):
    of_config = [row for row in rows if row["config"] == config]
    kinds = [kind for kind in ["again", *[k for k in NAMES if k != "again"]] if any(r["kind"] == kind for r in of_config)]
    nothing = {r["round"]: ms(r["longest_gap_us"]) for r in of_config if r["kind"] == "nothing"}
    first = of_config[0]
    print(f"\n{config.replace('+', ' arena(s), work=')}, {first['mb']} MB, {len(nothing)} rounds, windows of {first['window_s']} s; the longest "
          f"gap of its request threads, in ms")
    print(f"{'':26}{'n':>4}{'median':>9}{'p95':>9}{'longest':>9}{'difference, median':>22}{'interval':>19}{'of p95':>9}{'interval':>20}")
    values = list(nothing.values())
    print(f"{'nothing':26}{len(values):4}{statistics.median(values):9.2f}{p95(values):9.2f}{max(values):9.2f}")
    verdicts = {}
    for kind in kinds:
        gaps = {r["round"]: ms(r["longest_gap_us"]) for r in of_config if r["kind"] == kind and r.get("outcome", "released") == "released"}
        pairs = [(gaps[n], nothing[n]) for n in gaps if n in nothing]
        if not pairs:
            print(f"{NAMES[kind]:26}   0  never to its end")
            continue
        differences = [a - b for a, b in pairs]
        median, tail = statistics.median(differences), p95([a for a, _ in pairs]) - p95([b for _, b in pairs])
        verdicts[kind] = median <= MEDIAN_AIM_MS and tail <= P95_AIM_MS
        with_ = [a for a, _ in pairs]
        print(f"{NAMES[kind]:26}{len(pairs):4}{statistics.median(with_):9.2f}{p95(with_):9.2f}{max(with_):9.2f}{median:22.2f}"
              f"{span(*of_median(differences)):>19}{tail:9.2f}{span(*of_p95_difference(pairs)):>20}")
    if "release" in verdicts:
        met = "met" if verdicts["release"] else "not met"
        fail = [NAMES[kind] for kind in ("trim", "gdb", "stopped") if verdicts.get(kind) is False]
        proof = f"of the others these fail it: {', '.join(fail)}" if fail else "all others stay within it too, so that the session is void"
        print(f"aim (median up to {MEDIAN_AIM_MS} ms, p95 up to {P95_AIM_MS} ms): {met}; {proof}")

    def returned(kind):
        return {r["round"]: r["rss_before_bytes"] - r["rss_after_bytes"] for r in of_config if r["kind"] == kind}
    releases = [r for r in of_config if r["kind"] == "release"]
    done = [r for r in releases if r.get("outcome") == "released"]
    others = [r.get("hazard") or r.get("outcome") for r in releases if r not in done]
    if others:
        print(f"releases that were not: {others}")
    if done:
        def med(name, by=1.0):
            return statistics.median(r[name] for r in done) * by
        fell, trim = returned("release"), returned("trim")
        print(f"a release: {med('returned_bytes') / 2**20:.0f} MiB returned, {med('predicted_bytes') / 2**20:.0f} predicted "
              f"(returned/predicted {statistics.median(r['returned_bytes'] / r['predicted_bytes'] for r in done):.4f}), in "
              f"{med('elapsed_s', 1e3):.0f} ms, {med('passes'):.0f} passes; {done[0]['runs_in']}")
        print(f"  RSS fell by {statistics.median(fell.values()) / 2**20:.0f} MiB; by malloc_trim "
              f"{statistics.median(trim.values()) / 2**20 if trim else float('nan'):.0f}; by nothing "
              f"{statistics.median(returned('nothing').values()) / 2**20:.0f}")
        print(f"  pauses of the borrowed thread: {med('pauses'):.0f}, median {med('median_pause_s', 1e3):.3f} ms (worst release "
              f"{max(r['median_pause_s'] for r in done) * 1e3:.3f}), longest {max(r['longest_pause_s'] for r in done) * 1e3:.3f} ms")
        print(f"  holds of a lock: {med('lock_holds'):.0f}, p99 {med('p99_lock_s', 1e3):.3f} ms, longest at the median of releases "
              f"{med('longest_lock_s', 1e3):.3f}, of all {max(r['longest_lock_s'] for r in done) * 1e3:.3f} ms")
    acts = {kind: statistics.median(r["act_s"] for r in of_config if r["kind"] == kind) for kind in kinds}
    print("seconds the act took, with its start: " + ", ".join(f"{NAMES[kind]} {s:.2f}" for kind, s in acts.items()))
    late = [r["kind"] for r in of_config if r["act_s"] > r["window_s"]]
    if late:
        print(f"longer than the window: {dict((kind, late.count(kind)) for kind in late)}")
    hung = [r for r in of_config if r.get("gdb_called") is False]
    if hung:
        print(f"gdb did not call malloc_trim in {len(hung)} windows")
