//! Commands that divide memory which lowtide does not follow.

use lowtide_model::counts::{CountGrowth, CountKind};
use lowtide_model::growth::{Growth, GrowthCourse, GrowthPart, LAZILY_FREED};
use lowtide_model::inspection::Runtime;
use lowtide_model::runtime_kind::RuntimeKind;

/// Counts the objects of an interpreter by type. What lowtide does not divide in CPython are
/// interpreters with memory of their own.
const PYTHON: &str = "import collections, gc; print(collections.Counter(type(one).__name__ for one in \
                      gc.get_objects()).most_common(10), flush=True)";
/// Lines of code, for which a module is needed that such interpreters cannot load.
const TRACEMALLOC: &str = "in the interpreter that grows; for lines of code, in the main interpreter only: \
                           tracemalloc.start(25), and later \
                           print(*tracemalloc.take_snapshot().statistics('lineno')[:10], sep='\\n')";

/// Returns a command that divides most of the growth of a process, if that is memory which lowtide
/// does not follow. `runtimes` are those of the process. Each one is tried on a real program by the
/// tests of `lowtide leaks`.
pub fn divide_growth(growth: &Growth, runtimes: &[Runtime], pid: u32) -> Option<String> {
    if growth.page_tables_rise().is_some() {
        let command =
            format!("awk '/^Vm(Size|RSS|PTE):/' /proc/{pid}/status; wc -l /proc/{pid}/maps");
        let remark =
            "addresses and mappings: a page table for each 2 MiB in which a page was touched";
        return Some(with_remark(&command, remark));
    }
    if growth.hugetlb_rise().is_some() {
        let command =
            format!("grep -E '^[0-9a-f]+-|_Hugetlb: +[1-9]' /proc/{pid}/smaps | grep -B 1 Hugetlb");
        return Some(with_remark(&command, "its mappings in the kernel's pool of huge pages"));
    }
    if growth.open_memory_rise().is_some() {
        return Some(counted(CountKind::OpenFiles, pid));
    }
    // A server also has more files open while its heap grows: these divide no growth of RSS.
    // The one that reaches its limit first, or rises steadily.
    let left_s = |count: &CountGrowth| count.seconds_to_limit.unwrap_or(f64::INFINITY);
    let count = growth.counts.iter().min_by(|one, other| {
        let by_time = left_s(one).total_cmp(&left_s(other));
        by_time.then(one.per_s.is_none().cmp(&other.per_s.is_none()))
    });
    if let Some(count) = count.filter(|_| growth.course != GrowthCourse::Steady) {
        return Some(counted(count.kind, pid));
    }
    if growth.descendants_rise().is_some() {
        let most = growth.descendants.as_ref().map(|found| found.most.pid)?;
        return Some(with_remark(
            &format!("lowtide leaks {most} --duration 10m"),
            "the descendant that grew most",
        ));
    }
    let part = growth.by.iter().find(|part| !part.is_followed())?;
    let is_most = part.bytes > 0 && growth.followed_share < 0.5;
    if is_most && part.owner == LAZILY_FREED {
        let command = format!("grep -E '^(Rss|LazyFree)' /proc/{pid}/smaps_rollup");
        let remark = "nothing to do: the kernel takes it back when memory is short; while it reads this, the kernel \
                      lets the program map nothing";
        return Some(with_remark(&command, remark));
    }
    is_most.then(|| divide(part, growth, runtimes, pid))
}

/// Returns a command that shows what the kernel counts of a process, with a remark.
fn counted(kind: CountKind, pid: u32) -> String {
    let most = "sort | uniq -c | sort -n | tail";
    let (command, remark) = match kind {
        CountKind::OpenFiles => (
            format!("ls -l /proc/{pid}/fd | sed 's/.* -> //' | {most}"),
            "its open files by name, the most frequent last",
        ),
        CountKind::Mappings => (
            format!("awk '{{print $2, $6}}' /proc/{pid}/maps | {most}"),
            "its mappings by permissions and file, the most frequent last",
        ),
        CountKind::Threads => (
            format!("cat /proc/{pid}/task/*/comm | {most}"),
            "its threads by name, the most frequent last",
        ),
        CountKind::EndedChildren => (
            format!("ps --ppid {pid} -o stat=,comm= | {most}"),
            "its child processes by state and name (Z: ended): the program has to wait for them",
        ),
    };
    with_remark(&command, remark)
}

