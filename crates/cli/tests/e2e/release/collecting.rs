//! `lowtide release --collect`: the runtime collects before the release.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{release, stderr};
use crate::inspect::{Subject, object, plain};
use crate::schemas::hold_release;
use crate::support::until;

const MIB: u64 = 1 << 20;

/// Fills 200 MB, of which it keeps nothing. It prints a line for each line that it reads.
const BURST: &str = "public class Burst { public static void main(String[] a) throws Exception { \
    java.util.ArrayList<byte[]> all = new java.util.ArrayList<>(); \
    for (int i = 0; i < 20000; i++) all.add(new byte[10000]); \
    all = null; System.out.println(\"ready\"); \
    java.io.BufferedReader lines = new java.io.BufferedReader(new java.io.InputStreamReader(System.in)); \
    while (lines.readLine() != null) System.out.println(\"alive\"); } }";

/// A Java program with free memory in its heap.
struct Java {
    subject: Subject,
    _home: tempfile::TempDir,
}

impl Java {
    fn start(flags: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("Burst.java");
        std::fs::write(&source, BURST).unwrap();
        let mut java = plain("java");
        java.env_remove("JAVA_TOOL_OPTIONS").args(["-Xms16m", "-Xmx400m"]).args(flags);
        Self { subject: Subject::start(java.arg(&source)), _home: home }
    }

    /// Collects and releases. Returns the object that was printed, and the text on stderr.
    fn collect(&mut self, flags: &[&str], exit: i32) -> (Value, String) {
        let pid = self.subject.pid();
        let output = release(&[&["--collect"], flags].concat(), pid);
        let said = stderr(&output);
        let found = object(&output);
        assert_eq!(output.status.code(), Some(exit), "{found:#} {said}");
        hold_release(&found);
        // It was not ended, and printed nothing: no stacks of threads.
        self.subject.say("alive?");
        assert_eq!(self.subject.line(), "alive", "{said}");
        let file = format!("/tmp/.attach_pid{pid}");
        assert!(!std::path::Path::new(&file).exists(), "{file}");
        (found, said)
    }
}

#[test]
fn a_process_without_hotspot_is_not_asked_to_collect() {
    let subject = Subject::of(&["blocks:20"]);
    let output = release(&["--collect"], subject.pid());
    let found = object(&output);
    assert_eq!(output.status.code(), Some(5), "{found}");
    hold_release(&found);
    assert_eq!(found["hazard"], "no_collection", "{found}");
    let said = stderr(&output);
    assert!(said.contains("only HotSpot (Java) can be asked"), "{said}");
    assert!(said.contains("next: ") && !said.contains("release --collect"), "{said}");
}

#[test]
#[ignore = "needs java (Debian: default-jre-headless)"]
fn hotspot_collects_under_every_collector_and_returns_what_the_collector_returns() {
    let collectors = [("Serial", false), ("Parallel", false), ("G1", true), ("Shenandoah", true)];
    for (collector, returns) in collectors {
        let flag = format!("-XX:+Use{collector}GC");
        let mut java = Java::start(&[&flag]);
        let (dry, _) = java.collect(&["--dry-run"], 0);
        let collected = &dry["collected"];
        assert_eq!(collected["by"], serde_json::json!(["GC.run"]), "{dry:#}");
        assert!(collected["after_bytes"].is_null() && collected["pause_s"].is_null(), "{dry:#}");
        let (found, said) = java.collect(&[], 0);
        assert!(said.contains(&format!("HotSpot ({collector}) runs GC.run")), "{said}");
        let collected = &found["collected"];
        let bytes = |key: &str| collected[key].as_u64().unwrap();
        if returns {
            assert!(bytes("after_bytes") + 50 * MIB < bytes("before_bytes"), "{flag}: {found:#}");
        }
        assert!(collected["pause_s"].as_f64().unwrap() > 0.0, "{flag}: {found:#}");
        let used = |key: &str| collected[key]["used_bytes"].as_u64().unwrap();
        assert!(used("heap_after") < 50 * MIB, "{flag}: {found:#}");
    }
}

#[test]
#[ignore = "needs java (Debian: default-jre-headless)"]
fn a_hotspot_that_the_signal_would_harm_gets_none() {
    let refused: [(&[&str], &str); 4] = [
        (&["-Xrs"], "would end it"),
        (&["-XX:+DisableAttachMechanism"], "does not permit it"),
        (&["-XX:+DisableExplicitGC"], "ignores requests to collect"),
        (
            // It warns in the output of the program that its heap can grow.
            &["-XX:+UnlockExperimentalVMOptions", "-XX:+UseEpsilonGC", "-Xmx2g", "-Xlog:disable"],
            "its collector never collects",
        ),
    ];
    for (flags, why) in refused {
        let mut java = Java::start(flags);
        // With -Xrs, it has a socket from the start. Without it, only the signal is left.
        let _ = std::fs::remove_file(format!("/tmp/.java_pid{}", java.subject.pid()));
        let (found, said) = java.collect(&[], 5);
        assert_eq!(found["hazard"], "no_collection", "{flags:?}: {found}");
        assert!(said.contains(why), "{flags:?}: {said}");
        assert!(found["collected"].is_null(), "{flags:?}: {found}");
    }
}

#[test]
#[ignore = "needs java (Debian: default-jre-headless)"]
fn an_existing_socket_is_used_without_a_signal_and_without_performance_data() {
    let mut java = Java::start(&["-Xrs", "-XX:-UsePerfData"]);
    let (found, _) = java.collect(&[], 0);
    let collected = &found["collected"];
    assert!(collected["after_bytes"].is_u64(), "{found:#}");
    assert!(collected["pause_s"].is_null() && collected["heap_before"].is_null(), "{found:#}");
}

#[test]
#[ignore = "needs java (Debian: default-jre-headless)"]
fn a_stopped_hotspot_gets_no_signal_that_waits_for_it() {
    let mut java = Java::start(&[]);
    let pid = Pid::from_raw(i32::try_from(java.subject.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let status = format!("/proc/{}/status", java.subject.pid());
    until("the stop", || {
        std::fs::read_to_string(&status).unwrap().contains("(stopped)").then_some(())
    });
    let output = release(&["--collect"], java.subject.pid());
    assert_eq!(object(&output)["hazard"], "stopped", "{}", stderr(&output));
    kill_process(pid, Signal::CONT).unwrap();
    java.collect(&[], 0);
}
