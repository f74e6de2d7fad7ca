#!/usr/bin/env python3
"""Memory and CPU time of `lowtide load` and of h2load for the same burst, in pairs that take turns.

    run.py LOAD SERVER REQUESTS EXPIRE_MS PAIRS > raw.jsonl

LOAD and SERVER are commands, with {url}, {requests}, {streams} and {address} in them. Each run has a server of its
own, which lets every request wait for EXPIRE_MS, so that all are in flight at once. CPU time is what the
kernel says of the client (wait4), peak RSS its VmHWM. The idle client is the same command with a request on each
connection.
"""
import json, os, shlex, socket, subprocess, sys, tempfile, time

CONNECTIONS = 8


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def high_water(pid):
    """What wait4 tells would have this script's own memory in it, from before the exec."""
    try:
        for line in open(f"/proc/{pid}/status"):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def client(command, **words):
    line = shlex.split(command.format(**words))
    began = time.monotonic()
    out = tempfile.TemporaryFile()
    child = subprocess.Popen(line, stdout=out, stderr=subprocess.DEVNULL)
    peak, ended = 0, (0, 0, None)
    while ended[0] == 0:
        peak = max(peak, high_water(child.pid))
        time.sleep(0.02)
        ended = os.wait4(child.pid, os.WNOHANG)
    _, status, used = ended
    child.returncode = os.waitstatus_to_exitcode(status)
    out.seek(0)
    out = out.read().decode()
    return dict(exit=child.returncode, cpu_s=round(used.ru_utime + used.ru_stime, 4), user_s=round(used.ru_utime, 4),
                peak_rss_bytes=peak, wall_s=round(time.monotonic() - began, 3)), out


def answered(name, out):
    if name == "h2load":
        line = next(l for l in out.splitlines() if l.startswith("requests:"))
        return int(line.split("done,")[1].split()[0])
    return json.loads(out.splitlines()[-1])["rounds"][0]["succeeded"]


def one(name, command, server, requests, expire):
    address = f"127.0.0.1:{free_port()}"
    with subprocess.Popen(shlex.split(server.format(address=address)), stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        url = f"http://{address}/?expire={expire}"
        row, out = client(command, url=url, requests=requests, streams=max(2, requests // CONNECTIONS))
        row["answered"] = answered(name, out)
        if name == "lowtide" and row["answered"]:
            round_ = json.loads(out.splitlines()[-1])["rounds"][0]
            row["peak_in_flight"], row["sent_s"] = round_["peak_in_flight"], round_["sent_s"]
        process.kill()
    return row


def main():
    load, server, requests, expire, pairs = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    tools = {"lowtide": load, "h2load": "h2load -n {requests} -c 8 -m {streams} -T 600s -N 600s {url}"}
    for pair in range(pairs):
        order = list(tools) if pair % 2 == 0 else list(tools)[::-1]
        for name in order:
            idle = one(name, tools[name], server, CONNECTIONS, 300)
            row = one(name, tools[name], server, requests, expire)
            row = dict(pair=pair, tool=name, requests=requests, idle_rss_bytes=idle["peak_rss_bytes"], **row)
            print(json.dumps(row), flush=True)


main()
