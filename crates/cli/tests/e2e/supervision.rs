//! `lowtide attach` and `lowtide run`, on real processes.

mod confined;
mod faults;
pub(crate) mod wild;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::inspect::{Subject, bytes, plain};
use crate::schemas::{hold_act, hold_record};
use crate::support::{fixture, lines, lowtide, number, study, until};

pub(crate) const MIB: u64 = 1 << 20;

/// A supervisor that is killed when its test ends.
pub(crate) struct Attached {
    child: Option<Child>,
    /// A file rather than a pipe: no thread reads a pipe while the supervisor runs.
    stderr: NamedTempFile,
}

impl Attached {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::spawn(lowtide().arg("attach").args(arguments).stdout(Stdio::piped()))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let stderr = NamedTempFile::new().unwrap();
        command.stderr(stderr.reopen().unwrap());
        Self { child: Some(command.spawn().unwrap()), stderr }
    }

    /// Returns what it has printed on stderr so far.
    fn said(&self) -> String {
        fs::read_to_string(self.stderr.path()).unwrap()
    }

    /// Waits until it prints a text on stderr.
    pub(crate) fn until_said(&self, text: &str) {
        until(text, || self.said().contains(text).then_some(()));
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Interrupts it as Ctrl-C does, and returns its output.
    pub(crate) fn interrupt(&mut self) -> Output {
        kill_process(pid_of(self.pid()), Signal::INT).unwrap();
        self.wait()
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(&mut self) -> Output {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        Output { stderr: self.said().into_bytes(), ..output }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// Returns the lines of a log about an event. Validates each against the schema.
pub(crate) fn acts(log: &Path, event: &str) -> Vec<Value> {
    let all = if log.exists() { lines(log) } else { Vec::new() };
    all.iter().for_each(hold_act);
    all.into_iter().filter(|act| act["event"] == event).collect()
}

fn rss(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Waits until RSS is below a limit.
pub(crate) fn until_below(pid: u32, limit: u64) {
    until(&format!("RSS of {pid} is below {limit}"), || (rss(pid) < limit).then_some(()));
}

#[test]
fn memory_is_released_after_each_burst_and_nothing_remains_in_the_process() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let mut subject = Subject::of(&["blocks:150", "keep:20"]);
    let pid = subject.pid().to_string();
    let mut attached = Attached::start(&[&pid, "--log", &log.display().to_string()]);
    until("a release", || acts(&log, "act").into_iter().next());
    until_below(subject.pid(), 40 * MIB);
    subject.send("blocks:150");
    subject.send("keep:20");
    until("a second release", || (acts(&log, "act").len() >= 2).then_some(()));
    until_below(subject.pid(), 60 * MIB);
    // A release can come while the program still frees, and another one returns the rest. No thread
    // may wait at that moment: that is tried again.
    let returned = |acts: &[Value]| -> i64 {
        acts.iter().map(|act| -act["rss.diff"].as_i64().unwrap_or_default()).sum()
    };
    until("both to be logged", || {
        (returned(&acts(&log, "act")) > 2 * 90 * MIB as i64).then_some(())
    });
    let output = attached.interrupt();
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(" returned, RSS "), "{said}");
    let all = acts(&log, "act");
    for act in &all {
        if act["outcome"] == "refused" && act["hazard"] == "no_thread" {
            continue;
        }
        assert_eq!(act["outcome"], "released", "{act:#}");
        assert_eq!(act["message"], "Purged memory successfully");
        assert_eq!(act["policy"], "adaptive");
    }
    // At its end, the amount of memory that came back is known, too.
    assert!(!acts(&log, "returned").is_empty());
    assert!(!wild::has_stub(subject.pid()));
    assert!(bytes(&subject.inspect(), "reclaimable") < 2 * MIB);
}

#[test]
fn supervision_ends_when_its_process_ends() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let mut subject = Subject::of(&["blocks:10"]);
    let pid = subject.pid().to_string();
    let arguments = [&pid, "-p", "periodic=100ms", "--log", &log.display().to_string()];
    let mut attached = Attached::start(&arguments);
    until("an act", || acts(&log, "act").into_iter().next());
    subject.end();
    assert_eq!(attached.wait().status.code(), Some(0));
}

#[test]
fn processes_that_match_later_are_picked_up() {
    let home = tempfile::tempdir().unwrap();
    let (log, name) = (home.path().join("acts.jsonl"), format!("la{}", std::process::id()));
    let program = home.path().join(&name);
    crate::support::copy_program(fixture("memory", &["-pthread"]), &program);
    let flags = ["--comm", &name, "--log", &log.display().to_string(), "--json"];
    let mut attached = Attached::start(&flags);
    let subject =
        Subject::start(plain(&program.display().to_string()).args(["blocks:60", "keep:20"]));
    until_below(subject.pid(), 30 * MIB);
    let output = attached.interrupt();
    let printed: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(printed, lines(&log));
    assert!(printed.iter().all(|act| act["pid"] == subject.pid()));
}

#[test]
fn a_dry_run_reports_what_would_be_released_and_releases_nothing() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let subject = Subject::of(&["blocks:100", "keep:20"]);
    subject.rests();
    let before = rss(subject.pid());
    let pid = subject.pid().to_string();
    let mut attached = Attached::start(&[
        &pid,
        "--dry-run",
        "--log",
        &log.display().to_string(),
        "-p",
        "periodic=200ms",
    ]);
    until("an act", || acts(&log, "act").into_iter().next());
    attached.interrupt();
    let act = acts(&log, "act").remove(0);
    assert_eq!((&act["dry_run"], &act["returned_bytes"]), (&Value::from(true), &Value::from(0)));
    assert!(act["predicted_bytes"].as_u64().unwrap() > 50 * MIB, "{act:#}");
    assert_eq!(rss(subject.pid()), before);
}

