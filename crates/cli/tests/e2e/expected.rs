//! The verdicts of `lowtide inspect` that subjects expect (`verdicts.toml`), and subjects that are
//! Cargo projects.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lowtide_testing::Running;
use serde::Deserialize;
use serde_json::Value;

use crate::inspect::{bytes, inspect, object};
use crate::support::until;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Verdicts {
    expected: Vec<Expected>,
    #[serde(default)]
    over_rounds: Vec<OverRounds>,
}

impl Verdicts {
    fn of(subject: &str) -> Self {
        let text = std::fs::read_to_string(folder(subject).join("verdicts.toml")).unwrap();
        toml::from_str(&text).unwrap()
    }
}

/// The expected inspection under an allocator at a moment.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expected {
    pub(crate) allocator: String,
    pub(crate) moment: String,
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    /// Number of connections, for subjects with connections.
    pub(crate) connections: Option<u32>,
    /// Time of `--watch`, if a single inspection is not sufficient.
    pub(crate) watch: Option<String>,
    verdicts: Vec<String>,
    #[serde(default)]
    least: BTreeMap<String, f64>,
    #[serde(default)]
    most: BTreeMap<String, f64>,
}

impl Expected {
    /// All that a subject expects.
    pub(crate) fn of(subject: &str) -> Vec<Self> {
        Verdicts::of(subject).expected
    }

    /// Checks an inspection against the expectation.
    pub(crate) fn hold(&self, found: &Value) {
        let Self { allocator, moment, arguments, .. } = self;
        let verdict = found["verdict"]["kind"].as_str().unwrap();
        let reported = format!("{allocator}, {arguments:?}, {moment}: {found:#}");
        assert!(self.verdicts.iter().any(|v| v == verdict), "{verdict} {reported}");
        let rss = found["rss_bytes"].as_f64().unwrap();
        let share = |owner: &str| bytes(found, owner) as f64 / rss;
        for (owner, least) in &self.least {
            assert!(share(owner) >= *least, "{owner} {} {reported}", share(owner));
        }
        for (owner, most) in &self.most {
            assert!(share(owner) <= *most, "{owner} {} {reported}", share(owner));
        }
    }
}

/// The expected trend over the rounds of a study.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverRounds {
    pub(crate) arguments: Vec<String>,
    /// The trend of the allocated memory that the subject reports.
    pub(crate) inner_memory: String,
}

impl OverRounds {
    /// All that a subject expects.
    pub(crate) fn of(subject: &str) -> Vec<Self> {
        Verdicts::of(subject).over_rounds
    }
}

/// A running subject.
pub(crate) struct RunningSubject(pub(crate) Running);

impl RunningSubject {
    /// Starts a program under an allocator.
    pub(crate) fn under(allocator: &str, command: &mut Command) -> Self {
        if let Some(library) = lowtide_allocators::bundled().find(|b| b.name() == allocator) {
            command.env("LD_PRELOAD", library.unpack().unwrap());
        }
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap().into())
    }

    /// Waits until it accepts connections.
    pub(crate) fn at(self, address: SocketAddr) -> Self {
        until("the server", || TcpStream::connect(address).ok());
        self
    }

    /// Returns the inspection of the process.
    pub(crate) fn inspect(&self) -> Value {
        object(&inspect(&[], self.0.id()))
    }
}

/// Returns the folder of a subject.
pub(crate) fn folder(subject: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../subjects").join(subject)
}

/// Builds a subject that is a Cargo project, beside the workspace: they have dependencies in
/// common.
pub(crate) fn build(subject: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let built = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .args(["build", "--locked", "--manifest-path"])
        .arg(folder(subject).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .status()
        .unwrap();
    assert!(built.success());
    target.join("debug").join(format!("subject-{subject}"))
}
