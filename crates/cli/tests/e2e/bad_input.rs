//! Bad input: lowtide prints a sentence, exits with the right code, loses no record, leaves no
//! process.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::{free_port, lowtide, processes_with, study, subject, unique_seconds};

/// Runs lowtide with `--json`. Returns the exit code and the error object.
fn error(arguments: &[&str]) -> (i32, Value) {
    let output = lowtide().arg("--json").args(arguments).output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stdout)));
    assert_eq!(object["schema"], "lowtide.error/1", "{object}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("panicked") && !text.contains("RUST_BACKTRACE"), "{text}");
    (output.status.code().unwrap(), object)
}

fn usage_error(arguments: &[&str], part: &str) {
    let (code, object) = error(arguments);
    let message = object["message"].as_str().unwrap();
    assert_eq!((code, &object["code"]), (2, &"usage".into()), "{object}");
    assert!(message.contains(part), "`{message}` does not say `{part}`");
}

#[test]
fn invalid_arguments_are_rejected_before_anything_starts() {
    usage_error(&["study", "-a", "jmalloc", "--", "true"], "the known ones are glibc, jemalloc");
    usage_error(&["study", "-a", "x=/no/such.so", "--", "true"], "/no/such.so cannot be preloaded");
    usage_error(
        &["study", "-a", "x=/etc/passwd", "--", "true"],
        "not a readable program or library",
    );
    usage_error(&["study", "--", "no-such-command"], "there is no command `no-such-command`");
    usage_error(&["study"], "no command is given");
    usage_error(&["study", "-t", "glibc/arenamax", "--", "true"], "glibc has trim_threshold");
    usage_error(&["study", "-p", "sometimes", "--", "true"], "there is no policy `sometimes`");
    usage_error(&["study", "--settle", "10", "--", "true"], "`10` has no unit");
    usage_error(&["study", "--ready", "tcp:80", "--", "true"], "HOST:PORT");
    usage_error(&["study", "--fail-on", "settled>1", "--", "true"], "no metric `settled`");
    usage_error(&["study", "--no-such-flag"], "unexpected argument");
    usage_error(&["study", "/no/such/file.toml"], "/no/such/file.toml: No such file");
    usage_error(&["man", "fly"], "there is no verb `fly`");
    usage_error(&["study", "--repeat", "4294967295", "--", "true"], "from 1 to 10000");
    usage_error(
        &["study", "--load", "true", "--settle", "15m", "--", "true"],
        "a trial is ended after 10 min 0 s, but its pauses alone take 15 min 1 s",
    );
    usage_error(
        &["study", "-a", "glibc", "-o", "/etc/passwd", "--", "true"],
        "not an empty directory",
    );
}

#[test]
fn an_unknown_key_in_a_study_file_is_reported_with_line_and_column() {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    fs::write(file.path(), "command = [\"true\"]\n\nrepeats = 3\n").unwrap();
    let path = file.path().to_str().unwrap();
    usage_error(&["study", path], &format!("{path}:3:1: unknown field `repeats`"));
}

#[test]
fn a_study_file_with_its_own_treatments_rejects_allocator_options() {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let text = "command = ['true']\n[[treatment]]\nallocator = 'glibc'\nlabel = 'x'\n";
    fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let sentence = format!("{path} describes its treatments itself: choose among them with --only");
    usage_error(&["study", path, "-a", "jemalloc"], &sentence);
    usage_error(&["study", path, "-t", "glibc/arena_max"], &sentence);
}

#[test]
fn a_nonempty_output_directory_is_rejected_and_unchanged() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("mine"), "precious").unwrap();
    let path = home.path().to_str().unwrap();
    usage_error(&["study", "-a", "glibc", "-o", path, "--", "true"], "is not an empty directory");
    assert_eq!(fs::read_to_string(home.path().join("mine")).unwrap(), "precious");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}

/// Runs a study whose trials must fail. Returns the error message.
fn failure(arguments: &[&str]) -> String {
    let ran = study(arguments);
    assert_eq!(ran.code(), Some(1), "{}\n{}", ran.stdout(), ran.stderr());
    let trial = &ran.json()["trials"][0];
    assert_eq!(trial["outcome"], "failed");
    assert!(ran.record.join("report.html").exists());
    trial["failed_because"].as_str().unwrap().to_owned()
}

