//! Real programs. These tests require more than Rust and a C compiler, and run in CI.

use std::process::Command;

use serde_json::Value;

use super::{Subject, adds_up, bytes, inspect, object, plain};

/// Returns the name of its allocator, and the names of its runtimes.
fn who(found: &Value) -> (String, Vec<String>) {
    let name = found["allocator"]["name"].as_str().unwrap_or("none").to_owned();
    let runtimes = found["runtimes"].as_array().unwrap();
    (name, runtimes.iter().map(|r| r["name"].as_str().unwrap().to_owned()).collect())
}

fn close_to_the_kernel(found: &Value) {
    let (rss, kernel) = (found["rss_bytes"].as_f64().unwrap(), found["kernel_rss_bytes"].as_f64());
    assert!((rss / kernel.unwrap() - 1.0).abs() < 0.01, "{found:#}");
}

#[test]
#[ignore = "needs python3"]
fn python_and_its_runtime_memory_are_identified() {
    let program = "import sys\n\
        kept = [{'i': i, 's': 'x' * (i % 300)} for i in range(200000)]\n\
        print('ready', flush=True); sys.stdin.read()";
    let found = Subject::start(plain("python3").args(["-c", program])).inspect();
    assert_eq!(who(&found), ("glibc".to_owned(), vec!["CPython".to_owned()]));
    assert_eq!(found["verdict"]["kind"], "runtime", "{found:#}");
    assert_eq!(found["rss_bytes"], found["kernel_rss_bytes"]);
    assert!(bytes(&found, "runtime") > 30 << 20, "{found:#}");
}

#[test]
#[ignore = "needs node"]
fn node_and_its_runtime_memory_are_identified() {
    let program = "const kept = []; for (let i = 0; i < 300000; i++) kept.push({i, s: 'x' + i});\
        console.log('ready'); process.stdin.on('data', () => kept.length); process.stdin.resume();";
    let found = Subject::start(plain("node").args(["-e", program])).inspect();
    assert_eq!(who(&found), ("glibc".to_owned(), vec!["Node.js".to_owned()]));
    close_to_the_kernel(&found);
    assert!(bytes(&found, "runtime") > 10 << 20, "{found:#}");
}

