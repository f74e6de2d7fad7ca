//! Trials with real processes.

use crate::support::{
    fixture, free_port, number, processes_with, study, subject, unique_seconds, until,
};

#[test]
fn settled_memory_matches_the_kernel_at_the_same_moment() {
    let subject = subject(&[]);
    let ran = study(&[
        "-a",
        "glibc,jemalloc,mimalloc",
        "--repeat",
        "1",
        "--",
        &subject,
        "fill:64",
        "pin",
        "ms:1500",
        "free",
        "ms:5200",
        "rss",
        "ms:700",
    ]);
    for trial in ran.trials() {
        let log = ran.log(&trial);
        let kib: f64 = log.trim().strip_prefix("rss=").unwrap().parse().unwrap();
        let settled = number(&trial, "settled_bytes");
        let off = (settled / (kib * 1024.0) - 1.0).abs();
        assert!(off < 0.02, "{}: settled {settled}, the kernel says {kib} KiB", trial["treatment"]);
        assert_eq!(trial["allocator_active"], true, "{trial}");
        assert_eq!(trial["metric"], "rss");
        assert!(number(&trial, "peak_bytes") > 60.0 * 1048576.0);
        assert!(number(&trial, "minor_faults") > 10.0);
    }
}

#[test]
fn allocators_are_compared_by_what_pins_memory_when_it_has_settled() {
    let program = fixture("keeps", &["-O1", "-g", "-fno-inline"]);
    let ran = study(&["-a", "glibc,jemalloc", "--repeat", "1", "--", &program, "5"]);
    for trial in ran.trials() {
        let pins = &trial["pins"];
        let bytes = pins["pinned_bytes"].as_u64().unwrap_or(0);
        if trial["treatment"]["allocator"] == "glibc" {
            // The blocks that stay have another size than the burst.
            let first = &pins["groups"][0];
            assert_eq!(
                (&first["size_bytes"], &first["blocks"]),
                (&64.into(), &5000.into()),
                "{trial:#}"
            );
            assert!(bytes > 10 << 20, "{trial:#}");
        } else {
            assert!(bytes < 2 << 20, "{trial:#}");
        }
    }
}

#[test]
fn a_load_runs_in_rounds_and_gets_the_pid_of_the_subject() {
    let subject = subject(&[]);
    let port = free_port();
    let load = format!(
        "{subject} ask:{port}:24 && test -d /proc/$LOWTIDE_SUBJECT_PID && echo '{{\"schema\":\"lowtide.load/1\",\"rounds\":[{{\"round\":1,\"failed\":0,\"succeeded\":7,\"latency_s\":{{\"mean\":0.5}}}}]}}'"
    );
    let ran = study(&[
        "-a",
        "glibc",
        "--repeat",
        "1",
        "--warmup",
        "1",
        "--rounds",
        "2",
        "--pause",
        "300ms",
        "--settle",
        "600ms",
        "--interval",
        "20ms",
        "--ready",
        &format!("tcp:127.0.0.1:{port}"),
        "--load",
        &load,
        "--",
        &subject,
        &format!("serve:{port}"),
    ]);
    let trial = &ran.trials()[0];
    let rounds = trial["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        assert_eq!(round["load"]["succeeded"], 7, "{round}");
        assert!(number(round, "peak_bytes") > 20.0 * 1048576.0, "{round}");
    }
    assert_eq!(trial["exit_code"], serde_json::Value::Null, "lowtide has ended it");
    let marks: Vec<String> = ran
        .lines(trial)
        .iter()
        .filter(|l| l["kind"] == "mark")
        .map(|l| format!("{}{}", l["mark"].as_str().unwrap(), l["round"]))
        .collect();
    let expected = [
        "startnull",
        "readynull",
        "baselinenull",
        "load_begin1",
        "load_end1",
        "settled1",
        "load_begin2",
        "load_end2",
        "settled2",
        "stopnull",
    ];
    assert_eq!(marks, expected);
}

