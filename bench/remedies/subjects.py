"""Real programs for the rows of the table of remedies, and how each remedy is applied."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# The programs that are built go there.
OUT = Path(sys.argv[2]).resolve()
OUT.mkdir(parents=True, exist_ok=True)
PRELOADS = {"jemalloc": "libjemalloc.so.2", "gperftools": "libtcmalloc_minimal.so.4"}
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


class Missing(Exception):
    """What this machine lacks for a subject."""


def needs(*programs):
    for program in programs:
        if not (shutil.which(program) or Path(program).exists()):
            raise Missing(program)


def built_c(name):
    needs("cc")
    program = OUT / name
    subprocess.run(["cc", "-O1", "-pthread", HERE / f"{name}.c", "-o", program], check=True)
    return str(program)


def built_rust(name, dependency, allocator, release=""):
    """Builds the program with an allocator compiled in, and without symbols."""
    needs("cargo")
    home = OUT / f"static-{name}"
    (home / "src").mkdir(parents=True, exist_ok=True)
    text = (HERE / "static.rs").read_text().replace("ALLOCATOR_TYPE", allocator)
    (home / "src/main.rs").write_text(text.replace("RELEASE", release or "fn release() {}"))
    (home / "Cargo.toml").write_text(
        f'[package]\nname = "static-{name}"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n'
        f"[profile.release]\nstrip = true\n[dependencies]\n{dependency}\n"
    )
    subprocess.run(["cargo", "build", "-q", "--release"], cwd=home, check=True)
    return str(home / f"target/release/static-{name}")


def preload(name):
    path = LIBRARIES / PRELOADS[name]
    needs(path)
    return {"LD_PRELOAD": str(path)}


def script(*command):
    needs(command[0])
    return [*command[:-1], str(HERE / command[-1])]


BACKGROUND = "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0"
# What was in demand lately is kept, unless these intervals are zero (absl::Duration: two numbers).
INTERVALS = [f"MallocExtension_Internal_Set{what}{length}Interval" for what in ("SkipSubrelease", "CacheDemandRelease")
             for length in ("Short", "Long")]
TCMALLOC = "\n".join([
    'unsafe extern "C" {', *(f"fn {name}(seconds: i64, rest: u32);" for name in INTERVALS),
    "fn MallocExtension_Internal_ReleaseMemoryToSystem(bytes: usize) -> usize;", "}",
    "fn release() { unsafe {", *(f"{name}(0, 0);" for name in INTERVALS),
    "MallocExtension_Internal_ReleaseMemoryToSystem(1 << 40); } }"])
# Row, subject, its command and environment, and how the remedy is applied: in the environment, as an argument after the
# first word, by a line on stdin, or by a command. An empty one has no gain to measure: the row is only looked for.
SUBJECTS = [
    ("glibc/trim_threshold", "hold top", lambda: ([built_c("hold"), "top"], {}),
     {"env": {"MALLOC_TRIM_THRESHOLD_": "131072"}}),
    ("glibc/arena_max", "hold arenas", lambda: ([built_c("hold"), "arenas"], {}), {"env": {"MALLOC_ARENA_MAX": "2"}}),
    ("glibc/another_allocator", "hold scattered", lambda: ([built_c("hold"), "scattered"], {}),
     {"env": lambda: preload("jemalloc") | {"MALLOC_CONF": BACKGROUND}}),
    ("glibc/tcache_count", "hold caches", lambda: ([built_c("hold"), "caches"], {}),
     {"env": {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}}),
    ("jemalloc/tcache", "hold caches, preloaded", lambda: ([built_c("hold"), "caches"], preload("jemalloc")),
     {"env": {"MALLOC_CONF": f"tcache:false,{BACKGROUND}"}}),
    ("gperftools/thread_caches", "hold caches, preloaded", lambda: ([built_c("hold"), "caches"], preload("gperftools")),
     {}),
    ("jemalloc/background_thread", "hold free, preloaded", lambda: ([built_c("hold"), "free"], preload("jemalloc")),
     {"env": {"MALLOC_CONF": BACKGROUND}}),
    ("jemalloc/background_thread", "static, tikv-jemallocator 0.6",
     lambda: ([built_rust("jemalloc", 'tikv-jemallocator = "0.6"', "tikv_jemallocator::Jemalloc")], {}),
     {"env": {"_RJEM_MALLOC_CONF": BACKGROUND}}),
    ("mimalloc/purge_delay", "static, mimalloc", lambda: ([built_rust("mimalloc", 'mimalloc = "0.1"', "mimalloc::MiMalloc")],
     {}), {"env": {"MIMALLOC_PURGE_DELAY": "0"}}),
    ("gperftools/aggressive_decommit", "hold free, preloaded",
     lambda: ([built_c("hold"), "free"], preload("gperftools")), {"env": {"TCMALLOC_AGGRESSIVE_DECOMMIT": "1"}}),
    ("tcmalloc/release", "static, tcmalloc-better", lambda: ([built_rust(
        "tcmalloc", 'tcmalloc-better = "0.1"', "tcmalloc_better::TCMalloc",
        TCMALLOC)], {}), {"line": True}),
    ("snmalloc/lazy_free", "static, snmalloc-rs",
     lambda: ([built_rust("snmalloc", 'snmalloc-rs = "0.7"', "snmalloc_rs::SnMalloc")], {}), {}),
    ("scudo/purge", "static, scudo", lambda: ([built_rust("scudo", 'scudo = "0.1"', "scudo::GlobalScudoAllocator")], {}), {}),
    ("cpython/collect", "cycles.py", lambda: (script("python3", "cycles.py"), {}), {"line": True}),
    ("cpython/arenas", "arenas.py", lambda: (script("python3", "arenas.py"), {}), {"argument": "apart"}),
    ("v8/old_space", "churn.js", lambda: (script("node", "churn.js"), {}), {"env": {"NODE_OPTIONS": "--max-old-space-size=64"}}),
    ("go/free_os_memory", "burst.go", lambda: (script("go", "run", "burst.go"), {}), {"line": True}),
    ("hotspot/g1", "Burst.java", lambda: (script("java", "-XX:+UseG1GC", "-Xmx400m", "Burst.java"), {}), {"command": "jcmd {pid} GC.run"}),
    ("hotspot/zgc", "Burst.java", lambda: (script("java", "-XX:+UseZGC", "-Xmx400m", "Burst.java"), {}),
     {"command": "jcmd {pid} VM.set_flag SoftMaxHeapSize 41943040 && jcmd {pid} GC.run", "settle": 320}),
    ("hotspot/shenandoah", "Burst.java", lambda: (script("java", "-XX:+UseShenandoahGC", "-Xmx400m", "Burst.java"), {}),
     {"env": {"JAVA_TOOL_OPTIONS": "-XX:+UnlockExperimentalVMOptions -XX:ShenandoahUncommitDelay=1000 "
                                   "-XX:ShenandoahGuaranteedGCInterval=10000"}, "settle": 30}),
    ("ruby/compact", "slots.rb", lambda: (script("ruby", "slots.rb"), {}), {"line": True}),
    ("php/memory_usage", "chunks.php", lambda: (script("php", "chunks.php"), {}), {}),
    ("beam/carriers", "carriers.escript", lambda: (script("escript", "carriers.escript"), {}), {"env": {"ERL_FLAGS": "+MHsmbcs 64 +MHlmbcs 256"}}),
    ("luajit/collect", "tables.lua", lambda: (script("luajit", "tables.lua"), {}), {"line": True}),
    ("fork/cpython", "forked.py", lambda: (script("python3", "forked.py"), {}), {"argument": "freeze"}),
    ("fork/ruby_compact", "forked.rb", lambda: (script("ruby", "forked.rb"), {}), {"argument": "compact"}),
    ("huge_pages/variable", "sparse.c, hugetlb=1",
     lambda: ([built_c("sparse")], {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
     {"env": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}}),
    ("pypy/get_stats", "arenas.py", lambda: (script("pypy3", "arenas.py"), {}), {}),
]


def rss(pid):
    """RSS in bytes; PSS where a process maps a page more than once (ZGC before JDK 23)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines[1:]}["Pss"]


def tree(pid):
    children = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return [pid, *(each for child in children for each in tree(int(child)))]


class Subject:
    def __init__(self, command, env):
        self.started = subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, start_new_session=True)
        line = self.started.stdout.readline()
        if line.strip() != "ready":
            self.end()
            raise RuntimeError(f"{command}: {line!r} instead of 'ready'")
        # Some programs are started by another one, or start helpers.
        self.pid = max(tree(self.started.pid), key=rss)

    def line(self):
        print("now", file=self.started.stdin, flush=True)
        assert self.started.stdout.readline().strip() == "done"

    def end(self):
        self.started.stdin.close()
        try:
            self.started.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.started.pid, 9)
            self.started.wait()
