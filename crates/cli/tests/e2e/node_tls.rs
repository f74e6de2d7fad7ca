//! `subjects/node-tls`: a TLS server under the system's node, checked against its expected
//! verdicts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use lowtide_testing::Running;

use crate::expected::{Expected, OverRounds, folder};
use crate::inspect;
use crate::support::{free_port, lowtide, number, study, until};

const SUBJECT: &str = "node-tls";

/// Checks an inspection against the expectation. If V8 has most of the memory, checks the remedy,
/// too.
fn hold(expected: &Expected, found: &Value) {
    expected.hold(found);
    if found["verdict"]["kind"] == "runtime" {
        let cures = found["cures"].as_array().unwrap();
        let cure = cures.iter().find(|cure| cure["cure"] == "runtime").expect("a cure");
        assert!(cure["how"].as_str().unwrap().contains("V8"), "{found:#}");
    }
}

/// Creates a key and a certificate. Returns the arguments with their paths.
fn certificate(home: &Path) -> [String; 2] {
    let (key, cert) = (home.join("key.pem"), home.join("cert.pem"));
    let words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout";
    let mut openssl = Command::new("openssl");
    let made = openssl.args(words.split(' ')).arg(&key).arg("-out").arg(&cert).output();
    assert!(made.expect("openssl: .ci/run installs it").status.success());
    [format!("key={}", key.display()), format!("cert={}", cert.display())]
}

/// Requests a path from the server, and returns the JSON response.
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
        .arg(folder(SUBJECT).join("server.js"))
        .args(certificate)
        .args([format!("port={port}"), format!("figures={figures}")])
        .args(&expected.arguments)
        .stdout(Stdio::null())
        .spawn();
    let server = Running::from(server.expect("node: .ci/run installs it"));
    until("the server", || ask(figures, "/"));
    let wanted = expected.connections.unwrap();
    let count = wanted.to_string();
    let load = lowtide()
        .args(["load", "--insecure", "-c", &count, "--rate", "200/s", "--hold", "10m"])
        .arg(format!("tls:127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let load = Running::from(load.unwrap());
    let connections = |wanted: u32| {
        ask(figures, "/").filter(|reported| reported["connections"] == wanted).map(drop)
    };
    until("the connections", || connections(wanted));
    if expected.moment != "held" {
        drop(load);
        until("the close", || connections(0));
    }
    if expected.moment == "collected" {
        let reported = until("the collection", || ask(figures, "/collect"));
        assert!(
            number(&reported["after"], "heapUsed") < number(&reported["before"], "heapUsed"),
            "{reported}"
        );
    }
    inspect::object(&inspect::inspect(&[], server.id()))
}

#[test]
#[ignore = "needs node and openssl"]
fn the_server_gets_its_expected_verdicts() {
    let home = tempfile::tempdir().unwrap();
    let certificate = certificate(home.path());
    for expected in &Expected::of(SUBJECT) {
        assert_eq!(expected.allocator, "glibc", "no other is tried yet");
        hold(expected, &look(expected, &certificate));
    }
}

#[test]
#[ignore = "needs node and openssl, and takes a minute"]
fn over_rounds_growth_is_distinguished_from_a_level_and_a_connection_has_a_cost() {
    const CONNECTIONS: u32 = 100;
    let home = tempfile::tempdir().unwrap();
    let certificate = &certificate(home.path());
    let run = |arguments: &[String]| {
        let (port, figures) = (free_port(), free_port());
        let load = format!(
            "\"$LOWTIDE\" --json load tls:127.0.0.1:{port} -k -c {CONNECTIONS} --rate 50/s --hold 200ms \
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
                &[&folder(SUBJECT).join("server.js").display().to_string(), &certificate[0]],
                &[&certificate[1], &format!("port={port}"), &format!("figures={figures}")],
                &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
            ]
            .concat(),
        );
        ran.trials().remove(0)
    };
    std::thread::scope(|scope| {
        for expected in OverRounds::of(SUBJECT) {
            scope.spawn(move || {
                let trial = run(&expected.arguments);
                let found = &trial["over_rounds"]["inner_memory"];
                assert_eq!(found["trend"], expected.inner_memory.as_str(), "{trial:#}");
                // The server reports its metrics once per second, and a ramp takes two seconds. The
                // metrics of the kernel are sufficient.
                let cost = &trial["rounds"][0]["per_connection"]["memory_bytes"];
                assert!(number(cost, "each") > 4096.0, "{trial:#}");
            });
        }
    });
}