#[test]
fn the_output_of_a_command_that_exits_early_is_quoted() {
    let subject = subject(&[]);
    let said = failure(&["-a", "glibc", "--", &subject, "err:cannot open my database", "exit:3"]);
    assert!(
        said.starts_with("the command ended by itself with exit code 3; it printed:"),
        "{said}"
    );
    assert!(said.ends_with("cannot open my database"), "{said}");
    let said = failure(&["-a", "glibc", "--ready", "after:5s", "--", &subject, "crash"]);
    assert!(
        said.starts_with(
            "the command ended before it was ready with signal 11; it printed nothing"
        ),
        "{said}"
    );
}

#[test]
fn the_output_of_a_failed_load_is_quoted_and_the_subject_is_ended() {
    let (subject, seconds) = (subject(&[]), unique_seconds());
    let said = failure(&[
        "-a",
        "glibc",
        "--ready",
        "after:10ms",
        "--load",
        "echo no route >&2; exit 4",
        "--settle",
        "100ms",
        "--",
        &subject,
        &format!("daemon:{seconds}"),
        "ms:600000",
    ]);
    assert!(said.starts_with("the load failed with exit code 4; it printed:"), "{said}");
    assert!(said.ends_with("no route"), "{said}");
    assert_eq!(processes_with(&seconds), Vec::<u32>::new());
}

#[test]
fn the_message_of_a_load_that_fails_with_a_json_error_is_quoted() {
    let (subject, seconds) = (subject(&[]), unique_seconds());
    let error = r#"{"schema": "lowtide.error/1", "code": "failed", "message": "nobody answers"}"#;
    let load = format!("echo '{error}'; exit 1");
    let trial =
        ["-a", "glibc", "--ready", "after:10ms", "--settle", "100ms", "--load", &load, "--"];
    let said =
        failure(&[&trial[..], &[&subject, &format!("daemon:{seconds}"), "ms:600000"]].concat());
    assert_eq!(said, "the load failed with exit code 1; nobody answers");
}

#[test]
fn a_phase_that_is_never_reached_fails_the_trial() {
    let said = failure(&[
        "-a",
        "glibc",
        "--phase",
        "peak=log:^no such line$",
        "--",
        &subject(&[]),
        "ms:100",
    ]);
    assert!(said.starts_with("the phase `peak` never came: no line that the command"), "{said}");
    assert!(said.ends_with("matches ^no such line$; it printed nothing"), "{said}");
}

#[test]
fn a_script_without_a_shebang_gets_a_hint_to_name_its_interpreter() {
    let home = tempfile::tempdir().unwrap();
    let script = home.path().join("subject.sh");
    crate::support::copy_program("/bin/true", &script);
    fs::write(&script, "sleep 1\n").unwrap();
    let script = script.to_str().unwrap();
    let said = failure(&["-a", "glibc", "--", script]);
    assert!(said.contains(&format!("write that before it, as in `sh {script}`")), "{said}");
}

#[test]
fn the_load_is_ended_when_the_subject_ends() {
    let (subject, seconds) = (subject(&[]), unique_seconds());
    let said = failure(&[
        "-a",
        "glibc",
        "--ready",
        "after:10ms",
        "--load",
        // The subject crashes while the load runs, however long its start takes.
        &format!("kill -SEGV $LOWTIDE_SUBJECT_PID; sleep {seconds}"),
        "--",
        &subject,
        "ms:600000",
    ]);
    assert!(said.starts_with("the command ended during the load with signal 11"), "{said}");
    assert_eq!(processes_with(&seconds), Vec::<u32>::new());
}

