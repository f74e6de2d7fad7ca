//! Programs of musl in all verbs: dynamic, static and stripped.

use std::path::{Path, PathBuf};
use std::process::Command;

use lowtide_testing::{Musl, MuslLinkage};
use tempfile::TempDir;

use crate::inspect::{Subject, because, bytes, object, predicted};
use crate::release::release;
use crate::supervision::{Attached, acts};
use crate::support::{lowtide, until};

/// Minimum size of the hoard, in bytes.
const HOARD: u64 = 10 << 20;

/// A program with a hoard, from the tests of releases.
fn program(home: &TempDir, linkage: MuslLinkage) -> PathBuf {
    let program = home.path().join("hoard-of-musl");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../release/tests/programs/counted.c");
    let flags = ["-O1", "-pthread", "-s"].map(PathBuf::from);
    Musl::systems().compile(linkage, &program, std::iter::once(source).chain(flags));
    program
}

fn hoard(program: &Path) -> Subject {
    Subject::start(Command::new(program).args(["2", "0", "7"]))
}

#[test]
#[ignore = "needs musl-dev"]
fn a_hoard_of_musl_is_predicted_and_released_to_the_byte() {
    let home = tempfile::tempdir().unwrap();
    for linkage in MuslLinkage::ALL {
        let subject = hoard(&program(&home, linkage));
        let found = subject.inspect();
        assert_eq!(found["verdict"]["kind"], "hoard", "{linkage:?}: {found:#}");
        assert!(because(&found).contains("in whole pages that can be returned"), "{found:#}");
        let promised = predicted(&found, "release");
        assert!(promised > HOARD && promised == bytes(&found, "reclaimable"), "{found:#}");
        // A static program does not contain its version.
        let version = &found["allocator"]["version"];
        let expected = (linkage == MuslLinkage::Dynamic).then(|| Musl::systems().version());
        assert_eq!(version.as_str(), expected.as_deref(), "{linkage:?}");

        let output = release(&[], subject.pid());
        let released = object(&output);
        assert_eq!((output.status.code(), &released["outcome"]), (Some(0), &"released".into()));
        assert_eq!(released["returned_bytes"], promised, "{linkage:?}: {released:#}");
        let after = subject.inspect();
        assert_eq!(bytes(&after, "reclaimable"), 0, "{linkage:?}: {after:#}");
    }
}

#[test]
#[ignore = "needs musl-dev"]
fn run_and_attach_release_the_memory_of_musl_by_default() {
    let home = tempfile::tempdir().unwrap();
    let returned = |log: &Path| {
        let acts = acts(log, "act");
        acts.iter().any(|act| act["returned_bytes"].as_u64() > Some(HOARD)).then_some(())
    };
    for linkage in [MuslLinkage::Dynamic, MuslLinkage::Static] {
        let program = program(&home, linkage);
        let (log_of_attach, log_of_run) = (home.path().join("attach"), home.path().join("run"));
        let subject = hoard(&program);
        let pid = subject.pid().to_string();
        let words = ["-p", "periodic=200ms", "--log"];
        let log = log_of_attach.display().to_string();
        let mut attached = Attached::start(&[&[&*pid], &words[..], &[&*log]].concat());
        until("attach to release", || returned(&log_of_attach));
        attached.interrupt();
        let mut run = lowtide();
        run.arg("run").args(words).arg(&log_of_run).arg("--").arg(&program).args(["2", "0", "7"]);
        let run = Subject::start(&mut run);
        until("run to release", || returned(&log_of_run));
        drop(run);
    }
}