#[test]
fn a_process_tree_is_measured_by_pss_and_a_single_process_by_rss() {
    let subject = subject(&[]);
    let ran = study(&[
        "-a",
        "glibc",
        "--repeat",
        "1",
        "--interval",
        "50ms",
        "--",
        &subject,
        "fill:32",
        "fork:5",
        "ms:3000",
    ]);
    let trial = &ran.trials()[0];
    assert_eq!(trial["metric"], "pss");
    // Six processes share 32 MiB: RSS would count them six times.
    let settled = number(trial, "settled_bytes") / 1048576.0;
    assert!((32.0..60.0).contains(&settled), "{settled}");
    let most = ran.lines(trial).iter().filter_map(|l| l["processes"].as_u64()).max();
    assert_eq!(most, Some(6));
    let rss = ran.lines(trial).iter().filter_map(|l| l["rss_bytes"].as_u64()).max().unwrap();
    assert!(rss > 6 * (32 << 20), "{rss}");
}

#[test]
fn background_processes_are_tracked_and_ended() {
    let (subject, seconds) = (subject(&[]), unique_seconds());
    let ran = study(&[
        "-a",
        "glibc",
        "--repeat",
        "1",
        "--interval",
        "20ms",
        "--",
        &subject,
        &format!("daemon:{seconds}"),
        "ms:3000",
    ]);
    let trial = &ran.trials()[0];
    let followed = ran.lines(trial).iter().any(|l| {
        l["kind"] == "process"
            && l["command"].as_array().is_some_and(|c| c.contains(&seconds.clone().into()))
    });
    assert!(followed, "{:#?}", ran.lines(trial));
    assert_eq!(processes_with(&seconds), Vec::<u32>::new());
}

#[test]
fn phases_printed_by_the_subject_are_marked_and_load_end_ends_the_trial() {
    let subject = subject(&[]);
    let ran = study(&[
        "-a",
        "glibc",
        "--repeat",
        "1",
        "--phase",
        "load_end=log:^freed",
        "--phase",
        "full=log:^full",
        "--settle",
        "700ms",
        "--interval",
        "20ms",
        "--",
        &subject,
        "fill:16",
        "ms:1000",
        "say:full",
        "ms:1000",
        "free",
        "say:freed",
        "ms:600000",
    ]);
    let trial = &ran.trials()[0];
    let phases = trial["phases"].as_array().unwrap();
    assert_eq!((&phases[0]["name"], &phases[1]["name"]), (&"full".into(), &"load_end".into()));
    assert!(number(&phases[0], "bytes") > 15.0 * 1048576.0, "{phases:?}");
    assert!(trial["settled_bytes"].is_u64());
}

#[test]
fn the_prepare_and_cleanup_commands_get_the_trial_in_their_environment() {
    let subject = subject(&[]);
    let notes = tempfile::NamedTempFile::new().unwrap();
    let note = |what: &str| {
        format!(
            "echo {what} $LOWTIDE_TRIAL $LOWTIDE_TREATMENT $LOWTIDE_REPEAT >> {}",
            notes.path().display()
        )
    };
    let ran = study(&[
        "-a",
        "glibc",
        "-t",
        "glibc/arena_max=2",
        "--repeat",
        "1",
        "--prepare",
        &note("before"),
        "--cleanup",
        &note("after"),
        "--",
        &subject,
        "ms:1000",
    ]);
    assert_eq!(ran.trials().len(), 2);
    let mut reported: Vec<String> =
        std::fs::read_to_string(notes.path()).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(reported.len(), 4);
    assert!(
        reported[0].starts_with("before 1 ") && reported[1].starts_with("after 1 "),
        "{reported:?}"
    );
    reported.sort();
    assert!(reported[0].ends_with(" glibc 1") || reported[1].ends_with(" glibc 1"), "{reported:?}");
    assert!(reported.iter().any(|l| l.ends_with(" glibc/arena_max=2 1")), "{reported:?}");
}