#[test]
fn a_readiness_timeout_reports_the_check_and_its_last_error() {
    let (subject, port) = (subject(&[]), free_port());
    let said = failure(&[
        "-a",
        "glibc",
        "--ready",
        &format!("tcp:127.0.0.1:{port}"),
        "--settle",
        "0s",
        "--timeout",
        "10s",
        "--load",
        "true",
        "--",
        &subject,
        "say:starting up",
        "ms:600000",
    ]);
    assert!(said.starts_with("the command was not ready within 10.0 s (tcp:127.0.0.1:"), "{said}");
    assert!(said.contains("Connection refused") && said.ends_with("starting up"), "{said}");
}

#[test]
fn a_ready_port_that_is_in_use_is_reported_before_a_record_is_created() {
    let subject = subject(&[]);
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ready = format!("tcp:{}", other.local_addr().unwrap());
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("record").display().to_string();
    let words = ["-a", "glibc", "--ready", &ready, "--load", "true", "-o", &record, "--", &subject];
    let (code, object) = error(&[&["study"], &words[..], &["ms:100"]].concat());
    let message = object["message"].as_str().unwrap();
    assert_eq!(code, 1, "{object}");
    assert!(message.starts_with("another process listens at tcp:127.0.0.1:"), "{message}");
    assert!(!home.path().join("record").exists());
    // `--prepare` may end the process that answers, so each trial checks again.
    let said =
        failure(&[&["--prepare", "true"], &words[..6], &["--", &subject, "ms:100"]].concat());
    assert!(said.starts_with("another process listens at tcp:127.0.0.1:"), "{said}");
}

#[test]
fn missing_commands_are_reported_before_anything_starts() {
    for (flag, what) in
        [("--load", "the load"), ("--prepare", "--prepare"), ("--cleanup", "--cleanup")]
    {
        usage_error(
            &["study", "-a", "glibc", flag, "exec no-such-command -c 1", "--", "true"],
            &format!("there is no command `no-such-command`, with which {what} begins"),
        );
    }
}

#[test]
fn an_insufficient_open_file_limit_is_reported_before_anything_starts() {
    let limited = |words: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            "ulimit -n 512; exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_lowtide"),
            "--json",
        ]);
        let output = shell.args(words).output().unwrap();
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(3), "{object}");
        assert_eq!(object["code"], "not_permitted");
        object["message"].as_str().unwrap().to_owned()
    };
    let said = limited(&["study", "-a", "glibc", "--open-files", "3000", "--", "true"]);
    assert!(
        said.starts_with(
            "the study requires 3000 open files (the setting open-files), but at most 512 are"
        ),
        "{said}"
    );
    let load = "exec \"$LOWTIDE\" --json load tcp:127.0.0.1:9 -c 3000";
    let said = limited(&["study", "-a", "glibc", "--load", load, "--", "true"]);
    assert!(
        said.starts_with("the load: 3000 connections need 3024 open files, but at most 512 are"),
        "{said}"
    );
    assert!(said.contains("ulimit -Hn 3024"), "{said}");
}

#[test]
fn the_soft_limit_of_open_files_is_raised_to_the_requested_number() {
    let home = tempfile::tempdir().unwrap();
    let line = "ulimit -Sn 300; exec \"$0\" study --json -a glibc --repeat 1 --open-files 400 -o \"$1\" -- sh -c 'ulimit -Sn; sleep 1'";
    let record = home.path().join("record");
    let mut shell = Command::new("sh");
    shell.args(["-c", line, env!("CARGO_BIN_EXE_lowtide")]).arg(&record);
    let output = shell.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(fs::read_to_string(record.join("trials/001-glibc.log")).unwrap(), "400\n");
}

/// Runs a study file that must fail during or after its setup. Returns the exit code and the
/// message.
fn file_error(text: &str) -> (i32, String) {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("study.toml");
    fs::write(&file, text).unwrap();
    let record = home.path().join("record").display().to_string();
    let (code, object) = error(&["study", file.to_str().unwrap(), "-o", &record]);
    let begun = fs::read_dir(home.path().join("record/trials")).map_or(0, Iterator::count);
    assert_eq!(begun, 0, "no trial is begun");
    (code, object["message"].as_str().unwrap().to_owned())
}

