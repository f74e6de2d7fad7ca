"""What .ci/ledgers requires of the ledgers of cgroups, and the table of them."""

import json
from dataclasses import dataclass

from checks import Unexpected

MIB = 1 << 20
# Maximum difference between a row and the kernel's account, which is read some seconds before and after it.
TOLERANCE = 256 << 10
FILE = ("file_active", "file_inactive", "file_other")
SHARED = ("shmem_mapped", "shmem_unmapped")
KERNEL = ("slab_reclaimable", "slab_unreclaimable", "page_tables", "kernel_stacks", "percpu", "vmalloc", "zswap", "kernel_other")


@dataclass
class Truth:
    """What the program of a situation made: the rows that contain it, and its size in MiB."""

    rows: tuple
    mib: float


def file_of(key):
    return lambda ledger, path: any(file["path"] == path for file in (ledger if key == "files" else ledger["page_cache"])["files"])


def is_deleted(ledger, _):
    return any(file["deleted"] and file["bytes"] == 64 * MIB for file in ledger["files"])


def unread(part):
    return lambda ledger, _: any(holder.get("part") == part for holder in ledger["holders"])


def of_tcp(ledger, _):
    # Version 1 does not charge these buffers.
    return ledger["version"] == 1 or any(holder["kind"] == "sockets" for holder in ledger["holders"])


def swapped(ledger, _):
    return abs(ledger["swap_bytes"] - 48 * MIB) < MIB


# The sizes that programs know. The others depend on the kernel.
TRUTHS = {
    "anon": Truth(("anon",), 64),
    "tmpfs": Truth(("shmem_unmapped",), 64),
    "deleted": Truth(("shmem_unmapped",), 64),
    "tables": Truth(("page_tables",), 64),
    "threads": Truth(("kernel_stacks",), 400 / 64),
    "workers": Truth(("anon",), 68),
    "log": Truth(FILE, 48),
    "log-closed": Truth(FILE, 48),
    "mixed": Truth(SHARED, 64),
    "swap": Truth(("anon",), 16),
    "nested": Truth(("anon", *SHARED), 128),
    "nested-a": Truth(("anon",), 64),
    "nested-b": Truth(("shmem_unmapped",), 64),
    "nested-removed": Truth(("shmem_unmapped",), 64),
    "namespace": Truth(("anon",), 64),
}
# What of the ledger names the memory: files, deleted files, processes, swap.
NAMES = {
    "tmpfs": file_of("files"),
    "deleted": is_deleted,
    "log": file_of("page_cache"),
    "unix": unread("unix_sockets"),
    "tcp": of_tcp,
    "mixed": unread("pipes"),
    "swap": swapped,
}
# What the largest row of the others is, in version 2 with a sum of kernel memory.
LARGEST = {"unix": "kernel_other", "tcp": "sockets", "dentries": "slab_reclaimable"}


class Account:
    """The kernel's account of a group."""

    def __init__(self, text):
        self.values = {}
        for line in text.splitlines():
            file, _, value = line.partition(":")
            key, _, number = value.rpartition(" ")
            self.values[key or file] = int(number)
        self.version = 2 if "memory.current" in self.values else 1

    def value(self, key):
        return self.values.get(f"total_{key}" if self.version == 1 else key, 0)

    def charged(self):
        return self.values["memory.current" if self.version == 2 else "memory.usage_in_bytes"]

    def parts(self):
        """Returns the bytes of sets of rows."""
        shared = self.value("shmem")
        if self.version == 1:
            kernel = self.values["memory.kmem.usage_in_bytes"]
            return {("anon",): self.value("rss"), SHARED: shared, FILE: self.value("cache") - shared, KERNEL: kernel}
        parts = {("anon",): self.value("anon"), SHARED: shared, FILE: self.value("file") - shared, ("sockets",): self.value("sock")}
        known = {kind: self.value(kind) for kind in ("slab_reclaimable", "slab_unreclaimable", "percpu", "vmalloc", "zswap")}
        if "kernel" not in self.values:
            known["kernel_stacks"] = self.value("kernel_stack")
            return parts | {(kind,): bytes for kind, bytes in known.items()}
        known |= {"page_tables": self.value("pagetables") + self.value("sec_pagetables"), "kernel_stacks": self.value("kernel_stack")}
        known["kernel_other"] = self.value("kernel") - sum(known.values())
        return parts | {(kind,): bytes for kind, bytes in known.items()}


