"""What a virtual machine of .ci/kernels or .ci/aarch64 has to print, and the tables of what it did print."""

import json
import re
from dataclasses import dataclass

import heap_checks

# Further parameters of the kernel's command line, each tried in a boot of its own.
COMMAND_LINES = [
    "lockdown=integrity",
    "lockdown=confidentiality",
    "proc_mem.force_override=always",
    "apparmor=1 security=apparmor",
    "selinux=1 security=selinux enforcing=0",
    "selinux=1 security=selinux enforcing=1",
]
# Tolerance for memory that the program itself touches meanwhile, in bytes.
TOLERANCE = 16 * 4096
ENDED_BY_TERM = 128 + 15


@dataclass
class Step:
    name: str
    code: int
    out: str
    err: str

    def object(self):
        """Returns the first object of its output."""
        for line in self.out.splitlines():
            if line.startswith("{"):
                return json.loads(line)
        return {}

    def sentence(self):
        """Returns the sentence with which lowtide explains a failure."""
        if message := self.object().get("message"):
            return message
        found = re.search(r"^lowtide: (.*)$", self.err, re.MULTILINE)
        return found[1] if found else ""

    def require(self, condition, what):
        if not condition:
            raise Unexpected(f"{what} (exit code {self.code}) {self.sentence() or self.err[-200:]}".strip())


class Unexpected(Exception):
    """A result that is not as it has to be."""


class Results:
    """The steps and facts that a virtual machine has printed (.ci/vm/init)."""

    def __init__(self, text):
        self.facts, self.steps, self.has_ended = {}, [], False
        printed = {}
        for line in text.replace("\r", "").splitlines():
            match line.split(" ", 2):
                case ["OUT" | "ERR" as kind, step, *rest]:
                    printed.setdefault((kind, step), []).append("".join(rest))
                case ["FACT", name, value]:
                    self.facts[name] = value
                case ["STEP", step, rest]:
                    out, err = ("\n".join(printed.pop((kind, step), [])) for kind in ("OUT", "ERR"))
                    self.steps.append(Step(step, int(re.search(r"rc=(\d+)", rest)[1]), out, err))
                case ["END"]:
                    self.has_ended = True

    def last(self, name):
        """Returns the last step of this name."""
        named = [step for step in self.steps if step.name == name]
        if not named:
            raise Unexpected("the machine did not get there")
        return named[-1]

    def version(self):
        return tuple(int(number) for number in re.findall(r"\d+", self.facts.get("kernel", "0.0"))[:2])


def inspect(results):
    step = results.last("inspect")
    step.require(step.object().get("verdict", {}).get("kind") == "hoard", "the verdict is not `hoard`")


def dry_run(results):
    step = results.last("dry-run")
    step.require(step.object().get("predicted_bytes", 0) > 60 << 20, "no prediction")


def release(results):
    step = results.last("release")
    release = step.object()
    step.require(release.get("outcome") == "released", "nothing was released")
    fall = int(results.facts["before"]) - int(results.facts["after"])
    predicted, returned = release["predicted_bytes"], release["returned_bytes"]
    figures = f"predicted {predicted}, returned {returned}, its anonymous memory fell by {fall}"
    step.require(max(abs(predicted - returned), abs(returned - fall)) <= TOLERANCE, figures)


def busy(results):
    step = results.last("busy")
    step.require(step.object().get("returned_bytes", 0) > 0, "nothing was returned")
    torture = results.last("torture")
    torture.require(torture.code == 0, f"the program found errors: {torture.out[-500:]}")


def dispatch(results):
    if results.facts.get("dispatch") == "unsupported":
        return "none"
    step = results.last("dispatch")
    step.require(results.facts["dispatch"] == str(ENDED_BY_TERM), f"the program ended with {results.facts['dispatch']}")
    # From Linux 6.4 on, lowtide can read whether calls are dispatched.
    is_refused = step.object().get("hazard") == "user_dispatch"
    step.require(is_refused if results.version() >= (6, 4) else step.code == 0, "neither refused nor released")
    return "refused" if is_refused else "ok"


def top(results):
    step = results.last("top")
    names = [process["comm"] for process in step.object().get("processes", [])]
    step.require("drained" in names, f"the program is not among {names}")


def leaks(results):
    step = results.last("leaks")
    groups = step.object().get("groups", [])
    step.require(any(group["size_bytes"][0] <= 2064 <= group["size_bytes"][1] for group in groups), "no leak")


def stacks(results):
    step = results.last("stacks")
    if results.version() < (5, 8):
        step.require("Linux 5.8" in step.sentence(), "the refusal does not name the version")
        return "refused: before 5.8"
    step.require(step.object().get("sampling", {}).get("samples", 0) > 0, "no samples")


def policy(name, code):
    def check(results):
        step = results.last(name)
        step.require(step.code == code and '"outcome":"released"' in step.out, "no release")

    return check


def exporter(results):
    step = results.last("exporter")
    step.require(step.code == 0 and "hoard" in step.out, "the metrics lack the program")


