#!/usr/bin/env python3
"""Releases real servers, after a burst, while a client asks them at a steady rate.
   cargo build --release && cargo build --release --manifest-path bench/release-real/axum/Cargo.toml
   bench/release-real/run.py [CASE...] > summary.txt
   bench/release-real/run.py --table prints it again from raw.jsonl; APPEND=1 adds to that
   needs redis-server, redis-cli, node (NODE: another one) and openssl; ROUNDS: how often each, by default 3"""
import json, os, socket, statistics, subprocess, sys, tempfile, time, urllib.request

here = os.path.dirname(os.path.abspath(__file__))
lowtide = os.environ.get("LOWTIDE", os.path.join(here, "../../target/release/lowtide"))
axum = os.environ.get("AXUM", os.path.join(here, "axum/target/release/axum-subject"))
node = os.environ.get("NODE", "node")
libc = os.environ.get("LIBC", "/lib/x86_64-linux-gnu/libc.so.6")
rounds = int(os.environ.get("ROUNDS", "3"))
mib = int(os.environ.get("MIB", "1024"))
work = tempfile.mkdtemp()
port = 17391


def file(name):
    return os.path.join(here, name)


def start(command, **extra):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **extra)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process
        except OSError:
            time.sleep(0.02)


def get(path):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read()


def burst_h2():
    load = [lowtide, "demo-load", f"127.0.0.1:{port}", "50000", "5000"]
    subprocess.run(load, check=True, stdout=subprocess.DEVNULL)


def burst_tls():
    subprocess.run([node, file("connect.js"), str(port), "10000"], check=True)


def burst_python():
    get(f"/fill/{mib}")
    get("/drop/x")


def burst_redis():
    fill = "for i=ARGV[1],ARGV[2] do redis.call('set','k'..i,string.rep('x',40+(i*7919)%4000)) end"
    drop = "for i=ARGV[1],ARGV[2] do if i%20~=0 then redis.call('del','k'..i) end end"
    for script in fill, drop:
        for at in range(0, mib * 500, 10_000):
            command = ["redis-cli", "-p", str(port), "eval", script, "0", str(at), str(at + 9_999)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def certificate():
    key, cert = os.path.join(work, "key"), os.path.join(work, "cert")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
                    "-subj", "/CN=localhost"], check=True, stderr=subprocess.DEVNULL)
    return key, cert


def redis():
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    return start(command, env={**os.environ, "LD_PRELOAD": libc})


# What each is started with, its burst, and its steady load: kind, connections, requests a second.
cases = {
    "redis": (redis, burst_redis, ("redis", 4, 400)),
    "python, one thread": (lambda: start([sys.executable, file("single.py"), str(port)]), burst_python, ("http", 4, 400)),
    "python, threads": (lambda: start([sys.executable, file("threads.py"), str(port)]), burst_python, ("http", 4, 200)),
    "axum": (lambda: start([axum, f"127.0.0.1:{port}"]), burst_h2, ("http", 4, 400)),
    "hyper": (lambda: start([lowtide, "demo-server", f"127.0.0.1:{port}"]), burst_h2, ("h2", 1, 5)),
    "node, tls": (lambda: start([node, file("tls.js"), str(port), *certificate()]), burst_tls, ("tls", 4, 60)),
}


def inspect(pid):
    told = json.loads(subprocess.run([lowtide, "inspect", "--json", str(pid)], capture_output=True, check=True).stdout)
    ledger = {entry["owner"]: entry["bytes"] for entry in told["ledger"]}
    return {"rss_bytes": told["kernel_rss_bytes"], "allocator": told["allocator"], "verdict": told["verdict"]["kind"],
            "ledger": ledger, "stays_bytes": sum(ledger.values()) - ledger["reclaimable"]}


def settle(pid):
    """Until what can go back is level: the burst is over."""
    seen = None
    for _ in range(60):
        look = inspect(pid)
        if seen and abs(seen - look["ledger"]["reclaimable"]) < 1 << 20:
            return
        seen = look["ledger"]["reclaimable"]
        time.sleep(1)


def window(load, begin, seconds):
    took = [(t, due - begin) for due, t, _ in load["answers"] if begin <= due < begin + seconds]
    longest, at = max(took, default=(0.0, 0.0))
    return {"answered": len(took), "longest_s": longest, "longest_at_s": at,
            "median_s": statistics.median([t for t, _ in took] or [0])}


