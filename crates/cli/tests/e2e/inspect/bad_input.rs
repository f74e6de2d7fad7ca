//! Arguments that are not a process, and processes that cannot be inspected or end meanwhile.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{Subject, adds_up, failure_of, inspect, nobody, object, plain};
use crate::support::{fixture, lowtide, until};

/// Runs an inspection that must fail. Returns the error message.
fn failure(flags: &[&str], exit: i32, code: &str) -> String {
    failure_of("inspect", flags, exit, code)
}

#[test]
fn an_unknown_or_invalid_pid_is_reported() {
    for pid in [&nobody(), "0", "4294967295", "2147483647"] {
        let said = failure(&[pid], 4, "gone");
        assert!(said.starts_with(&format!("there is no process {pid}")), "{said}");
        assert!(said.contains("pgrep"), "{said}");
    }
    for word in ["-1", "abc", "", "99999999999999999999"] {
        failure(&[word], 2, "usage");
    }
    failure(&[], 2, "usage");
    let thread = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let thread = thread.map(|t| t.file_name().into_string().unwrap());
    let thread = thread.into_iter().find(|t| *t != std::process::id().to_string());
    failure(&[&thread.unwrap()], 4, "gone");
}

#[test]
fn a_watch_too_short_for_a_trend_is_an_error() {
    let own = std::process::id().to_string();
    let said = failure(&["--watch", "10ms", &own], 2, "usage");
    assert!(said.contains("use at least 1.00 s"), "{said}");
    for time in ["0s", "-5s", "soon", "60", "99999999999999999999h"] {
        failure(&[&format!("--watch={time}"), &own], 2, "usage");
    }
}

#[test]
fn a_kernel_thread_or_a_zombie_is_an_error() {
    // Kernel threads are not visible in a separate PID namespace.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        let said = failure(&["2"], 2, "usage");
        assert!(said.contains("a kernel thread"), "{said}");
    }
    let mut child = Command::new("true").spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    until("the end", || {
        std::fs::read_to_string(&status).unwrap().contains("State:\tZ").then_some(())
    });
    let said = failure(&[&child.id().to_string()], 4, "gone");
    assert!(said.contains("a zombie"), "{said}");
    child.wait().unwrap();
}