/// Returns a command that divides memory which lowtide does not follow, and a remark on it in
/// brackets.
fn divide(part: &GrowthPart, growth: &Growth, runtimes: &[Runtime], pid: u32) -> String {
    let is_node = || {
        runtimes.iter().any(|runtime| RuntimeKind::parse(&runtime.name) == Some(RuntimeKind::Node))
    };
    let runtime = match part.name.as_deref().and_then(RuntimeKind::parse) {
        Some(RuntimeKind::V8) if is_node() => Some(RuntimeKind::Node),
        runtime => runtime,
    };
    // Where the objects of a runtime are known, the rest is other memory: of Java, mostly classes.
    let is_heap_known = |runtime: RuntimeKind| {
        let is_known = |other: &GrowthPart| other.owner == "allocated" || other.free;
        let is_of = |other: &GrowthPart| other.name.as_deref() == Some(runtime.name());
        growth.by.iter().any(|other| is_of(other) && is_known(other))
    };
    let (command, remark) = match (part.owner.as_str(), runtime) {
        ("runtime", Some(RuntimeKind::HotSpot))
            if !part.free && is_heap_known(RuntimeKind::HotSpot) =>
        {
            (
                format!("jcmd {pid} VM.metaspace && jcmd {pid} VM.classloaders"),
                "as its user: memory of classes, and the class loaders that keep them",
            )
        }
        ("runtime", Some(RuntimeKind::Node)) if !part.free && is_heap_known(RuntimeKind::V8) => (
            format!(
                "(sleep 2; echo 'exec process.memoryUsage()'; sleep 3) | node inspect -p {pid}"
            ),
            "external: what objects have outside of V8's heap, such as WebAssembly.Memory; what is in none of the \
             figures was mapped by an addon",
        ),
        ("runtime" | "allocated", Some(runtime)) => of_runtime(runtime, pid),
        ("stacks", _) => (
            format!("ps -T -p {pid}"),
            "the names of its threads; threads that end need pthread_join or pthread_detach",
        ),
        ("shared", _) if part.name.as_deref().is_some_and(|name| name.starts_with("/SYSV")) => {
            (format!("ipcs -m -p | grep -w {pid}"), "the segments that it created or used last")
        }
        ("shared", _) => (
            format!(
                "awk '$2 ~ /s$/ {{print $6}}' /proc/{pid}/maps | sort | uniq -c | sort -n | tail"
            ),
            "its shared mappings by file, the most frequent last; ls -l /proc/PID/fd: open ones",
        ),
        ("file", _) => (
            format!("grep -E '^(Pss|Private)_' /proc/{pid}/smaps_rollup"),
            "clean and dirty pages; while it reads them, the kernel lets the program map nothing",
        ),
        ("anonymous_other" | "program_data", _) => (
            format!(
                "perf record -e page-faults -F 99 -g -o {pid}.perf -p {pid} -- sleep 60 && \
                 perf report -i {pid}.perf --stdio --no-children"
            ),
            "the code that uses it first",
        ),
        ("reclaimable" | "locked" | "cached" | "fragmented" | "metadata", _) => {
            (format!("lowtide inspect {pid} --pins"), "what keeps this free memory of the heap")
        }
        _ => (format!("pmap -x {pid} | sort -n -k 3 | tail"), "its largest mappings"),
    };
    with_remark(&command, remark)
}

fn with_remark(command: &str, remark: &str) -> String {
    if remark.is_empty() { command.to_owned() } else { format!("{command}\n      ({remark})") }
}