VERBS = {
    "inspect": inspect,
    "dry run": dry_run,
    "release": release,
    "busy": busy,
    "dispatch": dispatch,
    "top": top,
    "leaks": leaks,
    "stacks": stacks,
    "run": policy("run", ENDED_BY_TERM),
    "attach": policy("attach", 0),
    "exporter": exporter,
    "limit": policy("limit", ENDED_BY_TERM),
}


def reading(results):
    """Returns the checks of a machine that only reads."""
    heaps = dict(heap_checks.HEAPS)
    if results.facts.get("kernel", "").endswith("-16k"):
        # It does not run where the kernel's pages are larger than its own.
        del heaps["jemalloc 5.3.1, 4K"]
    verbs = {name: VERBS[name] for name in ["inspect", "top", "leaks", "exporter"]}
    return heaps | verbs | heap_checks.REFUSED


def idle(name):
    """Returns the check of a release of a program that waits: exactly what was predicted."""

    def check(results):
        step = results.last(name)
        release = step.object()
        predicted, returned = release.get("predicted_bytes"), release.get("returned_bytes")
        step.require(predicted == returned and predicted > 60 << 20, f"predicted {predicted}, returned {returned}")
        fall = int(results.facts[f"{name}.before"]) - int(results.facts[f"{name}.after"])
        step.require(abs(fall - returned) <= TOLERANCE, f"returned {returned}, its anonymous memory fell by {fall}")
        step.require(results.last(f"{name}.mappings").out == "0", "a mapping of lowtide is left")
        again = results.last(f"{name}.again")
        again.require(again.object().get("outcome") == "nothing_to_release", "something was left to release")
        ended = results.facts[f"{name}.end"]
        step.require(ended == str(ENDED_BY_TERM), f"the program ended with {ended}")
        return f"ok: {returned} bytes"

    return check


# Where processors are emulated, the kernel counts ticks late, and timeouts of sockets end early, also without lowtide.
EARLY_ANYWAY = re.compile(r"(recv|accept)_rcvtimeo: ended after")


def checked_itself(name):
    """Returns the check of releases of a program that checks its memory, its registers and its waits."""

    def check(results):
        step = results.last(name)
        found = json.loads(step.out.splitlines()[-1])
        wrong = [text for text in found["violations"] if not EARLY_ANYWAY.match(text)]
        step.require(not wrong, f"the program found errors: {wrong}")
        # It prints a few errors of each kind.
        step.require(found["violation_count"] == found["short_sleeps"], "there are more errors than short waits")
        attempts, returned = (int(results.facts[f"{name}.{count}"]) for count in ("attempts", "returned"))
        step.require(returned > 0, f"none of {attempts} releases returned something")
        return f"ok: {returned} of {attempts} releases returned something"

    return check


def not_released(name, sentence):
    """Returns the check that a release was refused with a sentence."""

    def check(results):
        step = results.last(name)
        step.require(step.object().get("outcome") == "refused" and re.search(sentence, step.out), f"not refused: {sentence}")
        return "refused"

    return check


def killed(name):
    """Returns the check of a program whose releases were killed at one step after the other."""

    def check(results):
        step = results.last(name)
        facts = {fact: results.facts[f"{name}.{fact}"] for fact in ("kills", "wrong", "left", "end")}
        step.require(int(facts["kills"]) > 30, f"only {facts['kills']} releases were killed")
        step.require(facts["wrong"] == "0", f"after {facts['wrong']} of them, the program did not wait as before")
        step.require(step.object().get("returned_bytes", 0) > 0 and facts["left"] == "0", "the next release left something")
        step.require(facts["end"] == str(ENDED_BY_TERM), f"the program ended with {facts['end']}")
        return f"ok: {facts['kills']} releases were killed"

    return check


RELEASING = {
    "glibc 2.36": idle("glibc-2.36"),
    "glibc 2.41": idle("glibc-2.41"),
    "waits": checked_itself("waits"),
    "signals": checked_itself("signals"),
    "one thread": checked_itself("single"),
    "attach": policy("attach", 0),
    "run": policy("run", ENDED_BY_TERM),
    "mimalloc": not_released("mimalloc", "another allocator"),
    "--method trim": not_released("trim", "not tested on this processor"),
}


def torture(results):
    step = results.last("torture")
    step.require(step.code == 0, f"the program found errors: {step.out[-500:]}")
    for release in (step for step in results.steps if step.name == "release"):
        # 4: the program has ended. 5: a reason that may pass, such as that no thread waits.
        may_pass = release.code == 5 and release.object().get("may_pass")
        # An emulated processor can stall lowtide for a second. Then its worker thread in the program ends.
        may_pass = may_pass or release.object().get("outcome") == "partial"
        release.require(release.code in (0, 4) or may_pass, "a release failed")
    attempts, returned = (int(results.facts[name]) for name in ("attempts", "returned"))
    step.require(returned > 0, f"none of {attempts} releases returned something")
    return f"ok: {returned} of {attempts} releases returned something"


