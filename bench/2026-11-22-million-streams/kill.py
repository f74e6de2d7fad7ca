#!/usr/bin/env python3
"""Kills the server when a part of 10^6 requests is answered, and says what the load tells of it.
   kill.py LOWTIDE SERVER"""
import json, os, signal, subprocess, sys, tempfile, time

lowtide, server = sys.argv[1:]
streams, connections, expire_ms, port = int(os.environ.get("STREAMS", "125000")), 8, 40000, 17008
LIMIT_S = 180

with tempfile.TemporaryDirectory() as work:
    figures = os.path.join(work, "figures.json")
    subject = subprocess.Popen([server, "--figures", figures, f"127.0.0.1:{port}"], stdout=subprocess.DEVNULL)
    began = time.monotonic()
    while not os.path.exists(figures) and time.monotonic() - began < LIMIT_S:
        time.sleep(0.1)
    load = subprocess.Popen([lowtide, "--json", "load", f"http://127.0.0.1:{port}/?expire={expire_ms}", "--http2", "-c", str(connections),
                             "-m", str(streams), "-n", str(streams * connections), "--timeout", "120s"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    most = alive = 0
    while load.poll() is None and time.monotonic() - began < LIMIT_S:
        try:
            alive = json.load(open(figures))["requests_in_flight"]
        except ValueError:
            pass  # It is being written.
        most = max(most, alive)
        # In the drain: all have come, and a third is answered.
        if most and alive < most * 2 / 3:
            break
        time.sleep(0.02)
    subject.send_signal(signal.SIGKILL)
    subject.wait()
    told = json.loads(load.communicate()[0].splitlines()[-1])
    print(json.dumps({"most_alive": most, "alive_when_killed": alive, "exit": load.returncode, "load": told}, indent=1))