def one(case, round_, pid, kind, connections, rate):
    load = subprocess.Popen([sys.executable, file("load.py"), kind, str(port), str(connections), str(rate)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "LOWTIDE": lowtide})
    first = time.monotonic() + 2
    time.sleep(8)
    before = inspect(pid)
    begin = time.monotonic()
    out = subprocess.run([lowtide, "release", "--json", str(pid)], capture_output=True, text=True)
    elapsed = time.monotonic() - begin
    release = json.loads(out.stdout) if out.stdout else {"outcome": "failed", "reason": out.stderr}
    # Where things lie on the machine is nobody's business.
    release["command"] = [os.path.basename(part) for part in release.get("command", []) if part]
    after = inspect(pid)
    time.sleep(2 + 4 * max(1, elapsed))
    end = time.monotonic() - 0.5
    told = json.loads(load.communicate("")[0])
    # As long as the release, and at least a second, so that requests fall into it.
    length = max(1.0, elapsed)
    without, at = [], first
    while at + length <= end:
        # The looks before and after are kept out too.
        if at + length <= begin - 0.5 or at >= begin + length + 0.5:
            without.append(window(told, at, length))
            at += length
        else:
            at = begin + length + 0.5 if at < begin + length + 0.5 else at
    return {"case": case, "round": round_, "before": before, "after": after, "release": release, "exit": out.returncode,
            "window_s": length, "with": window(told, begin, length), "without": without,
            "answered": len(told["answers"]), "failures": told["failures"]}


def run(case, raw):
    begin, burst, (kind, connections, rate) = cases[case]
    process, rows = begin(), []
    try:
        for round_ in range(rounds):
            burst()
            settle(process.pid)
            row = one(case, round_, process.pid, kind, connections, rate)
            row["load_average"] = os.getloadavg()[0]
            raw.write(json.dumps(row) + "\n")
            raw.flush()
            rows.append(row)
            table([row], sys.stderr)
    finally:
        process.terminate()
        process.wait()
    return rows


def table(rows, to):
    for r in rows:
        release, mb, ms = r["release"], 2**20, 1000
        stays = r["before"]["stays_bytes"]
        without = [w["longest_s"] for w in r["without"]] or [0]
        get = lambda name: release.get(name) or 0
        print(f"{r['case']:<18} {release['outcome']:<9} {r['before']['rss_bytes'] / mb:>6.0f} {r['after']['rss_bytes'] / mb:>6.0f} "
              f"{stays / mb:>6.0f} {100 * r['after']['rss_bytes'] / stays - 100:>+5.1f} "
              f"{get('predicted_bytes') / mb:>6.0f} {get('returned_bytes') / mb:>6.0f} {get('runs_in') or '-':<10} "
              f"{get('pauses'):>6} {ms * get('median_pause_s'):>6.2f} {ms * get('longest_pause_s'):>7.2f} "
              f"{get('lock_holds'):>6} {ms * get('longest_lock_s'):>7.2f} {get('elapsed_s'):>6.2f} "
              f"{r['answered']:>8} {len(r['failures']):>6} {r['with']['answered']:>6} {ms * r['with']['longest_s']:>7.1f} "
              f"{ms * statistics.median(without):>7.1f} {ms * max(without):>7.1f} {len(without):>3}", file=to)


def header():
    print("MiB, ms. stays: RSS before without what the ledger calls reclaimable; %: RSS after against that. answered, failed: "
          "in all, and in the\nwindow with the release; its longest answer, and that of windows as long without: their median, the longest, how many\n"
          "case               outcome   before  after  stays     %  predi. return. runs in    pauses median longest "
          "  holds longest   took answered failed window  longest  median longest   n")


if __name__ == "__main__":
    header()
    if sys.argv[1:] == ["--table"]:
        with open(file("raw.jsonl")) as raw_file:
            table([json.loads(line) for line in raw_file], sys.stdout)
        sys.exit()
    mode = "a" if os.environ.get("APPEND") else "w"
    with open(file("raw.jsonl"), mode) as raw_file:
        for name in sys.argv[1:] or cases:
            table(run(name, raw_file), sys.stdout)
            sys.stdout.flush()
