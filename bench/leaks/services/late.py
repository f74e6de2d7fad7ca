"""Makes cycles that only CPython's collector frees, which comes late: gc.set_threshold makes it wait for 200,000 objects."""

import gc
import time

gc.set_threshold(200_000, 5, 5)


class Node:
    def __init__(self):
        self.me = self
        self.fields = [object() for _ in range(20)]


while True:
    for _ in range(20):
        Node()
    time.sleep(0.02)
