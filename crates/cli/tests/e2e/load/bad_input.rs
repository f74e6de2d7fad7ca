//! Requests that cannot be carried out: lowtide prints a sentence, and exits with the right code.

use std::process::Command;

use super::Server;
use crate::inspect::failure_of;
use crate::support::{free_port, lowtide};

fn failure(flags: &[&str], exit: i32, code: &str) -> String {
    failure_of("load", flags, exit, code)
}

#[test]
fn invalid_arguments_are_rejected_before_anything_starts() {
    for (flags, part) in [
        (vec!["localhost:3000"], "does not begin with http:"),
        (vec!["http://"], "is not a valid address"),
        (vec!["tcp:localhost"], "write tcp:HOST:PORT"),
        (vec!["http://x", "tcp:x:1"], "use URLs of one kind"),
        (vec!["http://x", "-n", "0"], "0"),
        (vec!["http://x", "-z", "0s"], "must be longer than 0s: write, for example, -z 30s"),
        (vec!["tcp:x:1", "--hold", "0s"], "for example, --hold 10s"),
        (
            vec!["http://x", "--fail-on", "p99>1s"],
            "it has requests, succeeded, failed, failed_ratio",
        ),
        (vec!["http://x", "--fail-on", "failed"], "such as `failed_ratio>0.01`"),
        (vec!["http://x", "--rate", "fast"], "is not a valid rate: write 100/s"),
        (vec!["http://x", "-n", "5", "-z", "5s"], "cannot be used with"),
        (vec!["http://x", "--http1", "--http2"], "cannot be used with"),
        (vec!["http://x", "--idle-close", "soon"], "--idle-close: "),
        (vec!["http://x", "-o", "/etc/passwd"], "already exists"),
        (vec![], "required"),
    ] {
        let said = failure(&flags, 2, "usage");
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn an_unknown_or_refusing_host_is_named_in_the_error() {
    let said = failure(&["http://no-such-host.invalid/"], 1, "failed");
    assert!(said.starts_with("the address of no-such-host.invalid cannot be found"), "{said}");
    let url = format!("http://127.0.0.1:{}/", free_port());
    let said = failure(&[&url], 1, "failed");
    assert_eq!(said, format!("{url}: connection refused: is the server running there?"));
}

#[test]
fn an_unresponsive_host_is_an_error_after_the_timeout() {
    // No process accepts the pending connections, and no data is ever sent.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let said = failure(&[&url, "--http2", "--timeout", "300ms"], 1, "failed");
    assert_eq!(said, format!("{url}: no connection within the timeout"));
}

#[test]
fn a_server_of_another_protocol_is_reported_with_the_required_flag() {
    let server = Server::start();
    let output = lowtide().args(["load", &server.url("")]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    // The response may be lost if the connection is reset after it.
    if !message.contains("the connection was reset") {
        assert!(
            message.contains("does not speak HTTP/1.1 here: it responded with HTTP/2"),
            "{message}"
        );
        assert!(
            message.contains(&format!("next: lowtide load {} --http2", server.url(""))),
            "{message}"
        );
    }
    let url = format!("https://{}/", server.address);
    assert!(failure(&[&url], 1, "failed").contains("the server did not respond with TLS"));
}

#[test]
fn an_insufficient_open_file_limit_is_reported_with_both_numbers() {
    let line = format!(
        "ulimit -n 100; exec {} load tcp:127.0.0.1:{} -c 500",
        env!("CARGO_BIN_EXE_lowtide"),
        free_port()
    );
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("500 connections need 524 open files, but at most 100 are permitted"),
        "{message}"
    );
}