#[test]
fn settings_of_a_treatment_reach_the_subject_and_those_of_the_shell_do_not() {
    let ran = {
        let home = tempfile::tempdir().unwrap();
        let output = crate::support::lowtide()
            .env("MALLOC_ARENA_MAX", "7")
            .args([
                "study",
                "-a",
                "glibc",
                "-t",
                "glibc/mine: MALLOC_TOP_PAD_=4096",
                "--repeat",
                "1",
                "-o",
            ])
            .arg(home.path().join("r"))
            .args(["--", "sh", "-c", "env | grep MALLOC_ || echo none; sleep 1"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let log = |label: &str| {
            let trials = std::fs::read_dir(home.path().join("r/trials")).unwrap();
            let name =
                trials.flatten().map(|e| e.path()).find(|p| p.to_string_lossy().ends_with(label));
            std::fs::read_to_string(name.unwrap()).unwrap()
        };
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("note: MALLOC_ARENA_MAX=7 of your")
        );
        (log("-glibc.log"), log("-glibc-mine.log"))
    };
    assert_eq!((ran.0.trim(), ran.1.trim()), ("none", "MALLOC_TOP_PAD_=4096"));
}

#[test]
fn ctrl_c_ends_everything_runs_the_cleanup_and_keeps_the_record() {
    let (subject, seconds) = (subject(&[]), unique_seconds());
    let home = tempfile::tempdir().unwrap();
    let (record, cleaned) = (home.path().join("record"), home.path().join("cleaned"));
    let mut child = crate::support::lowtide()
        .args(["study", "--json", "-a", "glibc", "--repeat", "2", "--cleanup"])
        .arg(format!("touch {}", cleaned.display()))
        .arg("-o")
        .arg(&record)
        .args(["--", &subject, &format!("daemon:{seconds}"), "fill:8", "ms:600000"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("the child", || processes_with(&format!("sleep {seconds}")).first().copied());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(processes_with(&seconds), Vec::<u32>::new());
    assert!(cleaned.exists());
    let object: serde_json::Value = serde_json::from_reader(child.stdout.take().unwrap()).unwrap();
    assert_eq!(object["trials"][0]["outcome"], "interrupted");
    assert_eq!(object["complete"], false);
}

#[test]
fn ctrl_c_during_the_cleanup_lets_it_finish_and_starts_no_other_trial() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    let (begun, go_on, cleaned) = (at("begun"), at("go-on"), at("cleaned"));
    let cleanup =
        format!("touch {begun}; while ! [ -e {go_on} ]; do sleep 0.01; done; echo x >> {cleaned}");
    let child = crate::support::lowtide()
        .args(["study", "--json", "-a", "glibc", "--repeat", "2", "--cleanup", &cleanup])
        .args(["-o", &at("record"), "--", &subject(&[]), "fill:8", "ms:1000"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until("the cleanup", || std::path::Path::new(&begun).exists().then_some(()));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    std::fs::write(&go_on, "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(std::fs::read_to_string(&cleaned).unwrap(), "x\n");
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["trials"].as_array().unwrap().len(), 1);
    assert_eq!(object["trials"][0]["outcome"], "done");
}

#[test]
fn a_study_takes_only_variables_about_memory_from_a_process() {
    let mut service = std::process::Command::new("sleep")
        .arg("1000")
        .env_clear()
        .envs([("MALLOC_TOP_PAD_", "65536"), ("PASSWORD", "x"), ("MODE", "fast")])
        .spawn()
        .unwrap();
    let pid = service.id().to_string();
    let shown = tempfile::NamedTempFile::new().unwrap();
    let command = format!("env > {}; sleep 1", shown.path().display());
    let flags = ["-a", "glibc", "--repeat", "1", "--env-from"];
    let ran = study(&[&flags[..], &[&pid, "--env", "MODE", "--", "sh", "-c", &command]].concat());
    let missing = study(&[&flags[..], &[&pid, "--env", "NONE", "--", "true"]].concat());
    service.kill().unwrap();
    service.wait().unwrap();
    let gone = study(&[&flags[..], &[&pid, "--", "true"]].concat());
    assert_eq!(gone.code(), Some(4), "{}", gone.stderr());
    assert_eq!(missing.code(), Some(2));
    assert!(missing.stdout().contains("without the variable NONE"), "{}", missing.stdout());
    assert_eq!(ran.code(), Some(0), "{}", ran.stderr());
    let variables = std::fs::read_to_string(shown.path()).unwrap();
    for wanted in ["MALLOC_TOP_PAD_=65536", "MODE=fast"] {
        assert!(variables.lines().any(|line| line == wanted), "{variables}");
    }
    assert!(!variables.contains("PASSWORD"), "{variables}");
}
