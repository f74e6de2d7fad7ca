"""Virtual machines: what .ci/kernels, .ci/aarch64 and .ci/ledgers share. Processors are emulated, so their results say nothing about time."""

import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import checks

ROOT = Path(__file__).resolve().parent.parent.parent
# Number of virtual machines that run at the same time.
BESIDE = 2
# Maximum time of a virtual machine, in seconds.
MAX_TIME = 900
# Number of times that a virtual machine is booted if its kernel panics. Where processors are emulated in parallel, QEMU 7.2
# can run an instruction that the kernel is replacing.
MAX_BOOTS = 5


@dataclass(frozen=True)
class Processor:
    """A processor: how QEMU emulates it, and the kernel's names of two serial ports."""

    qemu: tuple
    console: str
    results: str


X86_64 = Processor(("qemu-system-x86_64", "-M", "q35", "-cpu", "max"), "ttyS0", "ttyS1")
# Without `pauth-impdef`, pointer authentication takes most of the time.
AARCH64 = Processor(("qemu-system-aarch64", "-M", "virt", "-cpu", "max,pauth-impdef=on"), "ttyAMA0", "ttyS0")


@dataclass
class Boot:
    """A virtual machine: its kernel, the script in .ci/vm that it runs, and what the kernel's command line adds."""

    kernel: Path
    steps: str
    settings: str = ""
    processors: int = 2
    # Whether processors are emulated in parallel. This gives more races, but see MAX_BOOTS.
    is_parallel: bool = False
    processor: Processor = X86_64
    seconds: float = 0.0
    results: "checks.Results" = field(default=None)

    @property
    def name(self):
        words = [self.kernel.name.removeprefix("vmlinuz-"), self.steps, *self.settings.split()]
        return " ".join(words)


def libraries(program):
    """Returns the libraries and the loader of a program of this processor; none if it is static."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True)
    return re.findall(r"(/\S+) \(0x", listed.stdout)


def copy_libraries(root, programs):
    """Copies the libraries of programs in `bin` of the file system of virtual machines."""
    for program in programs:
        for library in libraries(root / "bin" / program):
            copy = root / library.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, copy)


def compile_program(source, target, *options, compiler="cc"):
    subprocess.run([compiler, "-O1", "-g", "-pthread", *options, "-o", target, *source], check=True)


def guest_root(work, busybox, steps):
    """Begins the file system of virtual machines that run scripts of .ci/vm."""
    root = work / "root"
    for directory in ["bin", "proc", "sys", "dev", "tmp", "steps"]:
        (root / directory).mkdir(parents=True)
    guest = ROOT / ".ci/vm"
    shutil.copy(guest / "init", root / "init")
    for script in ["functions", *steps]:
        shutil.copy(guest / script, root / "steps")
    shutil.copy(busybox, root / "bin/busybox")
    return root


def archive(root):
    """Packs the file system of virtual machines."""
    archive = root.parent / "initramfs"
    # Not compressed: an emulated processor takes longer to unpack it than to read it.
    with open(archive, "wb") as file:
        subprocess.run("find . | cpio --quiet -o -H newc", shell=True, cwd=root, stdout=file, check=True)
    return archive


def run(boot, archive, out):
    """Runs a virtual machine until it powers off, and reads its results."""
    stem = re.sub(r"[^\w.=-]+", "_", boot.name)
    console, results = out / f"{stem}.console", out / f"{stem}.txt"
    processor = boot.processor
    line = f"console={processor.console} panic=-1 quiet loglevel=1 results={processor.results} steps={boot.steps} {boot.settings}"
    thread = "multi" if boot.is_parallel else "single"
    qemu = [*processor.qemu, "-accel", f"tcg,thread={thread}", "-smp", str(boot.processors), "-m", "1500M"]
    qemu += ["-display", "none", "-no-reboot", "-nic", "none", "-serial", f"file:{console}"]
    if processor is X86_64:
        qemu += ["-serial", f"file:{results}"]
    else:
        # The machine `virt` has one serial port of its own.
        qemu += ["-chardev", f"file,id=results,path={results}", "-device", "pci-serial,chardev=results"]
    qemu += ["-kernel", boot.kernel, "-initrd", archive, "-append", line]
    for _ in range(MAX_BOOTS):
        begin = time.monotonic()
        for file in (console, results):
            file.write_text("")
        # It is killed after the time.
        try:
            subprocess.run(qemu, stdin=subprocess.DEVNULL, timeout=MAX_TIME)
        except subprocess.TimeoutExpired:
            pass
        boot.seconds = time.monotonic() - begin
        has_panicked = "Kernel panic" in console.read_text(errors="replace")
        print(f"{boot.name}: {boot.seconds:.0f} s{', panic' if has_panicked else ''}", file=sys.stderr, flush=True)
        if not has_panicked:
            break
    boot.results = checks.Results(results.read_text(errors="replace"))
    return boot


def run_all(boots, archive, out):
    """Runs virtual machines, some at the same time."""
    with ThreadPoolExecutor(BESIDE) as pool:
        return list(pool.map(lambda boot: run(boot, archive, out), boots))
