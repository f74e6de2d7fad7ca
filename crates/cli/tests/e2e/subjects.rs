//! Real programs. These tests require more than Rust and a C compiler, and run in CI.

use serde_json::Value;

use crate::support::{number, study};

/// Returns the last `rss=KIB` that a subject printed, in bytes.
fn own_rss(log: &str) -> f64 {
    let line = log.lines().rev().find_map(|l| l.strip_prefix("rss=")).expect(log);
    line.trim().parse::<f64>().unwrap() * 1024.0
}

fn hold(ran: &crate::support::Ran) {
    for trial in ran.trials() {
        let (settled, kernel) = (number(&trial, "settled_bytes"), own_rss(&ran.log(&trial)));
        assert!(
            (settled / kernel - 1.0).abs() < 0.02,
            "settled {settled}, kernel {kernel}: {trial}"
        );
        assert_eq!(trial["allocator_active"], true, "{trial}");
    }
    let treatments = ran.json()["treatments"].as_array().unwrap().len();
    assert_eq!(treatments, 3);
}

#[test]
#[ignore = "needs python3"]
fn the_settled_memory_of_python_matches_the_kernel() {
    // An allocator returns memory for seconds after it was freed. The settled memory is a median of
    // 5 s: the program ends once its memory has been steady for longer.
    let program = "import time\n\
        d = [{'i': i, 's': 'x' * (i % 900)} for i in range(100000)]\n\
        time.sleep(0.5); del d\n\
        def rss(): return int([l for l in open('/proc/self/status') if l.startswith('VmRSS')][0].split()[1])\n\
        steady, since = rss(), time.monotonic()\n\
        while time.monotonic() - since < 6:\n\
        \x20 time.sleep(0.1); now = rss()\n\
        \x20 if abs(now / steady - 1) > 0.005: steady, since = now, time.monotonic()\n\
        print(f'rss={rss()}', flush=True)\n\
        time.sleep(0.7)";
    hold(&study(&[
        "-a",
        "glibc,jemalloc,mimalloc",
        "--repeat",
        "1",
        "--settle",
        "10s",
        "--",
        "python3",
        "-c",
        program,
    ]));
}

#[test]
#[ignore = "needs node"]
fn the_settled_memory_of_node_matches_the_kernel() {
    let program = "let a = []; for (let i = 0; i < 300; i++) a.push(Buffer.alloc(200000, 1));\
        const rss = () => +/VmRSS:\\s+(\\d+)/.exec(require('fs').readFileSync('/proc/self/status', 'utf8'))[1];\
        setTimeout(() => { a = null; let steady = rss(), since = Date.now();\
          const timer = setInterval(() => { const now = rss();\
            if (Math.abs(now / steady - 1) > 0.005) { steady = now; since = Date.now(); }\
            if (Date.now() - since < 6000) return;\
            clearInterval(timer); console.log('rss=' + now); setTimeout(() => {}, 700); }, 100); }, 500);";
    hold(&study(&[
        "-a",
        "glibc,jemalloc,mimalloc",
        "--repeat",
        "1",
        "--settle",
        "10s",
        "--",
        "node",
        "-e",
        program,
    ]));
}

#[test]
#[ignore = "needs python3 with venv, and the package index"]
fn the_study_of_python_and_httpx_runs_with_few_contexts() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies/python-httpx.toml");
    let ran = study(&[file, "--set", "contexts=10", "--repeat", "1"]);
    let json: Value = ran.json();
    assert_eq!(ran.code(), Some(0), "{}", ran.stderr());
    for trial in json["trials"].as_array().unwrap() {
        assert_eq!(trial["allocator_active"], true, "{trial}");
        assert_eq!(trial["phases"][0]["name"], "load_end");
    }
}