#[test]
fn a_failed_setup_or_a_missing_command_is_reported_before_the_first_trial() {
    let subject = "command = [\"./made\"]\nallocator = \"glibc\"\n";
    let broken = "setup = \"echo 'error: expected expression' >&2; exit 101\"\n";
    let (code, said) = file_error(&format!("{subject}{broken}"));
    assert_eq!(code, 1);
    assert!(
        said.starts_with("the set-up of the study failed with exit code 101; it printed:"),
        "{said}"
    );
    assert!(said.contains("error: expected expression"), "{said}");
    assert!(said.contains("setup.log; no trial was started"), "{said}");
    let (code, said) = file_error(&format!("{subject}setup = \"true\"\n"));
    assert_eq!(code, 1);
    assert!(
        said.starts_with("the set-up succeeded, but did not create the command `./made`"),
        "{said}"
    );
    let other = "[[treatment]]\nallocator = \"own\"\nlabel = \"musl\"\ncommand = [\"./other\"]\n";
    let made = "setup = \"cp /bin/true made\"\n";
    let (_, said) = file_error(&format!("{subject}{made}{other}"));
    assert!(said.contains("did not create the command `./other`"), "{said}");
    let missing = "command = [\"true\"]\nallocator = \"glibc={study}/no-glibc\"\n";
    let (code, said) = file_error(missing);
    assert_eq!(code, 2);
    assert!(said.contains("no-glibc contains no usable glibc"), "{said}");
}

#[test]
fn a_trial_that_exceeds_its_timeout_is_ended() {
    let (subject, seconds) = (subject(&[]), unique_seconds());
    let said = failure(&[
        "-a",
        "glibc",
        "--timeout",
        "400ms",
        "--",
        &subject,
        &format!("daemon:{seconds}"),
        "ms:600000",
    ]);
    assert!(said.starts_with("the trial did not end within 400 ms: "), "{said}");
    assert_eq!(processes_with(&seconds), Vec::<u32>::new());
}

#[test]
fn a_failed_treatment_does_not_affect_the_others() {
    let home = tempfile::tempdir().unwrap();
    let line = "case \"$LD_PRELOAD\" in *jemalloc*) echo broken >&2; exit 9;; esac; sleep 1";
    let script = home.path().join("subject.sh");
    fs::write(&script, line).unwrap();
    let ran =
        study(&["-a", "glibc,jemalloc", "--repeat", "2", "--", "sh", script.to_str().unwrap()]);
    assert_eq!(ran.code(), Some(1));
    let json = ran.json();
    let outcomes: Vec<(&str, &str)> = json["trials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["treatment"]["allocator"].as_str().unwrap(), t["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(outcomes.len(), 4, "{outcomes:?}");
    assert!(outcomes.iter().all(|(a, o)| (*a == "glibc") == (*o == "done")), "{outcomes:?}");
    assert_eq!(json["treatments"][1]["standing"], "failed");
}

#[test]
fn a_write_error_of_the_record_ends_the_study_and_the_record_is_kept() {
    let (subject, seconds) = (subject(&[]), unique_seconds());
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("record");
    // No file may grow beyond 8 KiB, which has the same effect on lowtide as a full disk.
    let line = format!(
        "trap '' XFSZ; ulimit -f 16; exec {} study --json -a glibc --interval 5ms -o {} -- {subject} daemon:{seconds} ms:600000",
        env!("CARGO_BIN_EXE_lowtide"),
        record.display()
    );
    let cache = lowtide();
    let mut shell = Command::new("sh");
    for (name, value) in cache.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    let output = shell.args(["-c", &line]).output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let message = object["message"].as_str().unwrap();
    assert_eq!((output.status.code(), &object["code"]), (Some(1), &"failed".into()), "{object}");
    assert!(message.starts_with("the record could not be written: "), "{message}");
    assert!(message.contains("File too large"), "{message}");
    assert_eq!(object["next"], format!("lowtide report {}", record.display()));
    assert_eq!(processes_with(&seconds), Vec::<u32>::new());
    let report = lowtide().args(["--json", "report"]).arg(&record).output().unwrap();
    let study: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert!(study["trials"][0]["peak_bytes"].is_u64(), "{study}");
}

#[test]
#[ignore = "needs root, to mount a file system that is full"]
fn a_full_disk_ends_the_study_and_the_record_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(home.path());
    assert!(mount.status().unwrap().success());
    let record = home.path().join("record");
    let output = lowtide()
        .args(["--json", "study", "-a", "glibc", "--interval", "5ms", "-o"])
        .arg(&record)
        .args(["--", &subject(&[]), "ms:600000"])
        .output()
        .unwrap();
    let report = lowtide().args(["--json", "report"]).arg(&record).output().unwrap();
    let unmounted = Command::new("umount").arg(home.path()).status().unwrap();
    assert!(unmounted.success());
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(object["message"].as_str().unwrap().contains("No space left on device"), "{object}");
    let study: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert!(study["trials"][0]["peak_bytes"].is_u64(), "{study}");
}

