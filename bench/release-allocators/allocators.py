#!/usr/bin/env python3
"""What a release returns of the heap of each allocator, beside the allocator's own purge. Prints a JSON line for each.

Usage, from the root of the repository: allocators.py LOWTIDE MIB THREADS LIBRARY.so...
The subject keeps 5 % of its blocks. It is started twice: once it purges, and then a release returns the rest; once a release
comes first, and then it purges."""

import json
import os
import subprocess
import sys
import tempfile

lowtide, mib, threads = sys.argv[1], int(sys.argv[2]), sys.argv[3]
here = os.path.dirname(os.path.abspath(__file__))
home = tempfile.mkdtemp()
program = home + "/subject"
source = os.path.join(here, "../../crates/probe/tests/walked/subject.c")
subprocess.run(["cc", "-O2", "-o", program, source, "-lm", "-ldl", "-lpthread"], check=True)


class Subject:
    def __init__(self, library):
        keep = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
        more = {"LD_PRELOAD": library, "MALLOC_CONF": keep, "MIMALLOC_PURGE_DELAY": "1000000"}
        words = [program, str(mib << 20), "5", threads]
        self.process = subprocess.Popen(words, env=more, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def purge(self):
        """Returns by how many bytes its RSS fell."""
        self.process.stdin.write("purge\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def release(self):
        words = [lowtide, "release", "--untested", "--json", str(self.process.pid)]
        return json.loads(subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)

    def end(self):
        self.process.kill()
        self.process.wait()


for library in sys.argv[4:]:
    one = Subject(library)
    purged = one.purge()
    after = one.release()
    one.end()
    two = Subject(library)
    release = two.release()
    purged_after = two.purge()
    two.end()
    print(json.dumps({
        "allocator": release["allocator"], "version": release["allocator_version"], "outcome": release["outcome"],
        "reason": release["reason"], "rss_bytes": release["rss_before_bytes"], "predicted_bytes": release["predicted_bytes"],
        "returned_bytes": release["returned_bytes"], "elapsed_s": release["elapsed_s"],
        "longest_lock_s": release["longest_lock_s"], "longest_pause_s": release["longest_pause_s"],
        "purged_bytes": purged, "purged_after_release_bytes": purged_after,
        "predicted_after_purge_bytes": after["predicted_bytes"], "returned_after_purge_bytes": after["returned_bytes"],
    }), flush=True)
