"""What `lowtide inspect` has to read of heaps, by the figures of their programs and allocators (.ci/vm/reading)."""

import json
import re

# Blocks of the program and the loader that the program does not count, in bytes.
OTHERS = 64 << 10
# Number of pages that the program itself touches between an inspection and a purge.
TOUCHED_PAGES = 16


class Heap:
    """A heap: the object that `inspect` printed, and the figures of its program."""

    def __init__(self, results, name):
        self.step = results.last(f"{name}.inspect")
        self.found = self.step.object()
        self.own = json.loads(results.facts.get(f"{name}.own", "{}"))
        self.purged = int(results.facts.get(f"{name}.purged", 0))
        self.page = 16384 if results.facts["kernel"].endswith("-16k") else 4096
        self.step.require(self.found.get("heaps"), "no heap was walked")
        self.equal("not walked", self.found.get("unwalked_bytes", 0), 0)
        self.equal("sum of the rows", sum(row["bytes"] for row in self.found["ledger"]), self.found["rss_bytes"])

    def equal(self, what, read, expected, tolerance=0):
        self.step.require(abs(read - expected) <= tolerance, f"{what}: {read} was read, {expected} expected")

    def within(self, what, read, least, most):
        self.step.require(least <= read <= most, f"{what}: {read} was read, {least} to {most} expected")

    def arenas(self, *keys):
        """Returns the sum of a figure of all arenas."""
        total = 0
        for value in self.found["arenas"]:
            for key in keys:
                value = (value or {}).get(key, 0)
            total += value
        return total

    def row(self, owner):
        return sum(row["bytes"] for row in self.found["ledger"] if row["owner"] == owner)

    def purge(self, kind):
        predicted = next((cure["predicted_bytes"] for cure in self.found["cures"] if cure["cure"] == kind), 0)
        self.equal("returned by a purge", predicted, self.purged, TOUCHED_PAGES * self.page)
        self.step.require(self.purged > 0, "a purge returned nothing")


def glibc(heap):
    # Each block has a header, and is rounded up to 16 bytes.
    allocated = heap.arenas("allocated_bytes") + heap.found["mmapped_bytes"]
    heap.within("allocated", allocated, heap.own["usable"], heap.own["usable"] * 1.1 + OTHERS)
    heap.purge("malloc_trim")


def jemalloc(heap):
    page = heap.own["page_bytes"]
    heap.equal("allocated", heap.arenas("allocated_bytes"), heap.own["allocated"])
    heap.equal("active", heap.arenas("jemalloc", "active_bytes"), heap.own["active"])
    heap.equal("dirty", heap.arenas("jemalloc", "dirty_bytes"), heap.own["dirty_pages"] * page)
    # A cache takes many regions of a new slab at once, to which nothing was written yet.
    heap.within("cached", heap.row("cached"), 0, heap.own["cached"])
    # A large allocation has whole pages.
    most = heap.own["usable"] + OTHERS + heap.arenas("jemalloc", "large_count") * page
    heap.within("in use", heap.row("allocated"), heap.own["usable"] * 0.94, most)
    heap.purge("purge")
    return f"ok: pages of {page >> 10} KiB"


def mimalloc(heap):
    heap.within("allocated", heap.arenas("allocated_bytes"), heap.own["usable"], heap.own["usable"] + OTHERS)


def gperftools(heap):
    cached = heap.arenas("gperftools", "transfer_cache_bytes") + heap.arenas("gperftools", "thread_cache_bytes")
    heap.equal("allocated", heap.arenas("allocated_bytes") - cached, heap.own["allocated"])
    heap.equal("in threads' caches", heap.arenas("gperftools", "thread_cache_bytes"), heap.own["cached"])
    heap.equal("in central lists", heap.arenas("gperftools", "central_free_bytes"), heap.own["central"])
    heap.equal("free spans", heap.arenas("gperftools", "page_heap_free_bytes"), heap.own["free"])
    if heap.page == 4096:
        heap.purge("purge")
        return "ok"
    # Its own release ends at the first span without a whole page of the kernel.
    heap.step.require("purge" not in [cure["cure"] for cure in heap.found["cures"]], "a purge is predicted")
    return f"ok: no prediction, a purge returned {heap.purged}"


def musl(heap):
    heap.within("allocated", heap.row("allocated"), heap.own["usable"] * 0.98, heap.own["usable"] + OTHERS)


def cpython(results):
    step, own = results.last("cpython.inspect"), results.last("cpython.own").out
    found = step.object().get("cpython") or {}
    step.require(found, "CPython's heap was not walked")
    figures = {
        "arenas": r"# arenas allocated current\s+=\s+([\d,]+)",
        "allocated_bytes": r"# bytes in allocated blocks\s+=\s+([\d,]+)",
        "free_block_bytes": r"# bytes in available blocks\s+=\s+([\d,]+)",
        "free_pools": r"([\d,]+) unused pools",
    }
    for key, pattern in figures.items():
        expected = int(re.search(pattern, own)[1].replace(",", ""))
        # The interpreter has printed a line since then.
        step.require(abs(found[key] - expected) <= 1024, f"{key}: {found[key]} was read, {expected} expected")


def of(name, check):
    return lambda results: check(Heap(results, name))


def refused(name):
    """Returns the check that a verb was refused because of the processor."""

    def check(results):
        step = results.last(name)
        step.require(re.search("x86[-_]64 only", step.out + step.err), "it has to name the processor")
        step.require('"outcome":"released"' not in step.out, "memory was released")
        return "refused"

    return check


HEAPS = {
    "glibc 2.36": of("glibc-2.36", glibc),
    "glibc 2.41": of("glibc-2.41", glibc),
    "jemalloc 5.3.0, 64K": of("jemalloc", jemalloc),
    "jemalloc 5.3.1, 16K": of("jemalloc-16k", jemalloc),
    "jemalloc 5.3.1, 4K": of("jemalloc-4k", jemalloc),
    "mimalloc": of("mimalloc", mimalloc),
    "gperftools": of("gperftools", gperftools),
    "musl": of("musl", musl),
    "CPython": cpython,
}
REFUSED = {"stacks": refused("stacks")}