/// Starts to watch a process and its log, with stdout in a file.
fn watch(pid: &str, log: &Path, stdout: &Path, flags: &[&str]) -> Attached {
    let mut command = lowtide();
    command.args(["watch", pid, "-i", "100ms", "--log"]).arg(log).args(flags);
    Attached::spawn(command.stdout(fs::File::create(stdout).unwrap()))
}

#[test]
fn watch_shows_the_acts_of_a_policy_as_lines_as_objects_and_in_its_record() {
    let home = tempfile::tempdir().unwrap();
    let [log, text, json, record] =
        ["acts.jsonl", "text", "json", "record.jsonl"].map(|name| home.path().join(name));
    let mut subject = Subject::of(&["blocks:150", "keep:20"]);
    let pid = subject.pid().to_string();
    let _attached = Attached::start(&[&pid, "--log", &log.display().to_string()]);
    let first = until("a release", || acts(&log, "act").into_iter().next());
    let mut plain = watch(&pid, &log, &text, &["-o", &record.display().to_string()]);
    let mut objects = watch(&pid, &log, &json, &["--json"]);
    for output in [&text, &json] {
        until("an inspection", || {
            fs::read_to_string(output).ok()?.contains("reclaimable").then_some(())
        });
    }
    let before = acts(&log, "act").len();
    subject.send("blocks:150");
    subject.send("keep:20");
    let is_release = |act: &Value| act["outcome"] == "released";
    let later = || acts(&log, "act").into_iter().skip(before).find(is_release);
    let second = until("a second release", later);
    let (time, reason) = (second["time"].as_str().unwrap(), second["reason"].as_str().unwrap());
    until("its object", || fs::read_to_string(&json).ok()?.contains(time).then_some(()));
    let line = until("its line", || {
        let text = fs::read_to_string(&text).ok()?;
        let is_meant = |line: &&str| line.contains(" returned ") && line.ends_with(reason);
        text.lines().find(is_meant).map(str::to_owned)
    });
    subject.end();
    for watch in [&mut plain, &mut objects] {
        let output = watch.wait();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(
        (words[1], words[2], words[5], words[8]),
        ("s", "RSS", "returned", "pause"),
        "{line}"
    );

    // Acts from before the watch are neither lines nor objects.
    let watched = acts_among(&lines(&json));
    assert!(watched.contains(&second) && !watched.contains(&first), "{watched:#?}");
    let kept = lines(&record);
    hold_record(&kept);
    assert_eq!(kept[1]["treatment"]["policy"], "adaptive");
    let reports: Vec<Value> = kept
        .iter()
        .filter(|line| line["kind"] == "act")
        .map(|line| line["report"].clone())
        .collect();
    assert!(reports.contains(&second) && !reports.contains(&first), "{reports:#?}");
    let report = lowtide().arg("report").arg(&record).output().unwrap();
    assert!(String::from_utf8_lossy(&report.stdout).contains("adaptive"), "{report:?}");
}

/// Returns the acts among objects of several schemas.
fn acts_among(objects: &[Value]) -> Vec<Value> {
    let schemas = ["lowtide.act/1", "lowtide.inspect/1"].map(Value::from);
    assert!(objects.iter().all(|object| schemas.contains(&object["schema"])), "{objects:#?}");
    objects.iter().filter(|object| object["schema"] == schemas[0]).cloned().collect()
}

#[test]
fn a_program_that_does_not_count_its_freed_bytes_is_reported() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let mut command = lowtide();
    command.args(["run", "-p", "freed=1MiB", "--log"]).arg(&log);
    // The library is in the variable that `env -u` removes.
    command.args(["--", "env", "-u", "LD_PRELOAD", &fixture("memory", &["-pthread"]), "blocks:20"]);
    let _subject = Subject::start(command.stderr(Stdio::null()));
    let act = until("a report", || acts(&log, "left_alone").into_iter().next());
    assert!(act["reason"].as_str().unwrap().contains("is not loaded in it"), "{act:#}");
    assert!(acts(&log, "act").is_empty());
}

