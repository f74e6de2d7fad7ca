//! Checks that a treatment is really in force: the worst error of a study would be to compare glibc
//! with glibc.

use std::ffi::OsStr;

use serde_json::Value;

use crate::support::{study, subject};

fn reasons(ran: &crate::support::Ran) -> Vec<(Value, String)> {
    let reported =
        |t: &Value| t["allocator_inactive_because"].as_str().unwrap_or_default().to_owned();
    ran.trials().iter().map(|t| (t["allocator_active"].clone(), reported(t))).collect()
}

#[test]
fn a_treatment_is_not_in_force_in_a_static_program() {
    let subject = subject(&["-static"]);
    let ran =
        study(&["-a", "glibc,jemalloc", "--repeat", "1", "--", &subject, "fill:4", "ms:1500"]);
    for (active, reason) in reasons(&ran) {
        assert_eq!(active, false);
        assert!(reason.contains("it is linked statically"), "{reason}");
    }
    let json = ran.json();
    assert_eq!(json["recommendation"]["treatment"], Value::Null);
    assert_eq!(json["treatments"][1]["standing"], "not_in_force");
}

#[test]
fn a_treatment_is_not_in_force_in_a_program_with_its_own_allocator() {
    let program = own_allocator();
    let stripped = format!("{program}-stripped");
    let status = std::process::Command::new("strip").args(["-o", &stripped, &program]).status();
    assert!(status.expect("strip (Debian: binutils)").success());
    for program in [program, stripped] {
        let ran = study(&["-a", "glibc,jemalloc", "--repeat", "1", "--", &program]);
        for (active, reason) in reasons(&ran) {
            assert_eq!(active, false, "{program}");
            assert!(reason.contains("compiled in (mimalloc)"), "{reason}");
        }
    }
}

/// Returns the path of the example of this package whose global allocator is mimalloc.
fn own_allocator() -> String {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_lowtide"));
    binary.with_file_name("examples").join("own_allocator").display().to_string()
}

#[test]
fn the_allocator_of_a_short_lived_program_is_checked() {
    let subject = subject(&[]);
    let allocators = "glibc,jemalloc,mimalloc,mimalloc2";
    // On a busy machine, the sampler may get no CPU for a tenth of a second. The trial then fails.
    let looked_at = |lives: &str| {
        let ran = study(&["-a", allocators, "--repeat", "2", "--", &subject, "fill:1", lives]);
        let is_too_short = ran.stderr().contains("the command ended before the first sample");
        if is_too_short { Vec::new() } else { reasons(&ran) }
    };
    let mut found = ["ms:100", "ms:300", "ms:1000"].into_iter().map(looked_at);
    assert!(found.any(|found| found == vec![(Value::Bool(true), String::new()); 8]));
}

#[test]
fn the_allocator_of_every_process_in_a_tree_is_checked() {
    let (dynamic, fixed) = (subject(&[]), subject(&["-static"]));
    let line = format!("{dynamic} fill:2 ms:1500 & {fixed} fill:20 ms:1500; wait");
    let ran = study(&["-a", "jemalloc", "--repeat", "1", "--", "sh", "-c", &line]);
    let (active, reason) = &reasons(&ran)[0];
    assert_eq!(active, false);
    assert!(reason.starts_with("subject-static ("), "{reason}");
    let trial = &ran.trials()[0];
    let checks: Vec<bool> = ran
        .lines(trial)
        .iter()
        .filter(|l| l["kind"] == "process")
        .filter_map(|l| l["allocator"]["active"].as_bool())
        .collect();
    assert!(checks.contains(&true) && checks.contains(&false), "{checks:?}");
}