# Sentences that a refusal has to contain, by the start of the name of the step; the first one decides. All other steps
# have to succeed.
TRACING = {"1": r"CAP_SYS_PTRACE, or kernel\.yama\.ptrace_scope at 0; it is 1", "3": r"reboot.*ptrace_scope is 3"}
TRACING["2"] = TRACING["1"].replace("it is 1", "it is 2")
# Before Linux 6.10, a perf event for each probe is needed.
PROBES, WITH_PROBES = "CAP_BPF and CAP_PERFMON", "before Linux 6.10, they require CAP_SYS_ADMIN"
REFUSALS = [
    (r"(user|yama-0)\.stacks", PROBES),
    (r"yama-2\.with-ptrace\.stacks|.*\.with-probes\.stacks", WITH_PROBES),
    (r"yama-2\.(with-ptrace|root)\.", None),
    (r"yama-1\.", TRACING["1"]),
    (r"yama-2\.", TRACING["2"]),
    (r"yama-3\.", TRACING["3"]),
    (r"others\.(inspect|stacks)", "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or running lowtide as the user"),
    (r"others\.release", "CAP_SYS_PTRACE and CAP_DAC_OVERRIDE, or running lowtide as the user"),
    (r"others\.with-ptrace\.(inspect|stacks)", "requires CAP_DAC_READ_SEARCH"),
    (r"others\.with-ptrace\.release", "requires CAP_DAC_OVERRIDE"),
    (r"others\.with-ptrace-and-override\.stacks", PROBES),
    (r".*\.with-admin\.stacks", None),
    (r"(paranoid|bpf-disabled)", PROBES),
    (r"memlock\.root", None),
    (r"hidepid\.(inspect|release)|hidepid\.others\.top", None),
    (r"hidepid\.others\.", "hidepid"),
    (r"hidepid\.stacks", PROBES),
    (r"apparmor\.", r"security module \(SELinux, AppArmor\)"),
]


def refusal(boot, step):
    """Returns the sentence that a step has to print, as a regular expression; `None` if it has to succeed."""
    if step.name == "memlock.stacks" and boot.results.version() < (5, 11):
        return "RLIMIT_MEMLOCK.*ulimit -l unlimited"
    # Linux 5.10 permits them with CAP_PERFMON where the events of all users may be counted.
    if step.name == "paranoid-1.with-probes.stacks" and boot.results.version() < (6, 1):
        return None
    expected = next((sentence for names, sentence in REFUSALS if re.match(names, step.name)), None)
    is_old = boot.results.version() < (6, 10)
    if expected == PROBES:
        return WITH_PROBES if is_old else PROBES
    return None if expected == WITH_PROBES and not is_old else expected


def cell(check):
    """Runs a check, and returns its cell of the table, and whether the result is as it has to be."""
    try:
        return check() or "ok", True
    except Unexpected as unexpected:
        return f"FAILED: {unexpected}", False


def setting(boot, step):
    """Checks a step of a setting."""
    expected = refusal(boot, step)
    if expected is None:
        step.require(step.code == 0, "it has to succeed")
        return "ok"
    step.require(step.code != 0 and re.search(expected, step.sentence()), f"it has to be refused with: {expected}")
    return f"refused: {step.sentence()}"


def cells(boot):
    """Returns the name, the cell and the verdict of each check of a virtual machine."""
    results = boot.results
    match boot.steps:
        case "verbs":
            checks = {name: lambda check=check: check(results) for name, check in VERBS.items()}
        case "reading":
            checks = {name: lambda check=check: check(results) for name, check in reading(results).items()}
        case "releasing":
            checks = {name: lambda check=check: check(results) for name, check in RELEASING.items()}
        case "killed":
            checks = {name: killed(name) for name in ("alone", "threads")}
            checks = {name: lambda check=check: check(results) for name, check in checks.items()}
        case "torture":
            checks = {"torture": lambda: torture(results)}
        case _:
            checks = {step.name: lambda step=step: setting(boot, step) for step in results.steps}
    for name, check in checks.items():
        yield name, *cell(check)
    if not results.has_ended:
        yield "end", "FAILED: the machine did not run to completion", False


def row(words):
    print("| " + " | ".join(words) + " |")


def report(boots):
    """Prints the tables. Returns the exit code."""
    failed = 0
    verbs = [boot for boot in boots if boot.steps == "verbs"]
    if verbs:
        row(["kernel", *VERBS, "seconds"])
        row(["---"] * (len(VERBS) + 2))
    for boot in verbs:
        found = list(cells(boot))
        failed += sum(not is_good for _, _, is_good in found)
        short = {name: text.split(":")[0] for name, text, _ in found}
        name = f"{boot.results.facts.get('kernel')} {boot.settings}".strip()
        row([name, *(short.get(verb, "") for verb in VERBS), f"{boot.seconds:.0f}"])
    for boot in verbs:
        for name, text, is_good in cells(boot):
            if not is_good:
                print(f"\n{boot.name}, {name}: {text}")
    for boot in boots:
        if boot.steps == "verbs":
            continue
        print(f"\n{boot.results.facts.get('kernel')} {boot.settings}, {boot.steps}, {boot.seconds:.0f} s\n")
        row(["step", "result"])
        row(["---", "---"])
        for name, text, is_good in cells(boot):
            failed += not is_good
            row([name, text])
    return 1 if failed else 0
