//! `lowtide inspect --cgroup`: the ledger of a cgroup.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::Subject;
use crate::exporter::Exporter;
use crate::schemas::{hold_charge, hold_top, hold_whole};
use crate::support::{lowtide, until};

const MIB: i64 = 1 << 20;
/// Maximum size of the libraries that a group is charged for. As much of its shared memory counts
/// as mapped if a process of the machine cannot be read.
const LIBRARIES: i64 = 8 * MIB;

/// A memory cgroup of a test, of version 1 or 2.
struct Group {
    directory: PathBuf,
    path: String,
}

impl Group {
    fn new(name: &str) -> Self {
        let root = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let root = root.into_iter().find(|root| root.join("cgroup.procs").exists());
        let path = format!("/lowtide-{name}-{}", std::process::id());
        let directory = root.expect("a memory cgroup hierarchy").join(&path[1..]);
        std::fs::create_dir(&directory).unwrap();
        Self { directory, path }
    }

    /// Starts a shell in it that executes a script, prints `ready`, and waits.
    fn run(&self, script: &str) -> Subject {
        let procs = self.directory.join("cgroup.procs");
        let script = format!("echo $$ > {} && {script} && echo ready && read x", procs.display());
        Subject::start(Command::new("sh").args(["-c", &script]))
    }

    fn set_limit(&self, bytes: i64) {
        let names = ["memory.limit_in_bytes", "memory.max"].map(|name| self.directory.join(name));
        let file = names.iter().find(|file| file.exists()).unwrap();
        std::fs::write(file, bytes.to_string()).unwrap();
    }

