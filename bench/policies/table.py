#!/usr/bin/env python3
"""One table of the four studies of run.sh, and one chart of them: DIRECTORY/policies.svg.

Usage: table.py DIRECTORY"""
import json, os, re, sys

directory = sys.argv[1]
NAMES = {"cpp": "C++", "python": "Python", "node": "node", "axum": "axum"}
MIB = 1 << 20


def mib(value):
    return "–" if value is None else "%.4g" % (value / MIB)


print("| program | policy | after rounds 1, 2, 3, MiB | releases | returned, MiB | came back, MiB | page faults after | "
      "CPU of the program, s | CPU of lowtide, s | longest latency, ms | longest pause, ms |")
print("|---|---|---|---|---|---|---|---|---|---|---|")
for name, title in NAMES.items():
    study = json.load(open("%s/%s.json" % (directory, name)))
    for trial in sorted(study["trials"], key=lambda trial: trial["number"]):
        policy = trial["policy"] or {}
        label = trial["treatment"].get("policy") or "none"
        rounds = [mib(one.get("settled_bytes")) for one in trial["rounds"]]
        latencies = [one["load"]["latency_s"]["max"] for one in trial["rounds"] if one.get("load") and one["load"].get("latency_s")]
        print("| %s | `%s` | %s | %d | %s | %s | %s | %.3g | %s | %s | %s |" % (
            title, label, ", ".join(rounds), trial["releases"] or 0, mib(policy.get("returned_bytes")),
            mib(policy.get("refaulted_bytes")), policy.get("minor_faults_after") or "–", trial["cpu_s"],
            "%.2f" % policy["lowtide_cpu_s"] if policy.get("lowtide_cpu_s") else "–",
            "%.0f" % (max(latencies) * 1e3) if latencies else "–",
            "%.2f" % (policy["longest_pause_s"] * 1e3) if policy.get("longest_pause_s") else "–"))

# The charts of the four reports, in two rows.
charts = []
for name in NAMES:
    path = "%s/%s.svg" % (directory, name)
    text = open(path).read()
    width, height = (float(re.search(r'<svg[^>]*\b%s="([\d.]+)' % key, text).group(1)) for key in ("width", "height"))
    # Without the directories of programs.
    text = re.sub(r"/[^ <>\"]*/(?=[^ <>\"/]+[ <])", "", re.sub(r"^.*?(?=<svg)", "", text, flags=re.S))
    charts.append((width, height, text))
width, height = max(chart[0] for chart in charts), max(chart[1] for chart in charts)
with open(directory + "/policies.svg", "w") as file:
    file.write('<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g">\n' % (width * 2, height * 2))
    for place, (_, _, text) in enumerate(charts):
        file.write('<g transform="translate(%g %g)">%s</g>\n' % (place % 2 * width, place // 2 * height, text))
    file.write("</svg>\n")
