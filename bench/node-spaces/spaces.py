#!/usr/bin/env python3
"""What V8's heap consists of while a node server holds TLS connections: the spaces of the heap, after a collection each time, before
the first connection, while they are held, and after they were closed. Prints a JSON line for each moment.

Usage: spaces.py LOWTIDE NODE SERVER CONNECTIONS ROUNDS      SERVER is subjects/node-tls/server.js."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

lowtide, node, server, connections, rounds = sys.argv[1:]
PORT, FIGURES = 17453, 17454
home = tempfile.mkdtemp()
subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost",
    "-keyout", home + "/key.pem", "-out", home + "/cert.pem"], check=True, capture_output=True)
process = subprocess.Popen([node, "--expose-gc", server, f"key={home}/key.pem", f"cert={home}/cert.pem", f"port={PORT}",
    f"figures={FIGURES}", "collect=1"], stdout=subprocess.DEVNULL)
time.sleep(2)


def figures(moment, number):
    with urllib.request.urlopen(f"http://127.0.0.1:{FIGURES}/") as answer:
        print(json.dumps({"node": subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip(),
            "moment": moment, "round": number} | json.load(answer)), flush=True)


figures("start", 0)
for number in range(1, int(rounds) + 1):
    load = subprocess.Popen([lowtide, "--json", "load", f"tls:127.0.0.1:{PORT}", "--insecure", "-c", connections, "--rate", "200/s",
        "--hold", "6s", "--timeout", "120s"], stdout=subprocess.DEVNULL)
    time.sleep(int(connections) / 200 + 3)
    figures("held", number)
    load.wait()
    time.sleep(3)
    figures("closed", number)
process.terminate()
process.wait()