#[test]
fn a_process_that_cannot_be_released_is_reported_once() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let mut subject = Subject::of(&["blocks:60", "keep:20", "filter:0"]);
    let pid = subject.pid().to_string();
    let arguments = [&pid, "-p", "periodic=100ms", "--log", &log.display().to_string()];
    let mut attached = Attached::start(&arguments);
    until("it is left alone", || acts(&log, "left_alone").into_iter().next());
    subject.end();
    attached.wait();
    let all = lines(&log);
    assert_eq!(all.iter().filter(|act| act["event"] == "left_alone").count(), 1, "{all:#?}");
    assert!(all[0]["reason"].as_str().unwrap().contains("seccomp"), "{all:#?}");
}

/// Starts a program with an allocator of its own, whose heap and glibc's hold free memory.
fn with_two_heaps() -> Subject {
    let binary = Path::new(env!("CARGO_BIN_EXE_lowtide"));
    let mut program =
        plain(&binary.with_file_name("examples").join("own_allocator").to_string_lossy());
    Subject::start(program.arg("hoards").env("MIMALLOC_PURGE_DELAY", "1000000"))
}

#[test]
fn of_a_program_with_an_allocator_of_its_own_the_chosen_heap_is_released_and_the_other_named_once()
{
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let subject = with_two_heaps();
    let pid = subject.pid().to_string();
    let arguments = [&pid, "-p", "periodic=100ms", "--log", &log.display().to_string()];
    let mut attached = Attached::start(&arguments);
    let of = |outcome: &str| acts(&log, "act").into_iter().find(|act| act["outcome"] == outcome);
    let released = until("a release", || of("released"));
    assert!(released["returned_bytes"].as_u64().unwrap() > MIB, "{released:#}");
    until("another attempt", || of("nothing_to_release"));
    attached.interrupt();
    let named = acts(&log, "left_alone");
    assert_eq!(named.len(), 1, "{named:#?}");
    assert!(named[0]["reason"].as_str().unwrap().contains("--allocators mimalloc"), "{named:#?}");
}

#[test]
fn a_heap_that_is_refused_is_left_alone_and_the_other_heap_is_released() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let subject = with_two_heaps();
    let pid = subject.pid().to_string();
    let log_path = log.display().to_string();
    let arguments =
        [&pid, "-p", "periodic=100ms", "--allocators", "all", "--log", log_path.as_str()];
    let mut attached = Attached::start(&arguments);
    let of = |outcome: &str| acts(&log, "act").into_iter().find(|act| act["outcome"] == outcome);
    let released = until("a release", || of("released"));
    assert!(released["returned_bytes"].as_u64().unwrap() > MIB, "{released:#}");
    // The process itself is not left alone.
    until("another attempt", || of("nothing_to_release"));
    attached.interrupt();
    let named = acts(&log, "left_alone");
    assert_eq!(named.len(), 1, "{named:#?}");
    let message = named[0]["message"].as_str().unwrap();
    assert!(message.starts_with("The heap of mimalloc is left alone for 1 h"), "{named:#?}");
}

#[test]
fn metrics_are_written_for_node_exporter() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("lowtide.prom");
    let subject = Subject::of(&["blocks:60", "keep:20"]);
    let pid = subject.pid().to_string();
    let mut attached = Attached::start(&[&pid, "--textfile", &path.display().to_string()]);
    let name = "lowtide_releases_total{program=\"memory-pthread\"} ";
    until("a release in the metrics", || {
        let text = fs::read_to_string(&path).ok()?;
        let count = text.lines().find_map(|line| line.strip_prefix(name))?;
        (count.parse::<f64>().ok()? >= 1.0).then_some(())
    });
    attached.interrupt();
}

