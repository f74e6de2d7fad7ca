#!/bin/sh
# What a walk from outside predicts and costs, for each shape of heap under each glibc:
#   cargo build --release -p lowtide-probe --example walk
#   for s in bullseye trixie sid experimental; do .ci/fetch-glibc $s target/glibc-$s; done
#   bench/heap-walk/run.sh 2.31=target/glibc-bullseye/lib 2.36=/lib/x86_64-linux-gnu ... > summary.txt
set -eu
here=$(cd "$(dirname "$0")" && pwd)
walk=${WALK:-$here/../../target/release/examples/walk}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O1 -DOLDEST -fno-pie -no-pie -nostartfiles -o "$work/subject" "$here/../../crates/probe/tests/heap/subject.c" \
    -Wl,--no-as-needed "$(cc -print-file-name=libpthread.so.0)"
python3 - "$walk" "$work/subject" "$here/raw.jsonl" "$@" <<'PY'
import json, re, subprocess, sys
walk, subject, raw, libraries = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
GB, MB = 1 << 30, 1 << 20
SHAPES = [("uniform", 8, GB), ("log_uniform", 8, GB), ("heaps", 2, GB), ("single", 0, GB), ("pieces", 0, GB),
          ("mmapped", 0, GB), ("realloc", 3, GB), ("sbrk", 0, GB), ("small", 2, GB), ("fast", 0, GB),
          ("fast_all", 2, 512 * MB), ("fast_shuffled", 0, 128 * MB)]
out = open(raw, "w")
print("CPU time: the least of 3 walks, process start aside; malloc_info and malloc_trim: time in the process itself")
print(f"{'glibc':6}{'shape':14}{'predicted':>12}{'returned':>12}{'error':>7}{'chunks':>10}{'CPU ms':>9}{'M/s':>7}"
      f"{'peak MB':>8}{'info ms':>9}{'trim ms':>9}")
for library in libraries:
    version, directory = library.split("=")
    for shape, threads, size in SHAPES:
        command = [f"{directory}/ld-linux-x86-64.so.2", "--library-path", directory, subject, shape, str(threads), str(size)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        def answer():
            lines = []
            for line in process.stdout:
                if line == "done\n": break
                lines.append(line)
            return "".join(lines)
        def ask(what):
            process.stdin.write(what + "\n"); process.stdin.flush()
            text = answer()
            return text, int(re.search(r"nanoseconds (\d+)", text).group(1)) / 1e6
        answer()
        walks = [json.loads(subprocess.run([walk, str(process.pid)], capture_output=True, check=True).stdout) for _ in range(3)]
        _, info_ms = ask("info")
        text, trim_ms = ask("trim")
        before, after = map(int, re.search(r"anonymous (\d+) (\d+)", text).groups())
        best = min(walks, key=lambda w: w["cpu_s"])
        row = {"glibc": version, "shape": shape, "threads": threads, "bytes": size, "predicted_bytes": best["trim_bytes"],
               "returned_bytes": before - after, "chunks": best["chunks"], "cpu_s": [w["cpu_s"] for w in walks],
               "walk_peak_rss_bytes": best["peak_rss_bytes"], "malloc_info_ms": info_ms, "malloc_trim_ms": trim_ms,
               "whole": all(a["whole"] for a in best["arenas"]) and best["mmapped_whole"]}
        out.write(json.dumps(row) + "\n"); out.flush()
        ms = best["cpu_s"] * 1e3
        print(f"{version:6}{shape:14}{row['predicted_bytes']:12}{row['returned_bytes']:12}"
              f"{row['predicted_bytes'] - row['returned_bytes']:7}{row['chunks']:10}{ms:9.1f}{row['chunks'] / best['cpu_s'] / 1e6:7.1f}"
              f"{best['peak_rss_bytes'] >> 20:8}{info_ms:9.1f}{trim_ms:9.1f}{'' if row['whole'] else '  not whole'}", flush=True)
        process.stdin.close(); process.wait()
PY
