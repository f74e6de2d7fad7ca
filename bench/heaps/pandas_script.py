"""A table of 3 million rows, grouped, and turned into a pandas frame of which little is kept. Prints pyarrow's and CPython's own
counts, and what pyarrow's pool returns when it is told "release"."""

import random
import sys

import numpy as np
import pyarrow as pa


def main():
    pool = pa.default_memory_pool()
    names = ["name%d" % (i % 5000) for i in range(3_000_000)]
    table = pa.table({
        "key": np.random.randint(0, 1000, len(names)),
        "value": np.random.rand(len(names)),
        "name": names,
    })
    grouped = table.group_by("key").aggregate([("value", "mean"), ("name", "count_distinct")])
    frame = table.to_pandas()
    kept = frame[frame.key < 10]
    del table, frame, names
    objects = [[i] for i in range(400_000)]
    random.seed(1)
    objects = [entry for entry in objects if random.random() < 0.01]
    sys._debugmallocstats()
    print("counted", pool.backend_name, pool.bytes_allocated(), flush=True)
    for line in sys.stdin:
        pool.release_unused()
        print("released", flush=True)
    return grouped, kept, objects


main()
