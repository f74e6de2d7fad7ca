#!/usr/bin/env python3
"""The ledger of PostgreSQL with its workers, in a cgroup of its own, beside the kernel's account and the RSS of its processes.

    sudo python3 bench/cgroup-ledger/postgres.py LOWTIDE [CLIENTS]

It needs PostgreSQL (pgbench too) and the user postgres. Databases are made in a temporary directory."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / ".ci/vm"))
from ledger_checks import MIB, Account, distance  # noqa: E402

PLACES = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
GROUP = next(place for place in PLACES if (place / "cgroup.procs").exists()) / "lowtide-postgres"
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
FILES = ["memory.current", "memory.usage_in_bytes", "memory.kmem.usage_in_bytes", "memory.stat"]


def account():
    texts = [(file, (GROUP / file).read_text()) for file in FILES if (GROUP / file).exists()]
    return Account("\n".join(f"{file}:{line}" for file, text in texts for line in text.splitlines()))


def resident(field):
    """Returns the sum of a field of the processes of the group, in bytes."""
    pids = (GROUP / "cgroup.procs").read_text().split()
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    lines = [line.split() for text in rollups for line in text.splitlines()]
    return len(pids), sum(int(words[1]) * 1024 for words in lines if words[0] == field)


def main():
    lowtide, clients = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)
        data, sockets = Path(home) / "data", Path(home)
        data.mkdir(mode=0o700)
        for path in (data, sockets):
            subprocess.run(["chown", "postgres", path], check=True)
        GROUP.mkdir()
        as_postgres = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "env", f"PGHOST={sockets}"]
        within = ["sh", "-c", f'echo $$ > {GROUP}/cgroup.procs && exec "$@"', "sh", *as_postgres]
        try:
            quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run([*within, PROGRAMS / "initdb", "-D", data], **quiet)
            server = subprocess.Popen(
                [*within, PROGRAMS / "postgres", "-D", data, "-k", sockets, "-c", "listen_addresses=", "-c", "shared_buffers=128MB"],
                stderr=subprocess.DEVNULL,
            )
            while subprocess.run([*as_postgres, PROGRAMS / "pg_isready"], stdout=subprocess.DEVNULL).returncode:
                time.sleep(0.2)
            subprocess.run([*as_postgres, PROGRAMS / "pgbench", "-i", "-s", "20", "postgres"], **quiet)
            load = subprocess.Popen(
                [*as_postgres, PROGRAMS / "pgbench", "-c", str(clients), "-T", "600", "-R", "20", "postgres"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            time.sleep(20)
            before = account()
            usage = subprocess.run([lowtide, "inspect", "--json", "--cgroup", f"/{GROUP.name}"], capture_output=True, text=True)
            found, after = json.loads(usage.stdout.splitlines()[-1])["cgroup"], account()
            count, rss = resident("Rss:")
            _, pss = resident("Pss:")
            load.terminate()
            load.wait()
            server.terminate()
            server.wait()
            show(found, before, after, count, rss, pss)
        finally:
            while (GROUP / "cgroup.procs").read_text().split():
                time.sleep(0.2)
            GROUP.rmdir()


def show(found, before, after, count, rss, pss):
    rows = {row["kind"]: row["bytes"] for row in found["rows"]}
    print(f"{count} processes, sum of RSS {rss / MIB:.1f} MiB, of PSS {pss / MIB:.1f}; charged {found['charged_bytes'] / MIB:.1f}; moved: {found['moved']}")
    print(f"rows add up: {sum(rows.values()) == found['charged_bytes']}; rest {rows.get('rest', 0)}; notes: {found['notes']}")
    print({kind: round(size / MIB, 2) for kind, size in rows.items()})
    for (kinds, one), other in zip(before.parts().items(), after.parts().values()):
        size = sum(rows.get(kind, 0) for kind in kinds)
        print(f"{'+'.join(kinds)}: {size / MIB:.2f} MiB, {distance(size, one, other):,} bytes from the kernel's account")
    anon = found["anon"]
    print("anon by owner:", {row["owner"]: round(row["bytes"] / MIB, 2) for row in anon["owners"]}, "other:", anon["other_bytes"])
    print("files in shared memory:", [(file["path"], round(file["bytes"] / MIB, 1), file["kind"]) for file in found["files"][:3]])
    cached = [(Path(file["path"]).name, round(file["cached_bytes"] / MIB, 1)) for file in found["page_cache"]["files"][:3]]
    print("page cache:", cached, "closed:", round(found["page_cache"]["closed_bytes"] / MIB, 1))


main()
