#!/usr/bin/env python3
"""Sums heap snapshots of the TLS server by V8's types: idle, and with all connections open.

    snapshot.py LOWTIDE NODE SERVER CONNECTIONS     # in a directory with key.pem and cert.pem; needs websocket-client

Snapshots come from node's inspector, which node has since version 6.3. V8 collects its garbage first.
"""
import json
import subprocess
import sys
import time
import urllib.request

import websocket

PORT, INSPECTOR = 41234, 41235
# Tables of functions, by the names that V8 gives them in a snapshot.
TABLES = ("(code relocation info)", "(function scope info)", "(code deopt data)", "(function literals)")


def take():
    """Returns a snapshot as a dictionary."""
    with urllib.request.urlopen(f"http://127.0.0.1:{INSPECTOR}/json/list") as answer:
        url = json.load(answer)[0]["webSocketDebuggerUrl"]
    socket = websocket.create_connection(url, timeout=120, suppress_origin=True)
    socket.send(json.dumps({"id": 1, "method": "HeapProfiler.takeHeapSnapshot", "params": {"reportProgress": False}}))
    parts = []
    while (message := json.loads(socket.recv())).get("id") != 1:
        if message.get("method") == "HeapProfiler.addHeapSnapshotChunk":
            parts.append(message["params"]["chunk"])
    socket.close()
    return json.loads("".join(parts))


def groups(snapshot):
    """Returns bytes by type; long strings, which are mostly scripts, and tables of functions are apart."""
    meta, nodes, strings = snapshot["snapshot"]["meta"], snapshot["nodes"], snapshot["strings"]
    fields, types = meta["node_fields"], meta["node_types"][0]
    kind, name, size = (fields.index(one) for one in ("type", "name", "self_size"))
    sums = {}
    for at in range(0, len(nodes), len(fields)):
        number, label, extent = nodes[at + kind], strings[nodes[at + name]], nodes[at + size]
        group = types[number] if number < len(types) else f"type {number}"
        if group == "string" and extent > 1000:
            group = "long string"
        elif group == "array" and label in TABLES:
            group = "tables of functions"
        sums[group] = sums.get(group, 0) + extent
    return sums | {"all": sum(sums.values())}


def main(lowtide, node, server, connections):
    process = subprocess.Popen(
        [node, f"--inspect={INSPECTOR}", server, "key=key.pem", "cert=cert.pem", f"port={PORT}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    load = None
    try:
        time.sleep(3)
        print(json.dumps({"node": node, "connections": 0, **groups(take())}), flush=True)
        load = subprocess.Popen([lowtide, "--json", "load", f"tls:127.0.0.1:{PORT}", "--insecure", "-c", connections,
                                 "--rate", "100/s", "--hold", "60s"], stdout=subprocess.DEVNULL)
        time.sleep(int(connections) / 100 + 12)
        print(json.dumps({"node": node, "connections": int(connections), **groups(take())}), flush=True)
    finally:
        if load:
            load.kill()
        process.kill()


main(*sys.argv[1:])
