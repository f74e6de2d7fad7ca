#!/usr/bin/env python3
"""Draws the panels of lowtide.json from the answers of a Prometheus, for a look without Grafana.

Usage: draw.py PROMETHEUS_URL INSTANCE GROUPNAME PROGRAM PICTURE.png [MINUTES]      needs matplotlib
"""

import json
import os
import sys
import time
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plot

url, instance, groupname, program, picture = sys.argv[1:6]
minutes = float(sys.argv[6]) if len(sys.argv) > 6 else 60
here = os.path.dirname(os.path.abspath(__file__))
dashboard = json.load(open(os.path.join(here, "lowtide.json")))
COLUMNS, UNITS = 24, {"bytes": (2**30, "GiB"), "s": (1, "s"), "percentunit": (0.01, "%")}


def filled(text):
    for name, value in {"$__rate_interval": "2m", "$instance": instance, "$groupname": groupname, "$program": program}.items():
        text = text.replace(name, value)
    return text


def ask(path, **query):
    with urllib.request.urlopen("%s/api/v1/%s?%s" % (url, path, urllib.parse.urlencode(query))) as answer:
        return json.load(answer)["data"]["result"]


def legend(target, metric):
    text = target.get("legendFormat") or ""
    for name, value in metric.items():
        text = text.replace("{{%s}}" % name, value)
    return text


def panels(of):
    for panel in of:
        if panel["type"] != "row":
            yield panel
        yield from panels(panel.get("panels", []))


def lines(axes, panel, scale):
    end = time.time()
    step = max(15, minutes * 60 / 200)
    several = 0
    for target in panel["targets"]:
        series = ask("query_range", query=filled(target["expr"]), start=end - minutes * 60, end=end, step=step)
        for one in series:
            values = [(float(at) / 60 - end / 60, float(value) / scale) for at, value in one["values"]]
            axes.plot(*zip(*values), linewidth=1, label=legend(target, one["metric"]))
            several += 1
    if several and several <= 14:
        axes.legend(fontsize=5, loc="upper left")
    elif several:
        axes.text(0.02, 0.93, "%d series" % several, fontsize=6, transform=axes.transAxes)
    if not several:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)


def now(panel):
    """The values of all targets now, by the legend."""
    for target in panel["targets"]:
        for one in ask("query", query=filled(target["expr"])):
            yield legend(target, one["metric"]), one["metric"], float(one["value"][1])


figure = plot.figure(figsize=(16, 22), dpi=90)
all_panels = list(panels(dashboard["panels"]))
bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in all_panels)
for panel in all_panels:
    at = panel["gridPos"]
    left, top = at["x"] / COLUMNS, at["y"] / bottom
    box = [0.035 + left * 0.96, 0.985 - (at["y"] + at["h"]) / bottom * 0.97, at["w"] / COLUMNS * 0.96 - 0.045, at["h"] / bottom * 0.97 - 0.022]
    axes = figure.add_axes(box)
    scale, unit = UNITS.get(panel["fieldConfig"]["defaults"].get("unit"), (1, ""))
    axes.set_title(filled(panel["title"]) + (" (%s)" % unit if unit else ""), fontsize=8, loc="left")
    axes.tick_params(labelsize=6)
    if panel["type"] == "timeseries":
        lines(axes, panel, scale)
    elif panel["type"] == "bargauge":
        found = [(label, value / scale) for label, _, value in now(panel)][:15][::-1]
        axes.barh(range(len(found)), [value for _, value in found], color="lightsteelblue")
        axes.set_yticks([])
        for place, (label, _) in enumerate(found):
            axes.text(0, place, " " + label, va="center", fontsize=6)
    elif panel["type"] == "stat":
        axes.axis("off")
        for place, (label, _, value) in enumerate(now(panel)):
            text = "%.0f" % value if label == "Hosts" else "%.1f %s" % (value / scale, unit)
            axes.text(place / 4 + 0.05, 0.4, "%s\n%s" % (label, text), fontsize=14)
    else:
        axes.axis("off")
        rows = {}
        for label, metric, value in now(panel):
            shown = "%.0f" % value if label in ("Processes", "Oldest inspection") else "%.3f" % (value / scale)
            rows.setdefault(metric.get("groupname", ""), {})[label] = shown
        names = [target["legendFormat"] for target in panel["targets"]]
        cells = [[name] + [row.get(column, "") for column in names] for name, row in list(rows.items())[:14]]
        if cells:
            axes.table(cells, colLabels=["Group"] + names, loc="upper center").set_fontsize(6)
figure.savefig(picture)
