//! The runtimes of real programs, which `.ci/run` installs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use lowtide_model::ledger::WalkedRuntime;
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_probe::detect::AreaOwner;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::target::Target;
use lowtide_testing::Running;

use crate::support::{Found, Subject};

/// A program that ends with its input, like the other subjects.
const PYTHON: &str = "import sys\n\
    blocks = [[i] for i in range(300000)]\n\
    print('%x' % id(blocks[150000]), flush=True)\n\
    sys.stdin.read()";

fn owned(found: &Found, owner: &AreaOwner) -> u64 {
    let of_owner = found.areas.iter().filter(|area| area.owner == *owner);
    of_owner.map(|area| area.range.end - area.range.start).sum()
}

fn first_number(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text).into_owned();
    let begin = text.find(|c: char| c.is_ascii_digit()).expect(&text);
    text[begin..].chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect()
}

#[test]
#[ignore = "needs python3"]
fn python_and_its_arenas_are_recognised() {
    let version = Command::new("python3").arg("--version").output().expect("python3").stdout;
    let python = Subject::start(Command::new("python3").args(["-c", PYTHON]));
    let found = python.detect();
    let version = first_number(&version);
    let [("CPython", Some(message))] = found.runtimes()[..] else {
        panic!("{:?}", found.runtimes())
    };
    assert!(version.starts_with(message), "{version} {message}");
    assert_eq!(found.allocator().0, "glibc");
    let area = found.area_of(python.address()).expect("the object has an owner");
    assert_eq!((&area.owner, area.estimated), (&AreaOwner::Runtime(RuntimeKind::Python), false));

    let mut command = Command::new("python3");
    let python = Subject::start(command.args(["-c", PYTHON]).env("PYTHONMALLOC", "malloc"));
    assert!(python.detect().areas.is_empty());
}

#[test]
#[ignore = "needs node"]
fn node_and_the_pages_of_v8_are_recognised() {
    let program = "let a = []; for (let i = 0; i < 500000; i++) a.push({ i });\
        console.log(process.memoryUsage().heapTotal.toString(16));\
        process.stdin.on('data', () => a.length).on('end', () => process.exit());";
    let node = Subject::start(Command::new("node").args(["-e", program]));
    let found = node.detect();
    let version = Command::new("node").arg("--version").output().expect("node").stdout;
    let version = first_number(&version);
    assert_eq!(found.runtimes(), [("Node.js", Some(version.as_str()))]);
    assert_eq!(found.allocator().0, "glibc");
    let heap = node.address();
    assert!(owned(&found, &AreaOwner::Runtime(RuntimeKind::Node)) >= heap, "{heap}");
}

const GO: &str = "package main\n\
    import (\"fmt\"; \"os\")\n\
    var blocks [][]byte\n\
    func main() {\n\
      for i := 0; i < 20000; i++ { blocks = append(blocks, make([]byte, 4096)); blocks[i][0] = 1 }\n\
      fmt.Printf(\"%p\\n\", &blocks[10000][0])\n\
      os.Stdin.Read(make([]byte, 1))\n\
    }\n";

fn build_go(home: &Path, source: &str, arguments: &[&str]) -> Subject {
    std::fs::write(home.join("subject.go"), source).unwrap();
    let status = Command::new("go")
        .arg("build")
        .args(arguments)
        .args(["-o", "subject", "subject.go"])
        .current_dir(home)
        .env("GOCACHE", home.join("cache"))
        .status();
    assert!(status.expect("go (Debian: golang-go)").success());
    Subject::start(&mut Command::new(home.join("subject")))
}

#[test]
#[ignore = "needs go (Debian: golang-go)"]
fn go_is_recognised_with_and_without_cgo() {
    let home = tempfile::tempdir().unwrap();
    let version = Command::new("go").arg("version").output().expect("go").stdout;
    let version = first_number(&version);
    let with_c = GO.replace("import (", "import \"C\"\nimport (");
    for (source, arguments, has_malloc) in
        [(GO, &["-ldflags=-s -w"][..], false), (&with_c, &[], true)]
    {
        let go = build_go(home.path(), source, arguments);
        let found = go.detect();
        assert_eq!(found.runtimes(), [("Go", Some(version.as_str()))]);
        assert_eq!(found.detected.malloc.is_some(), has_malloc);
        assert_eq!(found.detected.own, None);
        let area = found.area_of(go.address()).expect("the block has an owner");
        assert_eq!(area.owner, AreaOwner::Runtime(RuntimeKind::Go));
    }
}

#[test]
#[ignore = "needs java (Debian: default-jre-headless)"]
fn the_java_virtual_machine_is_recognised() {
    // A program that is part of every Java, prints nothing, and waits on a port that the system
    // chooses.
    let mut command = Command::new("java");
    let java = Subject::start_silent(command.args(["sun.rmi.registry.RegistryImpl", "0"]));
    let owner = AreaOwner::Runtime(RuntimeKind::HotSpot);
    let found = java.recognise_when(|found| owned(found, &owner) >= 8 << 20 && found.stacks > 8);
    let [("HotSpot", Some(version))] = found.runtimes()[..] else {
        panic!("{:?}", found.runtimes())
    };
    let message = Command::new("java").arg("-version").output().expect("java").stderr;
    assert!(version.starts_with(&first_number(&message)), "{version}");
    assert_eq!(found.allocator().0, "glibc");
}

#[test]
#[ignore = "needs node"]
fn the_spaces_of_v8_have_the_sizes_that_node_reports() {
    // It does nothing after it has printed, so that its heap stays as it is.
    let program = "const v8 = require('v8'), fs = require('fs');\
        let all = []; for (let i = 0; i < 100000; i++) all.push({ i, text: 'x' + i });\
        globalThis.kept = all.filter((one, i) => i % 10 == 0); all = null;\
        const of = s => [s.space_name, s.space_size];\
        const line = () => JSON.stringify(v8.getHeapSpaceStatistics().map(of)) + '\\n';\
        const one = Buffer.alloc(1); line(); fs.writeSync(1, ''); fs.writeSync(1, line());\
        fs.readSync(0, one);";
    let mut node = Command::new("node");
    node.args(["-e", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut node = Running::from(node.spawn().expect("node"));
    let mut line = String::new();
    BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let sizes: Vec<(String, u64)> = serde_json::from_str(&line).unwrap();
    let target = Target::open(node.id()).unwrap();
    let found = Inspector::default().inspect(&target).unwrap();
    let [heap] = &found.engines[..] else { panic!("{:?}", found.notes) };
    for (name, size) in sizes.iter().filter(|(name, _)| name != "read_only_space") {
        assert_eq!(heap.sum_of(name, |space| space.committed_bytes), *size, "{name}: {line}");
    }
    let rows = found.ledger.rows().iter().filter(|row| row.manager == Some(WalkedRuntime::V8));
    let spaces: u64 =
        heap.spaces.iter().map(|space| space.allocated_bytes + space.free_bytes).sum();
    assert_eq!(rows.map(|row| row.bytes).sum::<u64>(), spaces);
}