/// Returns a command for the memory of a runtime, or code to run in the program.
fn of_runtime(runtime: RuntimeKind, pid: u32) -> (String, &'static str) {
    match runtime {
        RuntimeKind::HotSpot => (format!("jcmd {pid} GC.class_histogram"), "as its user"),
        // The debugger ends with its input: the input lasts until the file is whole, which takes as
        // long as it takes. A space has no effect, and ends the loop if the debugger has ended.
        RuntimeKind::Node => (
            format!(
                "(rm -f {pid}.heapsnapshot; sleep 2; echo \"takeHeapSnapshot('{pid}.heapsnapshot')\"; \
                 until tail -c 2 {pid}.heapsnapshot 2>&1 | grep -q ']}}'; do sleep 1; echo ' '; done) | \
                 node inspect -p {pid}"
            ),
            "it stops meanwhile, and needs as much memory again; open the file in Chrome's DevTools",
        ),
        RuntimeKind::V8 => (
            "take a heap snapshot with the inspector of this V8".to_owned(),
            "deno: start it with --inspect",
        ),
        RuntimeKind::JavaScriptCore => (
            "Bun.write('heap.json', JSON.stringify(Bun.generateHeapSnapshot()))".to_owned(),
            "in the program",
        ),
        RuntimeKind::Go => (
            "go tool pprof -top http://HOST:PORT/debug/pprof/heap".to_owned(),
            "HOST:PORT: where it serves net/http/pprof; goroutines, whose stacks are in this memory, are counted by \
             curl 'http://HOST:PORT/debug/pprof/goroutine?debug=1'; what syscall.Mmap has mapped is in neither, nor in \
             runtime.MemStats.Sys",
        ),
        RuntimeKind::Ruby => (
            "require 'objspace'; ObjectSpace.dump_all(output: File.open('heap.json', 'w'))"
                .to_owned(),
            "in the program",
        ),
        RuntimeKind::Php => (
            "error_log((string) memory_get_usage());".to_owned(),
            "between the steps of the script, to see which step allocates",
        ),
        RuntimeKind::Erlang => (
            "{erlang:memory(), [lists:sublist(lists:reverse(lists:keysort(2, All)), 5) || All <- \
             [[{T, W} || T <- ets:all(), W <- [ets:info(T, memory)], is_integer(W)], \
             [{P, B} || P <- processes(), {memory, B} <- [process_info(P, memory)]]]]}."
                .to_owned(),
            "in the shell of the node: bytes by class, the largest tables in words, the largest processes in bytes; \
             the binaries of a process, with recon: recon:bin_leak(10)",
        ),
        RuntimeKind::Python => (PYTHON.to_owned(), TRACEMALLOC),
        RuntimeKind::PyPy => (
            "import gc; gc.dump_rpy_heap('heap.dump')".to_owned(),
            "in the program; pypy/tool/gcdump.py prints it",
        ),
        RuntimeKind::LuaJit => (
            "print(collectgarbage('count'))".to_owned(),
            "between the steps of the script, in KiB: which step allocates?",
        ),
        RuntimeKind::InnoDb
        | RuntimeKind::Postgres
        | RuntimeKind::Mono
        | RuntimeKind::R
        | RuntimeKind::Boehm => {
            (format!("pmap -x {pid} | sort -n -k 3 | tail"), "its largest mappings")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use lowtide_model::counts::CountGrowth;

    use super::*;

    fn part(owner: &str, name: Option<&str>) -> GrowthPart {
        GrowthPart {
            owner: owner.to_owned(),
            name: name.map(str::to_owned),
            count: None,
            more: None,
            kept: false,
            free: false,
            bytes: 1 << 20,
            bytes_per_hour: 1 << 30,
            bound_bytes: None,
        }
    }

    fn growth(followed_share: f64, found: GrowthPart) -> Growth {
        Growth {
            rss_bytes: [0, 2 << 20],
            elapsed_s: 60.0,
            course: GrowthCourse::Steady,
            rss_bytes_per_hour: 2 << 30,
            followed_share,
            limit_bytes: None,
            seconds_to_limit: None,
            dirty_files_bytes: None,
            page_tables_bytes: None,
            hugetlb_bytes: None,
            open_files: None,
            counts: Vec::new(),
            open_memory: None,
            descendants: None,
            locked_files_bytes: None,
            has_steady_unbounded: false,
            process_limit: None,
            by: vec![part("allocated", None), found],
        }
    }

    #[test]
    fn a_count_that_rises_is_shown_by_a_tool_unless_rss_grows_steadily() {
        let said = |kind, course| {
            let found = growth(0.4, part("stacks", None));
            let counts = CountGrowth::new(kind, [5, 900], None).into_iter().collect();
            divide_growth(&Growth { course, counts, ..found }, &[], 7).unwrap()
        };
        for (kind, tool) in [
            (CountKind::OpenFiles, "ls -l /proc/7/fd"),
            (CountKind::Mappings, "awk '{print $2, $6}' /proc/7/maps"),
            (CountKind::Threads, "cat /proc/7/task/*/comm"),
            (CountKind::EndedChildren, "ps --ppid 7"),
        ] {
            assert!(said(kind, GrowthCourse::Level).starts_with(tool), "{tool}");
            assert!(said(kind, GrowthCourse::Steady).starts_with("ps -T -p 7"));
        }
    }

    #[test]
    fn memory_that_is_not_followed_is_handed_over_to_a_tool_that_divides_it() {
        for (found, tool) in [
            (part("allocated", Some("HotSpot")), "jcmd 7 GC.class_histogram"),
            (
                part("runtime", Some("Node.js")),
                "(rm -f 7.heapsnapshot; sleep 2; echo \"takeHeapSnapshot('7.heapsnapshot')\"",
            ),
            (part("stacks", None), "ps -T -p 7"),
            (part("fragmented", None), "lowtide inspect 7 --pins"),
            (
                part("program_data", Some("libx.so")),
                "perf record -e page-faults -F 99 -g -o 7.perf -p 7",
            ),
            (part("shared", Some("/SYSV00000000")), "ipcs -m -p | grep -w 7"),
            (part(LAZILY_FREED, None), "grep -E '^(Rss|LazyFree)' /proc/7/smaps_rollup"),
            (part("anonymous_other", None), "perf record -e page-faults -F 99 -g -o 7.perf -p 7"),
        ] {
            let said = divide_growth(&growth(0.4, found.clone()), &[], 7).unwrap();
            assert!(said.starts_with(tool), "{said}");
            assert_eq!(divide_growth(&growth(0.6, found), &[], 7), None);
        }
        let node = [Runtime { name: "Node.js".to_owned(), version: None }];
        let of_v8 = |runtimes: &[Runtime]| {
            divide_growth(&growth(0.4, part("allocated", Some("V8"))), runtimes, 7).unwrap()
        };
        assert!(of_v8(&node).contains("node inspect -p 7"));
        assert!(of_v8(&[]).contains("deno"));
        let mut outside = growth(0.4, part("runtime", Some("Node.js")));
        outside.by.push(part("allocated", Some("V8")));
        let said = divide_growth(&outside, &node, 7).unwrap();
        assert!(said.contains("process.memoryUsage()"), "{said}");
    }

    #[test]
    #[ignore = "needs python3"]
    fn the_code_for_python_counts_objects_and_names_lines() {
        let lines = TRACEMALLOC.split("later ").nth(1).unwrap();
        let program = format!(
            "import tracemalloc; tracemalloc.start(25)\nclass Session: pass\n\
             keep = [Session() for n in range(50000)]\n{PYTHON}\n{lines}\n"
        );
        let output = Command::new("python3").args(["-c", &program]).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains("('Session', 50000)"), "{printed}{:?}", output.stderr);
        assert!(printed.contains("<string>:3: size="), "{printed}");
    }
}
