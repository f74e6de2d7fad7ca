#!/usr/bin/env python3
"""Simulated hosts of 50 groups each, scraped by a real Prometheus with the rules of deploy/. Prints a JSON line a minute, and a
summary: series, bytes per sample, time of the rules.

Usage, from the root of the repository: hosts.py HOSTS MINUTES. The metrics have the names, labels and number of series of the
exporter; a tenth of the values changes between two scrapes."""

import http.server
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

hosts, minutes = int(sys.argv[1]), float(sys.argv[2])
rules = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/prometheus/lowtide.rules.yml")
home = tempfile.mkdtemp()
GROUPS, PORT, PROMETHEUS = 50, 19810, 19811
OWNERS = ["allocated", "reclaimable", "fragmented", "cached", "metadata", "runtime", "stacks", "program_data", "file", "shared",
    "anonymous_other", "unattributed"]
VERDICTS = ["live", "outside_heap", "hoard", "fragmentation", "runtime", "growing", "leak", "inconclusive"]
PLAIN = ["processes", "rss_bytes", "swap_bytes", "lazyfree_bytes", "free_blocks", "largest_free_block_bytes", "arenas",
    "uninspected_processes", "inspection_age_seconds"]


class Host:
    """The series of a host, as lines without their values, and the values."""

    def __init__(self, number):
        libc = "2.31" if number % 4 else "2.23"
        self.names, self.values = [], []
        for group in range(GROUPS):
            name = 'groupname="/usr/bin/program%02d"' % group
            for plain in PLAIN:
                self.add("lowtide_%s{%s}" % (plain, name), random.randrange(10**8))
            for owner in OWNERS:
                # With the older C library, free memory is four times as much.
                least = 10**9 if owner == "reclaimable" and libc == "2.23" else 25 * 10**7
                self.add('lowtide_resident_bytes{%s,owner="%s"}' % (name, owner), least + random.randrange(10**7))
            for verdict in VERDICTS:
                self.add('lowtide_verdicts{%s,verdict="%s"}' % (name, verdict), 1 if verdict == "hoard" else 0)
            for reason in ["not_permitted", "blocked", "failed"]:
                self.add('lowtide_unreadable_processes{%s,reason="%s"}' % (name, reason), 0)
            self.add('lowtide_allocators{%s,allocator="glibc",allocator_version="%s",libc="glibc",libc_version="%s"}' % (name, libc, libc), 1)
        for name in ["host_memory_bytes", "host_memory_available_bytes", "exporter_cpu_seconds_total", "exporter_scan_age_seconds"]:
            self.add("lowtide_" + name, 10**10)

    def add(self, name, value):
        self.names.append(name)
        self.values.append(value)

    def text(self):
        for _ in range(len(self.values) // 10):
            place = random.randrange(len(self.values))
            if self.values[place] > 1000:
                self.values[place] += random.randrange(-4096, 4097) * 16
        return "".join("%s %d\n" % pair for pair in zip(self.names, self.values))


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        text = all_hosts[int(self.path.split("/")[1])].text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def ask(query):
    url = "http://127.0.0.1:%d/api/v1/query?query=%s" % (PROMETHEUS, urllib.parse.quote(query))
    return json.load(urllib.request.urlopen(url))["data"]["result"]


def number(query):
    result = ask(query)
    return float(result[0]["value"][1]) if result else None


random.seed(7)
all_hosts = [Host(index) for index in range(hosts)]
server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
targets = [{"targets": ["127.0.0.1:%d" % PORT], "labels": {"instance": "host%03d" % n, "__metrics_path__": "/%d/metrics" % n}} for n in range(hosts)]
json.dump(targets, open(home + "/targets.json", "w"))
with open(home + "/prometheus.yml", "w") as config:
    config.write("global: {scrape_interval: 30s, evaluation_interval: 1m}\nrule_files: [%s]\nscrape_configs:\n"
        "  - job_name: lowtide\n    file_sd_configs: [{files: [targets.json]}]\n"
        "  - job_name: prometheus\n    static_configs: [{targets: ['127.0.0.1:%d']}]\n" % (rules, PROMETHEUS))
prometheus = subprocess.Popen(["prometheus", "--config.file=%s/prometheus.yml" % home, "--storage.tsdb.path=%s/data" % home,
    "--web.listen-address=127.0.0.1:%d" % PROMETHEUS, "--storage.tsdb.min-block-duration=10m", "--storage.tsdb.max-block-duration=10m"],
    stdout=subprocess.DEVNULL, stderr=open(home + "/prometheus.log", "w"))
began = time.monotonic()
line = {}
try:
    while time.monotonic() - began < minutes * 60:
        time.sleep(60)
        line = {
            "minute": round((time.monotonic() - began) / 60, 1),
            "hosts": hosts,
            "series": number("prometheus_tsdb_head_series"),
            "samples": number("prometheus_tsdb_head_samples_appended_total"),
            "rules_s": {group["metric"]["rule_group"].split(";")[-1]: round(float(group["value"][1]), 3) for group in ask("prometheus_rule_group_last_duration_seconds")},
            "cpu_cores": number("rate(process_cpu_seconds_total{job='prometheus'}[2m])"),
            "rss_bytes": number("process_resident_memory_bytes{job='prometheus'}"),
        }
        print(json.dumps(line), flush=True)
    blocks = []
    for name in os.listdir(home + "/data"):
        meta = os.path.join(home, "data", name, "meta.json")
        if os.path.exists(meta):
            samples = json.load(open(meta))["stats"]["numSamples"]
            chunks = sum(os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(os.path.dirname(meta)) for file in files)
            blocks.append((samples, chunks))
    samples, size = map(sum, zip(*blocks))
    older = ask('sort_desc(groupname_libc_version:lowtide_free_bytes_per_process:median{groupname="/usr/bin/program07"})')
    begin = time.monotonic()
    differ = ask("topk(10, groupname_libc_version:lowtide_free_bytes_per_process:ratio_to_least)")
    print(json.dumps({"blocks": len(blocks), "bytes_per_sample": round(size / samples, 2), "query_s": round(time.monotonic() - begin, 4),
        "libc": [(series["metric"]["libc_version"], float(series["value"][1])) for series in older], "differ": len(differ)}), flush=True)
finally:
    prometheus.terminate()
    prometheus.wait()
