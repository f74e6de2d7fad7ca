#!/usr/bin/env python3
"""`lowtide load` and h2load for the same requests against servers that others have written, plain and over TLS, in pairs
that take turns.
   cargo build --release && cargo build --release -p lowtide-load --examples && bench/load-servers/run.py > raw.jsonl
   REQUESTS=100000 PAIRS=6, SERVERS="hyper, TLS;node" for some of them, LOWTIDE for another binary
CPU time is what the kernel says of the client (wait4), peak RSS its VmHWM, read every 20 ms."""
import json, os, socket, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
lowtide = os.environ.get("LOWTIDE", os.path.join(here, "../../target/release/lowtide"))
hyper = os.path.join(os.path.dirname(lowtide), "examples/hyper_server")
requests, pairs = int(os.environ.get("REQUESTS", "100000")), int(os.environ.get("PAIRS", "6"))
work = tempfile.TemporaryDirectory()
key, cert = os.path.join(work.name, "key.pem"), os.path.join(work.name, "cert.pem")
subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL)
with open(os.path.join(work.name, "index.html"), "w") as page:
    page.write("hello\n")
nghttpd = ["nghttpd", "-a", "127.0.0.1", "-m", "1000", "-d", work.name]
SERVERS = {
    "nghttpd": lambda port: nghttpd + ["--no-tls", str(port)],
    "nghttpd, TLS": lambda port: nghttpd + [str(port), key, cert],
    "node": lambda port: ["node", os.path.join(here, "server.js"), str(port)],
    "node, TLS": lambda port: ["node", os.path.join(here, "server.js"), str(port), key, cert],
    "hyper": lambda port: [lowtide, "demo-server", f"127.0.0.1:{port}"],
    "hyper, TLS": lambda port: [hyper, f"127.0.0.1:{port}", key, cert],
}
asked = os.environ.get("SERVERS")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def high_water(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


def client(command):
    began, peak, ended = time.monotonic(), 0, (0, 0, None)
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        while ended[0] == 0:
            peak = max(peak, high_water(child.pid))
            time.sleep(0.02)
            ended = os.wait4(child.pid, os.WNOHANG)
        wall = time.monotonic() - began
        out.seek(0)
        text = out.read().decode()
    child.returncode = os.waitstatus_to_exitcode(ended[1])
    used = ended[2]
    return text, {"exit": child.returncode, "cpu_s": round(used.ru_utime + used.ru_stime, 4), "wall_s": round(wall, 3),
                  "peak_rss_bytes": peak}


def one(tool, url):
    if tool == "lowtide":
        text, row = client([lowtide, "--json", "load", url, "-k", "-c", "8", "-m", "100", "-n", str(requests)])
        told = json.loads(text.splitlines()[-1])["rounds"][0]
        return row | {"succeeded": told["succeeded"], "failed": told["failed"]}
    text, row = client(["h2load", "-n", str(requests), "-c", "8", "-m", "100", url])
    words = next(line for line in text.splitlines() if line.startswith("requests:")).replace(",", "").split()
    return row | {"succeeded": int(words[words.index("succeeded") - 1]), "failed": int(words[words.index("failed") - 1])}


for name, command in SERVERS.items():
    if asked and name not in asked.split(";"):
        continue
    for pair in range(pairs):
        for tool in ["lowtide", "h2load"][:: 1 if pair % 2 == 0 else -1]:
            port = free_port()
            server = subprocess.Popen(command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.02)
            scheme = "https" if "TLS" in name else "http"
            print(json.dumps({"server": name, "pair": pair, "tool": tool, "requests": requests} | one(tool, f"{scheme}://127.0.0.1:{port}/")), flush=True)
            server.kill()
            server.wait()