#[test]
fn invalid_attach_arguments_are_reported_in_a_sentence() {
    let subject = Subject::of(&["blocks:1"]);
    let pid = subject.pid().to_string();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["attach", &pid, "-p", "sometimes"], 2, "--policy: there is no policy `sometimes`"),
        (&["attach", &pid, "-p", "freed=1GiB"], 2, "start the program with lowtide run"),
        (&["attach", &pid, "-p", "none"], 2, "none releases nothing"),
        (&["attach", &pid, "--budget", "half"], 2, "--budget: `half` is not a share of a core"),
        (&["attach", &pid, "--min-rss", "big"], 2, "--min-rss: "),
        (&["attach", "4194303"], 4, "there is no process 4194303"),
        (
            &["attach", &pid, "--log", "/no/such/directory/acts"],
            1,
            "/no/such/directory/acts could not be opened",
        ),
    ];
    for (arguments, code, sentence) in cases {
        let output = lowtide().args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {said}");
        assert!(said.contains(sentence), "{arguments:?} {said}");
    }
}

#[test]
fn run_passes_on_the_output_and_the_exit_code_of_the_command() {
    let run = |words: &[&str]| lowtide().arg("run").args(words).output().unwrap();
    let output = run(&["--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
    // The totals follow if the command took a second, as it can on a busy machine.
    let said = String::from_utf8(output.stderr).unwrap();
    let totals = said.strip_prefix("err\n").unwrap();
    assert!(totals.is_empty() || totals.starts_with("lowtide: nothing was released"), "{said}");
    for (words, code) in [
        (&["--", "/no/such/program"][..], 127),
        (&["--", "/etc/passwd"], 126),
        (&["-p", "sometimes", "--", "true"], 125),
        (&["-a", "no-such-allocator", "--", "true"], 125),
        (&["--log", "/no/such/directory/acts", "--", "true"], 125),
        (&[], 125),
    ] {
        let output = run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?} {said}");
        assert!(!said.is_empty());
    }
}

#[test]
fn run_releases_the_memory_of_a_command_and_sets_its_allocator() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let mut command: Command = lowtide();
    command.args(["run", "--log", &log.display().to_string(), "--"]);
    command.arg(fixture("memory", &["-pthread"])).args(["blocks:150", "keep:20"]);
    let mut subject = Subject::start(&mut command);
    // A release can come while the command still frees, and another one returns the rest.
    let act = until("a release", || {
        let released = acts(&log, "act").into_iter().filter(|act| act["outcome"] == "released");
        let released: Vec<Value> = released.collect();
        let returned = released.iter().map(|act| act["returned_bytes"].as_u64().unwrap());
        (returned.sum::<u64>() > 100 * MIB).then(|| released[0].clone())
    });
    assert_ne!(act["pid"], subject.pid(), "the command is a child of the reaper");
    subject.end();
    let output = lowtide()
        .args(["run", "-a", "jemalloc", "-p", "none", "--", "sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("jemalloc"), "{output:?}");
}

#[test]
fn a_study_shows_what_each_policy_does_and_costs() {
    let hoard = format!("sleep 1000 | {} blocks:100 keep:20", fixture("memory", &["-pthread"]));
    let study_for = |settle: &str| {
        let policies = "none,periodic=300ms,freed=16MiB,adaptive";
        let load = ["--ready", "log:ready", "--load", "true", "--settle", settle];
        let mut words = vec!["-a", "glibc", "-p", policies, "--repeat", "1"];
        words.extend(load.into_iter().chain(["--", "sh", "-c", &hoard]));
        study(&words)
    };
    let has_released = |trial: &Value| {
        let returned_bytes = trial["policy"]["returned_bytes"].as_f64();
        trial["treatment"]["policy"] == "none" || returned_bytes.is_some_and(|bytes| bytes > 60e6)
    };
    // A trial takes all of its time. On a busy machine, a policy may need more of it.
    let mut ran = study_for("9s");
    for settle in ["45s", "120s"] {
        if ran.trials().iter().all(has_released) {
            break;
        }
        ran = study_for(settle);
    }
    let trials = ran.trials();
    assert_eq!(trials.len(), 4);
    for trial in &trials {
        let (policy, releases) = (&trial["treatment"]["policy"], number(trial, "releases"));
        if policy == "none" {
            assert_eq!((releases, &trial["policy"]), (0.0, &Value::Null));
            continue;
        }
        assert!(releases >= 1.0, "{trial:#}");
        assert!(has_released(trial), "{trial:#}");
        assert!(number(&trial["policy"], "lowtide_cpu_s") > 0.0, "{trial:#}");
        hold_record(&ran.lines(trial));
    }
}