#[test]
fn a_custom_library_can_be_a_treatment() {
    let home = tempfile::tempdir().unwrap();
    let (source, library) = (home.path().join("mine.c"), home.path().join("libmine.so"));
    // The simplest possible allocator: it never frees memory.
    std::fs::write(
        &source,
        "#include <stddef.h>\n#include <string.h>\n#include <sys/mman.h>\n\
         static char *next, *end;\n\
         void *malloc(size_t n) { n = (n + 31) & ~(size_t)15; if (next + n > end) { size_t c = n > 1 << 24 ? n : 1 << 24;\
         next = mmap(0, c, 3, 34, -1, 0); end = next + c; } char *p = next; next += n; *(size_t *)p = n - 16; return p + 16; }\n\
         void free(void *p) { (void)p; }\n\
         void *calloc(size_t a, size_t b) { return malloc(a * b); }\n\
         void *realloc(void *p, size_t n) { void *q = malloc(n); if (p) { size_t o = *(size_t *)((char *)p - 16); memcpy(q, p, o < n ? o : n); } return q; }\n",
    )
    .unwrap();
    let flags = ["-shared", "-fPIC", "-fno-builtin", "-O1"].map(OsStr::new);
    lowtide_testing::compile(&library, flags.into_iter().chain([source.as_os_str()]));
    let subject = subject(&[]);
    let list = format!("glibc,mine={}", library.display());
    let ran = study(&["-a", &list, "--repeat", "1", "--", &subject, "fill:8", "free", "ms:1500"]);
    assert_eq!(reasons(&ran)[0].0, true);
    let labels: Vec<Value> =
        ran.trials().iter().map(|t| t["treatment"]["allocator"].clone()).collect();
    assert!(labels.contains(&"mine".into()), "{labels:?}");
}

#[test]
#[ignore = "needs root, to make a program setuid"]
fn a_treatment_is_not_in_force_in_a_setuid_program() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = home.path().join("setuid");
    crate::support::copy_program(subject(&[]), &program);
    std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let program = program.display().to_string();
    let ran = study(&["-a", "jemalloc", "--repeat", "1", "--", &program, "fill:4", "ms:1500"]);
    let (active, reason) = &reasons(&ran)[0];
    assert_eq!(active, false);
    assert!(reason.contains("it is a setuid program: the loader ignores LD_PRELOAD"), "{reason}");
}

#[test]
#[ignore = "needs gperftools (Debian: libgoogle-perftools4)"]
fn an_installed_gperftools_is_found_and_in_force() {
    let subject = subject(&[]);
    let ran = study(&[
        "-a",
        "tcmalloc",
        "-t",
        "tcmalloc/aggressive_decommit",
        "--repeat",
        "1",
        "--",
        &subject,
        "fill:8",
        "free",
        "ms:300",
    ]);
    assert!(reasons(&ran).iter().all(|(active, _)| *active == true));
    assert!(ran.trials()[0]["treatment"]["allocator_version"].is_string());
}

#[test]
#[ignore = "needs redis-server, linked with jemalloc as Debian does"]
fn glibc_is_not_in_force_in_redis_linked_with_jemalloc() {
    let port = crate::support::free_port();
    let ran = study(&[
        "-a",
        "glibc,mimalloc",
        "--repeat",
        "1",
        "--ready",
        &format!("tcp:127.0.0.1:{port}"),
        "--load",
        &format!("redis-cli -p {port} debug populate 20000 k 500"),
        "--settle",
        "1s",
        "--",
        "redis-server",
        "--port",
        &port.to_string(),
        "--save",
        "",
        "--enable-debug-command",
        "local",
    ]);
    for trial in ran.trials() {
        let expected = trial["treatment"]["allocator"] == "mimalloc";
        assert_eq!(trial["allocator_active"], expected, "{trial}");
        if !expected {
            let reason = trial["allocator_inactive_because"].as_str().unwrap();
            assert!(reason.contains("libjemalloc"), "{reason}");
        }
    }
}

#[test]
#[ignore = "needs another glibc, unpacked: LOWTIDE_TEST_GLIBC names the directory of its libraries"]
fn another_glibc_runs_the_program_with_its_own_loader() {
    let directory = std::env::var("LOWTIDE_TEST_GLIBC").expect("LOWTIDE_TEST_GLIBC");
    let subject = subject(&[]);
    let list = format!("glibc,glibc={directory}");
    let ran = study(&["-a", &list, "--repeat", "1", "--", &subject, "fill:8", "free", "ms:1500"]);
    assert!(reasons(&ran).iter().all(|(active, _)| *active == true), "{:?}", reasons(&ran));
    let names: Vec<String> =
        ran.trials().iter().map(|t| t["treatment"]["allocator"].to_string()).collect();
    assert!(names.iter().any(|n| n.starts_with("\"glibc-2.")), "{names:?}");
}