#[test]
fn with_several_pids_the_others_are_shown_and_the_unknown_one_is_reported() {
    let (first, second) = (Subject::of(&["blocks:2"]), Subject::of(&["blocks:3"]));
    let pids = [first.pid().to_string(), nobody(), second.pid().to_string()];
    let output = lowtide().args(["--json", "inspect"]).args(&pids).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let schemas: Vec<&Value> = lines.iter().map(|line| &line["schema"]).collect();
    assert_eq!(schemas, ["lowtide.inspect/1", "lowtide.error/1", "lowtide.inspect/1"]);
    let said = lines[1]["message"].as_str().unwrap();
    assert!(said.contains(&format!("there is no process {}", pids[1])), "{said}");
    assert_eq!(lines[2]["pid"], second.pid());
    // A process that is given twice is inspected once.
    let output = lowtide().args(["--json", "inspect", &pids[0], &pids[0]]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
}

#[test]
fn subprocesses_are_shown_with_their_total() {
    let mut subject = Subject::of(&["blocks:2"]);
    subject.send("fork:3");
    let output = inspect(&["--subprocesses"], subject.pid());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let (whole, each) = lines.split_last().unwrap();
    assert_eq!((each.len(), &each[0]["pid"]), (4, &subject.pid().into()));
    each.iter().for_each(adds_up);
    crate::schemas::hold_whole(whole);
    let sum: u64 = each.iter().map(|found| found["rss_bytes"].as_u64().unwrap()).sum();
    assert_eq!((&whole["processes"], &whole["rss_bytes"]), (&4.into(), &sum.into()));
    // Memory that they share since the fork counts once.
    let pss = whole["pss_bytes"].as_u64().unwrap();
    assert!(pss < sum && whole["pss_is_estimate"] == false, "{whole:#}");
}

#[test]
fn a_process_that_ends_during_the_inspection_is_reported_as_gone() {
    for _ in 0..10 {
        let mut subject = Subject::of(&["small:30:50"]);
        let look = lowtide()
            .args(["--json", "inspect", "--watch", "30s"])
            .arg(subject.pid().to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        subject.end();
        let output = look.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{}", object(&output));
    }
}

#[test]
fn a_process_that_execs_repeatedly_is_shown_consistently_or_rejected() {
    let home = tempfile::tempdir().unwrap();
    let script = home.path().join("again");
    // Each program counts to a multiple of $2, then executes the next.
    let text = "i=0; while [ $i -lt $(($1 * $2)) ]; do i=$((i+1)); done; exec sh \"$0\" $((($1 + 1) % 9)) $2\n";
    std::fs::write(&script, text).unwrap();
    let (mut shown, mut refused) = (0, 0);
    // Programs that live for about the time of an inspection, and some that live shorter or longer.
    // The time of an inspection depends on the machine.
    for step in ["1000", "0", "30000", "300000"].repeat(10) {
        let mut command = plain("sh");
        command.arg(&script).args(["0", step]).stdout(Stdio::null());
        let subject = Subject::silent(&mut command);
        for _ in 0..100 {
            let output = inspect(&[], subject.pid());
            let found = object(&output);
            match output.status.code() {
                Some(0) => {
                    let rows = found["ledger"].as_array().unwrap().iter();
                    let total: u64 = rows.map(|row| row["bytes"].as_u64().unwrap()).sum();
                    assert_eq!(found["rss_bytes"], total);
                    shown += 1;
                }
                code => {
                    let message = found["message"].as_str().unwrap();
                    assert_eq!(code, Some(1), "{found}");
                    assert!(message.contains("executed another program"), "{message}");
                    refused += 1;
                }
            }
            if shown >= 10 && refused >= 10 {
                return;
            }
        }
    }
    panic!("{shown} were shown, and {refused} were not");
}

/// Starts a subject as the user `nobody`. Returns it with its directory.
fn of_nobody(words: &[&str]) -> (Subject, tempfile::TempDir) {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    let home = tempfile::tempdir().unwrap();
    let copy = home.path().join("memory");
    crate::support::copy_program(fixture("memory", &["-pthread"]), &copy);
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = plain(&copy.display().to_string());
    (Subject::start(command.args(words).uid(65534).gid(65534)), home)
}

/// Inspects a process without some capabilities.
fn without(capabilities: &str, pid: u32) -> Output {
    let command = lowtide();
    let mut without = Command::new("setpriv");
    without.args([&format!("--bounding-set={capabilities}"), "--inh-caps=-all"]);
    without.arg(command.get_program()).args(["--json", "inspect", &pid.to_string()]);
    without.output().expect("setpriv (util-linux)")
}

#[test]
#[ignore = "needs root, to run as another user"]
fn another_users_process_is_shown_in_part_with_the_missing_capability() {
    let (subject, _home) = of_nobody(&["blocks:20", "shared:3"]);
    let output = without("-sys_ptrace,-perfmon,-sys_admin", subject.pid());
    let found = object(&output);
    assert_eq!(output.status.code(), Some(3), "{found}");
    let rows = found["ledger"].as_array().unwrap().iter();
    let rows: u64 = rows.map(|r| r["bytes"].as_u64().unwrap()).sum();
    assert_eq!(found["rss_bytes"], rows);
    assert_eq!(super::bytes(&found, "shared"), 3 << 20);
    assert_eq!(found["verdict"]["kind"], "inconclusive");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("CAP_SYS_PTRACE"), "{said}");
    assert!(said.contains(&format!("next: sudo lowtide inspect {}", subject.pid())), "{said}");
}

#[test]
#[ignore = "needs root, to run as another user"]
fn with_cap_perfmon_but_not_cap_sys_ptrace_the_mappings_are_shown() {
    let (subject, _home) = of_nobody(&["blocks:20", "shared:3"]);
    let output = without("-sys_ptrace", subject.pid());
    let found = object(&output);
    assert_eq!(output.status.code(), Some(3), "{found}");
    assert_eq!(super::bytes(&found, "shared"), 3 << 20);
    assert!(super::bytes(&found, "stacks") > 0, "{found:#}");
    assert!(found["rss_bytes"].as_u64().unwrap() > 23 << 20);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the heap of process"), "{said}");
}

#[test]
#[ignore = "needs root, to give up capabilities"]
fn a_nondumpable_process_is_distinguished_from_another_users_process() {
    let subject = Subject::of(&["blocks:20", "undumpable"]);
    let output = without("-sys_ptrace,-perfmon,-sys_admin", subject.pid());
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(object(&output)["verdict"]["kind"], "inconclusive");
    let said = String::from_utf8(output.stderr).unwrap();
    // Root's files in /proc belong to root in any case: that it also has more capabilities is the
    // cause that shows.
    assert!(said.contains("because the process has capabilities that lowtide lacks"), "{said}");
    assert!(!said.contains("as the user"), "{said}");
    subject.inspect();
}

#[test]
#[ignore = "needs root, to run as another user"]
fn with_cap_sys_ptrace_everything_is_shown() {
    let (subject, _home) = of_nobody(&["blocks:20", "keep:10"]);
    let output = without("-perfmon", subject.pid());
    let found = object(&output);
    assert_eq!(output.status.code(), Some(0), "{found}");
    adds_up(&found);
    assert_eq!(found["verdict"]["kind"], "hoard", "{found:#}");
}

#[test]
#[ignore = "needs root, for namespaces"]
fn a_process_in_other_namespaces_is_inspected_by_its_outer_pid() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("memory");
    crate::support::copy_program(fixture("memory", &["-pthread", "-static"]), &program);
    // In its namespace, its program is at another path. Here, that path is another file or none.
    let line = format!(
        "mount --bind {} /mnt && exec /mnt/memory blocks:40 keep:10",
        home.path().display()
    );
    let mut outer = plain("unshare");
    outer.args(["--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c", &line]);
    let outer = Subject::start(&mut outer);
    let children = format!("/proc/{0}/task/{0}/children", outer.pid());
    let children = std::fs::read_to_string(children).unwrap();
    let inner: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
    let output = inspect(&[], inner);
    let found = object(&output);
    assert_eq!(output.status.code(), Some(0), "{found}");
    adds_up(&found);
    assert_eq!(found["allocator"]["name"], "glibc", "{found:#}");
    assert_eq!(found["verdict"]["kind"], "hoard", "{found:#}");
    assert_eq!(found["sockets_established"], 0);
}