def ledger(step):
    """Returns the ledger that a step printed."""
    return json.loads([line for line in step.out.splitlines() if line.startswith("{")][-1])["cgroup"]


def distance(value, one, other):
    """Returns how far a value is from the range between two others."""
    return max(min(one, other) - value, value - max(one, other), 0)


@dataclass
class Comparison:
    """A ledger beside the kernel's account."""

    name: str
    ledger: dict
    difference: int
    largest: dict
    rest: float

    def line(self):
        ledger, row = self.ledger, self.largest
        about = "≈ " if row["estimated"] else ""
        made = TRUTHS.get(self.name)
        known = f"{made.mib:g}" if made else ""
        cells = [self.name, f"{ledger['charged_bytes'] / MIB:.1f}", f"{row['kind']} {about}{row['bytes'] / MIB:.2f}", known]
        return " | ".join([*cells, f"{self.difference:,}", f"{self.rest:.2f} %"])


def compare(results, name):
    """Compares a ledger with the account.

    Raises an error if its sum is not the charge, a row is not as the kernel counts, or what the program made has no row."""
    step = results.last(name)
    step.require(step.code == 0, "no ledger")
    found = ledger(step)
    before, after = (Account(results.last(f"{name}.{when}").out) for when in ("before", "after"))
    bytes_of = lambda kinds: sum(row["bytes"] for row in found["rows"] if row["kind"] in kinds)  # noqa: E731
    sum_of_rows = sum(row["bytes"] for row in found["rows"])
    step.require(sum_of_rows == found["charged_bytes"], f"the rows add up to {sum_of_rows} of {found['charged_bytes']}")
    differences = [distance(found["charged_bytes"], before.charged(), after.charged())]
    for (kinds, one), other in zip(before.parts().items(), after.parts().values()):
        differences.append(distance(bytes_of(kinds), one, other))
        step.require(differences[-1] <= TOLERANCE, f"{'+'.join(kinds)} is {bytes_of(kinds)}, the kernel's {one} to {other}")
    if truth := TRUTHS.get(name):
        made = bytes_of(truth.rows)
        step.require(abs(made / MIB - truth.mib) < 2, f"{'+'.join(truth.rows)} is {made / MIB:.2f} MiB of {truth.mib}")
    largest = max(found["rows"], key=lambda row: row["bytes"])
    # Before Linux 5.18, `memory.stat` lacks most kernel memory.
    if "kernel" in before.values and name in LARGEST:
        step.require(largest["kind"] == LARGEST[name], f"its largest row is {largest['kind']}")
    rest = 100 * abs(bytes_of(("rest",))) / found["charged_bytes"]
    return Comparison(name, found, max(differences), largest, rest)


def named(results, name, paths):
    """Requires that the ledger names the file or the process."""
    if is_named := NAMES.get(name):
        step = results.last(name)
        step.require(is_named(ledger(step), paths.get(name)), "what it made is not named")


def report(title, results, paths):
    """Prints the table of a machine. Returns whether all was as it has to be."""
    names = [step.name for step in results.steps if f"{step.name}.before" in {step.name for step in results.steps}]
    print(f"## {title}\n\n| situation | charged, MiB | largest row, MiB | made, MiB | largest difference, B | rest |\n|---|---:|---|---:|---:|---:|")
    failed = []
    for name in names:
        try:
            print(f"| {compare(results, name).line()} |")
            named(results, name, paths)
        except Unexpected as error:
            failed.append(f"{name}: {error}")
    for name, words in [("removed", "there is no memory cgroup"), ("ended", "there is no process")]:
        step = results.last(name)
        if step.code != 4 or words not in step.sentence():
            failed.append(f"{name}: exit code {step.code}, {step.sentence()}")
    failed += [f"{name}: {value}" for name, value in results.facts.items() if name.startswith("not_")]
    if not results.has_ended:
        failed.append("it did not get to its end")
    print("\n" + "".join(f"- **{line}**\n" for line in failed))
    return not failed