#[test]
fn without_json_the_error_and_the_next_step_go_to_stderr() {
    let output = lowtide().args(["study"]).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.is_empty());
    assert!(
        reported.starts_with("lowtide: no command is given: write one after `--`"),
        "{reported}"
    );
    assert!(reported.contains("next: lowtide study --help"), "{reported}");
}

#[test]
fn an_argument_that_is_not_utf8_and_a_full_stdout_do_not_cause_a_panic() {
    use std::os::unix::ffi::OsStrExt;
    let word = std::ffi::OsStr::from_bytes(b"\xff");
    let output = lowtide().arg("man").arg(word).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let full = fs::File::create("/dev/full").unwrap();
    let output = lowtide().arg("man").stdout(full).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(reported.starts_with("lowtide: cannot write to stdout"), "{reported}");
}

#[test]
fn a_process_whose_name_is_not_utf8_is_sampled() {
    let home = tempfile::tempdir().unwrap();
    let script = home.path().join("subject.sh");
    let sleep = "p=\"$1/$(printf 'gr\\366\\337e')\"; cp \"$(command -v sleep)\" \"$p\"; \"$p\" 3";
    fs::write(&script, sleep).unwrap();
    let (script, place) = (script.to_str().unwrap(), home.path().to_str().unwrap());
    let ran = study(&["-a", "glibc", "--repeat", "1", "--", "sh", script, place]);
    let trials = ran.trials();
    let named = |line: &Value| line["kind"] == "process" && line["name"] == "gr\u{fffd}\u{fffd}e";
    assert!(ran.lines(&trials[0]).iter().any(named));
}

#[test]
fn a_subject_that_the_load_kills_fails_the_trial() {
    let subject = subject(&[]);
    for end in ["", "; exit 1"] {
        let killed = "kill -9 $P; while kill -0 $P 2>&-; do sleep 0.01; done";
        let load = format!("P=$LOWTIDE_SUBJECT_PID; {killed}{end}");
        let said = failure(&[
            "-a",
            "glibc",
            "--ready",
            "after:10ms",
            "--settle",
            "0s",
            "--load",
            &load,
            "--",
            &subject,
            "ms:600000",
        ]);
        assert!(said.starts_with("the command ended during the load with signal 9"), "{said}");
    }
}

#[test]
fn the_trial_fails_when_its_keeper_is_terminated_or_killed() {
    for signal in ["TERM", "KILL"] {
        let (subject, seconds) = (subject(&[]), unique_seconds());
        // The parent of the subject is its keeper.
        let kill = format!(
            "kill -{signal} $(sed 's/.*) . //' /proc/$LOWTIDE_SUBJECT_PID/stat | cut -d' ' -f1); sleep 60"
        );
        let said = failure(&[
            "-a",
            "glibc",
            "--ready",
            "after:10ms",
            "--load",
            &kill,
            "--",
            &subject,
            &format!("daemon:{seconds}"),
            "ms:600000",
        ]);
        assert!(said.starts_with("the command ended during the load"), "{signal}: {said}");
        if signal == "TERM" {
            assert_eq!(processes_with(&seconds), Vec::<u32>::new());
        } else {
            // Once the keeper is killed, no process stops a subject in a session of its own.
            for pid in processes_with(&seconds) {
                assert!(
                    Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success()
                );
            }
        }
    }
}