    fn ledger(&self) -> Value {
        let output = inspect(&self.path, &["--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let whole: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        hold_whole(&whole);
        let ledger = whole["cgroup"].clone();
        let sum: i64 = rows(&ledger).map(|row| row["bytes"].as_i64().unwrap()).sum();
        assert_eq!(ledger["charged_bytes"], sum, "{ledger:#}");
        let anon = &ledger["anon"];
        let owned: i64 = by_owner(anon).map(|(_, bytes)| bytes).sum();
        let sum = owned + anon["other_bytes"].as_i64().unwrap();
        assert_eq!(sum, bytes(&ledger, "anon"), "{ledger:#}");
        ledger
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        until("the group to be empty", || std::fs::remove_dir(&self.directory).ok());
    }
}

/// A file that is removed at the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn inspect(group: &str, words: &[&str]) -> Output {
    lowtide().args(["inspect", "--cgroup", group]).args(words).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn rows(ledger: &Value) -> impl Iterator<Item = &Value> {
    ledger["rows"].as_array().unwrap().iter()
}

fn by_owner(anon: &Value) -> impl Iterator<Item = (&str, i64)> {
    let rows = anon["owners"].as_array().unwrap().iter();
    rows.map(|row| (row["owner"].as_str().unwrap(), row["bytes"].as_i64().unwrap()))
}

fn bytes(ledger: &Value, kind: &str) -> i64 {
    rows(ledger).filter(|row| row["kind"] == kind).map(|row| row["bytes"].as_i64().unwrap()).sum()
}

#[test]
#[ignore = "needs root: it makes a memory cgroup"]
fn the_page_of_a_container_with_three_processes_fits_into_a_terminal_of_80_by_24() {
    let group = Group::new("page");
    let file = Removed(format!("/dev/shm/lowtide-page-{}", std::process::id()).into());
    let cached = Removed(std::env::temp_dir().join(format!("lowtide-page-{}", std::process::id())));
    let scripts = [
        format!("head -c 16M /dev/zero > {}", file.0.display()),
        format!("head -c 16M /dev/zero > {} && exec 9< {0}", cached.0.display()),
        "x=$(head -c 8M /dev/zero | tr '\\0' x)".to_owned(),
    ];
    let subjects: Vec<Subject> = scripts.iter().map(|script| group.run(script)).collect();
    let page = |words: &[&str]| {
        let mut command = lowtide();
        command.env("COLUMNS", "80").args(["inspect", "--cgroup", &group.path]).args(words);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let usual = page(&[]);
    assert!(usual.lines().count() <= 22, "{usual}");
    assert!(usual.lines().all(|line| line.chars().count() <= 80), "{usual}");
    for subject in &subjects {
        assert!(
            usual.lines().any(|line| line.trim().starts_with(&format!("{} ", subject.pid()))),
            "{usual}"
        );
    }
    let whole = page(&["--why"]);
    assert!(!whole.contains("  others  ") && !whole.contains(" more\n"), "{whole}");
}

#[test]
#[ignore = "needs root: it makes a memory cgroup"]
fn shared_memory_that_nobody_maps_stays_charged_after_its_writer() {
    let group = Group::new("shm");
    let file = Removed(format!("/dev/shm/lowtide-{}", std::process::id()).into());
    let script = format!("head -c 32M /dev/zero > {}", file.0.display());
    let subject = group.run(&script);
    let ledger = group.ledger();
    let (mapped, unmapped) = (bytes(&ledger, "shmem_mapped"), bytes(&ledger, "shmem_unmapped"));
    assert!((mapped + unmapped - 32 * MIB).abs() < MIB && mapped < LIBRARIES, "{ledger:#}");
    let listed = ledger["files"].as_array().unwrap();
    let own = listed.iter().find(|found| found["path"] == file.0.to_str().unwrap()).unwrap();
    assert_eq!((&own["bytes"], &own["charged"]), (&(32 * MIB).into(), &true.into()), "{own:#}");
    drop(subject);
    until("the end of its process", || (group.ledger()["processes"] == 0).then_some(()));
    let page = inspect(&group.path, &[]);
    let text = String::from_utf8(page.stdout).unwrap();
    assert!(text.contains("shared memory that no process maps: "), "{text}");
    drop(file);
    let path = group.path.clone();
    drop(group);
    let output = inspect(&path, &[]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("it may have been removed"), "{}", stderr(&output));
}

#[test]
#[ignore = "needs root: it makes a memory cgroup"]
fn the_files_of_other_groups_are_not_listed() {
    let (group, other) = (Group::new("own"), Group::new("other"));
    let file = Removed(format!("/dev/shm/lowtide-o-{}", std::process::id()).into());
    let _writer = other.run(&format!("head -c 8M /dev/zero > {}", file.0.display()));
    let reader = group.run(&format!("exec 3< {}", file.0.display()));
    let ledger = group.ledger();
    let path = file.0.to_str().unwrap();
    let listed = ledger["files"].as_array().unwrap();
    assert!(listed.iter().all(|found| found["path"] != path), "{ledger:#}");
    // A process stands for its group.
    let output = inspect(&reader.pid().to_string(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&group.path), "{text}");
}

#[test]
#[ignore = "needs root: it makes a memory cgroup"]
fn the_lowest_limit_of_a_group_and_its_parents_is_shown() {
    let group = Group::new("limit");
    group.set_limit(64 * MIB);
    let _subject = group.run("a=$(head -c 8M /dev/zero | tr '\\0' a)");
    let ledger = group.ledger();
    assert_eq!(ledger["limit_bytes"], 64 * MIB, "{ledger:#}");
    assert_eq!(ledger["limits"][0]["path"], group.path.as_str(), "{ledger:#}");
    // The kernel adds up its counts every two seconds.
    until("the memory of the process", || (bytes(&group.ledger(), "anon") > 8 * MIB).then_some(()));
    let anon = &group.ledger()["anon"];
    let allocated = by_owner(anon).find(|(owner, _)| *owner == "allocated").unwrap().1;
    assert!((allocated - 8 * MIB).abs() < MIB, "{anon:#}");
    assert!(anon["other_bytes"].as_i64().unwrap().abs() < MIB, "{anon:#}");
}

#[test]
#[ignore = "needs root: it makes a memory cgroup"]
fn the_page_cache_of_open_and_closed_files_is_told_apart() {
    let group = Group::new("cache");
    let [open, closed] = ["open", "closed"].map(|name| {
        let name = format!("lowtide-{name}-{}", std::process::id());
        Removed(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    });
    // For writing only, as a log is.
    let script = format!(
        "head -c 16M /dev/zero > {} && exec 3>> {} && head -c 8M /dev/zero >&3 && mkfifo {2} && \
         exec 4<> {2} && head -c 60000 /dev/zero >&4",
        closed.0.display(),
        open.0.display(),
        closed.0.with_extension("pipe").display()
    );
    let _pipe = Removed(closed.0.with_extension("pipe"));
    let _subject = group.run(&script);
    let cached = || {
        let cache = group.ledger()["page_cache"].clone();
        let of = |name: &str| cache[name].as_i64().unwrap();
        let is_near = |bytes: i64, mib: i64| (bytes - mib * MIB).abs() < 2 * MIB;
        let is_divided = is_near(of("open_bytes"), 8) && is_near(of("closed_bytes"), 16);
        is_divided.then_some(cache)
    };
    let cache = until("both files in the page cache", cached);
    let file = &cache["files"][0];
    assert_eq!(file["path"], open.0.to_str().unwrap(), "{cache:#}");
    assert_eq!(
        (&file["cached_bytes"], &file["charged_bytes"]),
        (&(8 * MIB).into(), &(8 * MIB).into())
    );
    let ledger = group.ledger();
    let holders = ledger["holders"].as_array().unwrap();
    let pipe = holders.iter().find(|holder| holder["part"] == "pipes").unwrap();
    assert_eq!(pipe["bytes"], 60_000, "{ledger:#}");
}

#[test]
#[ignore = "needs root: it makes a memory cgroup"]
fn the_watch_of_a_cgroup_shows_which_row_grows_until_the_group_is_removed() {
    let group = Group::new("watch");
    let file = Removed(format!("/dev/shm/lowtide-w-{}", std::process::id()).into());
    let script = "(while :; do head -c 1M /dev/zero >> \"$1\"; sleep 0.05; done) & writer=$!";
    let subject = group.run(&format!("set -- {}; {script}", file.0.display()));
    let mut watch = lowtide();
    watch.args(["watch", "--json", "--interval", "100ms", "--cgroup", &group.path]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let readings = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut readings = readings.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let grown = readings.by_ref().inspect(hold_charge).find(|reading| {
        let change =
            |row: &Value| row["bytes"][1].as_i64().unwrap() - row["bytes"][0].as_i64().unwrap();
        let Some(growth) = reading["growth"].as_object() else { return false };
        let rows = growth["by"].as_array().unwrap();
        let charged = change(&serde_json::json!({ "bytes": growth["charged_bytes"] }));
        assert_eq!(rows.iter().map(change).sum::<i64>(), charged, "{reading:#}");
        rows[0]["kind"] == "shmem_unmapped" && change(&rows[0]) > 8 * MIB
    });
    let grown = grown.expect("growth of the row of shared memory");
    assert_eq!(grown["path"], group.path.as_str(), "{grown:#}");
    let two = ["watch", "--looks", "2", "--interval", "100ms", "--cgroup", &group.path];
    let output = lowtide().args(two).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("too few readings to know whether it grows"), "{text}");
    // The shell starts the writer again and again.
    until("the end of its processes", || {
        let pids = std::fs::read_to_string(group.directory.join("cgroup.procs")).unwrap();
        pids.lines().for_each(|pid| drop(Command::new("kill").args(["-KILL", pid]).output()));
        pids.is_empty().then_some(())
    });
    drop((subject, file, group));
    readings.for_each(drop);
    let output = watch.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("it may have been removed"), "{}", stderr(&output));
}

#[test]
fn a_cgroup_that_does_not_exist_is_gone() {
    for verb in ["inspect", "watch"] {
        let output = lowtide().args([verb, "--cgroup", "/lowtide-no-such-group"]).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    }
}

#[test]
fn what_names_no_cgroup_is_a_usage_error_and_a_process_that_has_ended_is_gone() {
    for (word, code, message) in [
        ("docker", 2, "starting with /, or a PID"),
        ("4294967295", 4, "there is no process 4294967295"),
    ] {
        let output = inspect(word, &[]);
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{word}: {stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
}

#[test]
#[ignore = "needs root: it makes a memory cgroup, and a cgroup namespace"]
fn in_a_cgroup_namespace_of_its_own_the_groups_of_others_are_read_where_the_host_s_are_mounted() {
    let (own, other) = (Group::new("namespace"), Group::new("beside"));
    own.set_limit(512 * MIB);
    other.set_limit(64 * MIB);
    let subject = other.run("a=$(head -c 8M /dev/zero | tr '\\0' a)");
    // The host's hierarchy stays mounted, as in a container that mounts /sys/fs/cgroup.
    let inside = |words: &str| {
        let (procs, lowtide) = (own.directory.join("cgroup.procs"), env!("CARGO_BIN_EXE_lowtide"));
        let script = format!("echo $$ > {} && exec unshare -C {lowtide} {words}", procs.display());
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words}: {}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap()
    };
    let relative = format!("/..{}", other.path);
    let pid = subject.pid().to_string();
    for name in [pid.as_str(), relative.as_str(), other.directory.to_str().unwrap()] {
        let ledger = inside(&format!("inspect --json --cgroup {name}"))["cgroup"].clone();
        assert_eq!((&ledger["path"], &ledger["processes"]), (&relative.as_str().into(), &1.into()));
        assert_eq!(ledger["limits"][0]["path"], relative.as_str(), "{ledger:#}");
        assert_eq!(ledger["limit_bytes"], 64 * MIB, "{ledger:#}");
    }
    // lowtide's own group is the root of the namespace, and that of the host is above it.
    let ledger = inside("inspect --json --cgroup /")["cgroup"].clone();
    assert_eq!((&ledger["limit_bytes"], &ledger["path"]), (&(512 * MIB).into(), &"/".into()));
    let top = inside(&format!("top --once --json --by cgroup --cgroup {relative}"));
    assert_eq!(top["groups"][0]["charge"]["limit_bytes"], 64 * MIB, "{top:#}");
}

#[test]
#[ignore = "needs root: it makes a memory cgroup"]
fn the_charge_of_a_cgroup_is_in_the_table_of_top_and_in_the_metrics() {
    let group = Group::new("fleet");
    group.set_limit(256 * MIB);
    let file = Removed(format!("/dev/shm/lowtide-f-{}", std::process::id()).into());
    let _subject = group.run(&format!("head -c 32M /dev/zero > {}", file.0.display()));
    let words = ["top", "--once", "--json", "--by", "cgroup", "--cgroup", &group.path];
    let output = lowtide().args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let top: Value = serde_json::from_slice(&output.stdout).unwrap();
    hold_top(&top);
    let found = &top["groups"][0];
    let charge = &found["charge"];
    assert!((bytes(charge, "shmem_unmapped") - 32 * MIB).abs() < LIBRARIES, "{top:#}");
    assert_eq!(charge["limit_bytes"], 256 * MIB, "{top:#}");
    assert!(found["label"].as_str().unwrap().contains("(sh -c"), "{top:#}");
    let exporter = Exporter::on_any_port(&["--group-by", "cgroup", "--cgroup", &group.path]);
    let metrics = until("the charge", || {
        let text = exporter.get("/metrics", "");
        text.contains("lowtide_cgroup_bytes{").then_some(text)
    });
    let of_kind = |kind: &str| {
        let series =
            format!("lowtide_cgroup_bytes{{groupname=\"{}\",kind=\"{kind}\"}} ", group.path);
        let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
        value.unwrap_or_else(|| panic!("{metrics}")).parse::<f64>().unwrap()
    };
    assert!((of_kind("shmem_unmapped") - (32 * MIB) as f64).abs() < LIBRARIES as f64, "{metrics}");
    let limit = format!("lowtide_cgroup_limit_bytes{{groupname=\"{}\"}} {}", group.path, 256 * MIB);
    assert!(metrics.contains(&limit), "{metrics}");
}
