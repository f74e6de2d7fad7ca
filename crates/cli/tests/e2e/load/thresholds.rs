//! `--fail-on`, and the exit code of a load with failed requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Output;

use super::{Server, load, report};
use crate::support::lowtide;

/// Starts a server that answers every request with status 404. Returns its address.
fn without_pages() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || refuse_pages(&stream));
        }
    });
    address
}

fn refuse_pages(mut stream: &TcpStream) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line.is_empty() {
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_load_whose_requests_all_fail_reports_the_error_kind_and_exits_with_0() {
    let url = format!("http://{}/", without_pages());
    let output = load(&[&url, "-n", "4"]);
    assert_eq!(output.status.code(), Some(0));
    let round = &report(&output)["rounds"][0];
    assert_eq!((&round["failed"], &round["failed_ratio"]), (&4.into(), &1.0.into()));
    assert_eq!(round["errors"]["answered with status 404"], 4);
    let output = lowtide().args(["load", &url, "-n", "4"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["4: 0 succeeded (0.00 %), 4 failed", "4  answered with status 404"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_crossed_threshold_is_printed_and_exits_with_99() {
    let url = format!("http://{}/", without_pages());
    let thresholds = [
        "--fail-on",
        "failed_ratio>0.01",
        "--fail-on",
        "requests_per_s<1",
        "--fail-on",
        "failed>4",
    ];
    let output = load(&[&[url.as_str(), "-n", "4"], &thresholds[..]].concat());
    assert_eq!(output.status.code(), Some(99), "{}", stderr(&output));
    report(&output);
    assert_eq!(
        stderr(&output).lines().collect::<Vec<_>>(),
        [
            "crossed: round 1: failed_ratio>0.01 (it is 1)",
            "crossed: round 1: requests_per_s<1 (it is 0)"
        ]
    );
}

#[test]
fn a_threshold_that_no_round_crosses_exits_with_0_silently() {
    let server = Server::start();
    let flags = ["--http2", "-n", "100", "--fail-on", "failed_ratio>0", "--fail-on"];
    let output = load(&[&[server.url("").as_str()], &flags[..], &["latency_s.p99>1h"]].concat());
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn a_latency_threshold_without_latencies_is_not_crossed_and_prints_a_note() {
    let url = format!("http://{}/", without_pages());
    let output = load(&[&url, "-n", "4", "--fail-on", "latency_s.p99<1s"]);
    assert_eq!(output.status.code(), Some(0));
    let note = "note: --fail-on latency_s.p99<1s was not checked: no round has that metric\n";
    assert_eq!(stderr(&output), note);
}

#[test]
fn on_github_a_crossed_threshold_of_a_load_is_an_annotation() {
    let url = format!("http://{}/", without_pages());
    let output = lowtide()
        .env("GITHUB_ACTIONS", "true")
        .args(["load", &url, "-n", "4", "--fail-on", "failed_ratio>1%"])
        .output()
        .unwrap();
    let expected = "::error::lowtide: round 1: failed_ratio>1%25 (it is 1)";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

#[test]
fn requests_that_time_out_have_their_own_latency_line() {
    let server = Server::start();
    let url = server.url("?expire=60000");
    let flags = ["-m", "10", "-n", "20", "--rate", "100/s", "--timeout", "1s"];
    let output = load(&[&[url.as_str()], &flags[..]].concat());
    let round = &report(&output)["rounds"][0];
    assert_eq!(round["timed_out"], 20, "{round}");
    let output = lowtide().args(["load", &url]).args(flags).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(" latency   of the 20 that timed out, at least: 50% "), "{text}");
}

#[test]
fn the_help_of_load_names_the_exit_code_of_failed_requests_and_the_thresholds() {
    let output = lowtide().args(["load", "--help"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).replace(char::is_whitespace, " ");
    for part in ["0 done, even if every request failed", "--fail-on <EXPR>", "99 a threshold"] {
        assert!(text.contains(part), "{text}");
    }
}