#[test]
#[ignore = "needs python3, node and ruby"]
fn the_pages_of_runtimes_fit_into_a_terminal_of_80_by_24() {
    let python = "import sys\nkept = [str(i) * 20 for i in range(600000)][::5000]\n\
        print('ready', flush=True); sys.stdin.read()";
    let node = "let all = []; for (let i = 0; i < 300000; i++) all.push({i, s: 'x' + i});\
        const kept = all.filter((_, i) => i % 100 == 0); all = null; console.log('ready');\
        process.stdin.on('data', () => kept.length); process.stdin.resume();";
    let ruby = "all = (0...400000).map { |i| \"string number #{i}\" * 3 }\n\
        kept = all.each_slice(500).map(&:first); all = nil; GC.start\n\
        puts 'ready'; $stdout.flush; $stdin.read; kept.size";
    for (program, flag, code) in
        [("python3", "-c", python), ("node", "-e", node), ("ruby", "-e", ruby)]
    {
        let subject = Subject::start(plain(program).args([flag, code]));
        let pid = subject.pid().to_string();
        let output =
            crate::support::lowtide().env("COLUMNS", "80").args(["inspect", &pid]).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(text.lines().count() <= 22, "{text}");
        // A command to paste is not wrapped.
        let page = &text[..text.find("next: ").unwrap()];
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}

#[test]
#[ignore = "needs redis-server, linked with jemalloc as Debian does"]
fn redis_and_its_jemalloc_are_identified() {
    let port = crate::support::free_port().to_string();
    let redis = Subject::silent(plain("redis-server").args(["--port", &port, "--save", ""]));
    let fill = ["-p", &port, "debug", "populate", "100000", "k", "500"];
    let enabled = ["-p", &port, "ping"];
    let ask = |words: &[&str]| Command::new("redis-cli").args(words).output().unwrap().stdout;
    crate::support::until("redis", || (ask(&enabled) == b"PONG\n").then_some(()));
    let _ = ask(&fill);
    let found = redis.inspect();
    assert_eq!(who(&found), ("jemalloc".to_owned(), Vec::new()));
    assert_eq!(found["allocator"]["linkage"], "dynamic");
    close_to_the_kernel(&found);
}

#[test]
#[ignore = "needs go"]
fn go_and_its_runtime_memory_are_identified() {
    let home = tempfile::tempdir().unwrap();
    let source = "package main\nimport (\"fmt\"; \"os\")\n\
        var kept [][]byte\n\
        func main() { for i := 0; i < 60000; i++ { b := make([]byte, 1000); b[0] = 1; kept = append(kept, b) }\n\
        fmt.Println(\"ready\"); os.Stdin.Read(make([]byte, 1)); fmt.Println(len(kept)) }\n";
    std::fs::write(home.path().join("main.go"), source).unwrap();
    let built = Command::new("go")
        .args(["build", "-o", "program", "main.go"])
        .current_dir(home.path())
        .env("GOCACHE", home.path().join("cache"))
        .env("GO111MODULE", "off")
        .status();
    assert!(built.expect("go (Debian: golang-go)").success());
    let found = Subject::start(&mut Command::new(home.path().join("program"))).inspect();
    assert_eq!(who(&found), ("none".to_owned(), vec!["Go".to_owned()]));
    assert_eq!(found["verdict"]["kind"], "runtime", "{found:#}");
    close_to_the_kernel(&found);
    assert!(bytes(&found, "runtime") > 50 << 20, "{found:#}");
}

#[test]
#[ignore = "needs java (Debian: default-jre-headless)"]
fn java_and_its_runtime_memory_are_identified() {
    // The collectors differ: ZGC keeps its heap in a memory file.
    for collector in ["-XX:+UseSerialGC", "-XX:+UseZGC"] {
        java_is_reported(collector);
    }
}

fn java_is_reported(collector: &str) {
    // A program that every Java includes. It prints nothing, and waits on a port that the system
    // chooses.
    let words = [collector, "-Xms64m", "-XX:+AlwaysPreTouch", "sun.rmi.registry.RegistryImpl", "0"];
    let java = Subject::silent(plain("java").args(words));
    let found = crate::support::until("the virtual machine", || {
        let found = object(&inspect(&[], java.pid()));
        let is_up =
            found["runtimes"][0]["name"] == "HotSpot" && bytes(&found, "runtime") > 63 << 20;
        // While it starts, some of its memory is newer than the reading of it.
        let is_up = is_up && found["verdict"]["kind"] != "inconclusive";
        is_up.then_some(found)
    });
    adds_up(&found);
    let (allocator, runtimes) = who(&found);
    assert_eq!((allocator.as_str(), runtimes), ("glibc", vec!["HotSpot".to_owned()]));
}

#[test]
#[ignore = "needs java (Debian: default-jre-headless)"]
fn the_java_heap_is_split_into_used_after_the_last_gc_and_free() {
    const USED: u64 = 60_000_000;
    const HEAP: u64 = 128 << 20;
    // It drops all memory that it filled except 60 MB, and collects.
    let program = "public class Hold { static byte[][] kept = new byte[600][]; \
        public static void main(String[] a) throws Exception { \
        for (int round = 0; round < 5; round++) \
        for (int i = 0; i < kept.length; i++) kept[i] = new byte[100000]; \
        System.gc(); System.out.println(\"ready\"); System.in.read(); } }";
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("Hold.java");
    std::fs::write(&source, program).unwrap();
    for collector in ["-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:+UseG1GC"] {
        let words = [collector, "-Xms128m", "-Xmx128m", "-XX:+AlwaysPreTouch"];
        let found = Subject::start(plain("java").args(words).arg(&source)).inspect();
        adds_up(&found);
        let of = |state: &str| -> u64 {
            let rows = found["ledger"].as_array().unwrap().iter();
            let mut rows = rows.filter(|r| r["manager"] == "hotspot" && r["state"] == state);
            let row = rows.next().unwrap_or_else(|| panic!("{collector}: {found:#}"));
            assert_eq!(
                (&row["owner"], &row["estimated"]),
                (&Value::from("runtime"), &Value::from(true))
            );
            row["bytes"].as_u64().unwrap()
        };
        let allocated = of("allocated");
        // The compiler of the source runs in this program, and has objects of its own.
        assert!((USED..USED + (30 << 20)).contains(&allocated), "{collector}: {allocated}");
        // A part of it is mapped from a file.
        let heap = allocated + of("free");
        assert!((HEAP - (8 << 20)..=HEAP).contains(&heap), "{collector}: {heap}");
    }
}
