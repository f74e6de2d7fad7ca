//! `subjects/004-node-tls`: the TLS server of document 004, under the system's node, held to the verdicts that
//! stand beside it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

use crate::inspect;
use crate::support::{free_port, lowtide, number, study, until};

/// `verdicts.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Verdicts {
    expected: Vec<Expected>,
    over_rounds: Vec<OverRounds>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    allocator: String,
    moment: String,
    connections: u32,
    #[serde(default)]
    arguments: Vec<String>,
    verdicts: Vec<String>,
    #[serde(default)]
    least: BTreeMap<String, f64>,
    #[serde(default)]
    most: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverRounds {
    arguments: Vec<String>,
    inner_memory: String,
}

impl Expected {
    fn hold(&self, found: &Value) {
        let kind = found["verdict"]["kind"].as_str().unwrap();
        let told = format!("{}, {:?}: {found:#}", self.moment, self.arguments);
        assert!(self.verdicts.iter().any(|v| v == kind), "{kind} {told}");
        let rss = number(found, "rss_bytes");
        let share = |owner: &str| inspect::bytes(found, owner) as f64 / rss;
        assert!(self.least.iter().all(|(owner, least)| share(owner) >= *least), "{told}");
        assert!(self.most.iter().all(|(owner, most)| share(owner) <= *most), "{told}");
        if kind == "runtime" {
            let cures = found["cures"].as_array().unwrap();
            let cure = cures.iter().find(|cure| cure["cure"] == "runtime").expect(&told);
            assert!(cure["how"].as_str().unwrap().contains("V8"), "{told}");
        }
    }
}

/// A process that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../subjects/004-node-tls")
}

fn verdicts() -> Verdicts {
    let text = std::fs::read_to_string(folder().join("verdicts.toml")).unwrap();
    toml::from_str(&text).unwrap()
}

/// Makes a key and a certificate, and gives the words that name them.
fn certificate(home: &Path) -> [String; 2] {
    let (key, cert) = (home.join("key.pem"), home.join("cert.pem"));
    let words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout";
    let mut openssl = Command::new("openssl");
    let made = openssl.args(words.split(' ')).arg(&key).arg("-out").arg(&cert).output();
    assert!(made.expect("openssl: .ci/run installs it").status.success());
    [format!("key={}", key.display()), format!("cert={}", cert.display())]
}

/// Asks the server for its figures, by the path of their address.
fn ask(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

fn look(expected: &Expected, certificate: &[String]) -> Value {
    let (port, figures) = (free_port(), free_port());
    let server = inspect::plain("node")
        .arg("--expose-gc")
        .arg(folder().join("server.js"))
        .args(certificate)
        .args([format!("port={port}"), format!("figures={figures}")])
        .args(&expected.arguments)
        .stdout(Stdio::null())
        .spawn();
    let server = Running(server.expect("node: .ci/run installs it"));
    until("the server", || ask(figures, "/"));
    let count = expected.connections.to_string();
    let load = lowtide()
        .args(["load", "--insecure", "-c", &count, "--ramp", "200/s", "--hold", "10m"])
        .arg(format!("tls:127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let load = Running(load.unwrap());
    let connections =
        |wanted: u32| ask(figures, "/").filter(|told| told["connections"] == wanted).map(drop);
    until("the connections", || connections(expected.connections));
    if expected.moment != "held" {
        drop(load);
        until("the close", || connections(0));
    }
    if expected.moment == "collected" {
        let told = until("the collection", || ask(figures, "/collect"));
        assert!(number(&told["after"], "heapUsed") < number(&told["before"], "heapUsed"), "{told}");
    }
    inspect::object(&inspect::inspect(&[], server.0.id()))
}

#[test]
#[ignore = "needs node and openssl"]
fn the_server_of_document_004_gets_the_verdicts_that_stand_beside_it() {
    let home = tempfile::tempdir().unwrap();
    let certificate = certificate(home.path());
    for expected in &verdicts().expected {
        assert_eq!(expected.allocator, "glibc", "no other is tried yet");
        expected.hold(&look(expected, &certificate));
    }
}

#[test]
#[ignore = "needs node and openssl, and takes a minute"]
fn over_rounds_of_connections_a_leak_is_told_from_a_level_and_a_connection_has_its_price() {
    const CONNECTIONS: u32 = 100;
    let home = tempfile::tempdir().unwrap();
    let certificate = &certificate(home.path());
    let run = |arguments: &[String]| {
        let (port, figures) = (free_port(), free_port());
        let load = format!(
            "\"$LOWTIDE\" --json load tls:127.0.0.1:{port} -k -c {CONNECTIONS} --ramp 50/s --hold 200ms \
             && kill -USR2 $LOWTIDE_SUBJECT_PID"
        );
        let ran = study(
            &[
                &[
                    "-a", "glibc", "--rounds", "6", "--pause", "3s", "--settle", "3s", "--load",
                    &load,
                ],
                &["--repeat", "1", "--ready", &format!("tcp:127.0.0.1:{port}")][..],
                &[
                    "--figures",
                    &format!("http://127.0.0.1:{figures}/"),
                    "--",
                    "node",
                    "--expose-gc",
                ],
                &[&folder().join("server.js").display().to_string(), &certificate[0]],
                &[&certificate[1], &format!("port={port}"), &format!("figures={figures}")],
                &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
            ]
            .concat(),
        );
        ran.trials().remove(0)
    };
    std::thread::scope(|scope| {
        for expected in verdicts().over_rounds {
            scope.spawn(move || {
                let trial = run(&expected.arguments);
                let found = &trial["over_rounds"]["inner_memory"];
                assert_eq!(found["trend"], expected.inner_memory.as_str(), "{trial:#}");
                // The figures come once a second, and a ramp takes two: those of the kernel do.
                let cost = &trial["rounds"][0]["per_connection"]["memory_bytes"];
                assert!(number(cost, "each") > 4096.0, "{trial:#}");
            });
        }
    });
}
