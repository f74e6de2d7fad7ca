//! Tests against nghttp2's server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use lowtide_testing::until_true;

use crate::client::{Client, request};

/// A server that is stopped at the end of the test.
struct Nghttpd {
    process: Child,
    address: SocketAddr,
    documents: PathBuf,
}

impl Nghttpd {
    /// Starts a server for a folder with `small` and `large`, and waits until it accepts
    /// connections.
    fn start(name: &str, arguments: &[&str]) -> Self {
        let documents = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&documents).unwrap();
        fs::write(documents.join("small"), SMALL).unwrap();
        fs::write(documents.join("large"), large()).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let process = Command::new("nghttpd")
            .args(["--no-tls", "-a", "127.0.0.1", "-d"])
            .arg(&documents)
            .args(arguments)
            .arg(address.port().to_string())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nghttpd starts (Debian: nghttp2-server)");
        let mut server = Self { process, address, documents };
        until_true("nghttpd to accept connections", || {
            if let Some(status) = server.process.try_wait().unwrap() {
                let errors = BufReader::new(server.process.stderr.take().unwrap()).lines();
                panic!("nghttpd ended with {status}: {:?}", errors.collect::<Vec<_>>());
            }
            TcpStream::connect(server.address).is_ok()
        });
        server
    }
}

impl Drop for Nghttpd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.documents);
    }
}

const SMALL: &[u8] = b"a few bytes";

fn large() -> Vec<u8> {
    (0..3_000_000_usize).map(|at| (at * at / 251) as u8).collect()
}

#[test]
#[ignore = "needs nghttpd (Debian: nghttp2-server)"]
fn small_and_large_files_are_received_completely_in_frames_of_any_form() {
    let forms: [&[&str]; 4] = [
        &["-m", "1000"],
        &["-m", "7", "-b", "200", "--trailer", "last: words"],
        &["--no-content-length", "--encoder-header-table-size", "0"],
        &["--header-table-size", "0", "-b", "255"],
    ];
    for (at, arguments) in forms.into_iter().enumerate() {
        let server = Nghttpd::start(&format!("nghttpd-{at}"), arguments);
        for (path, body, many) in [("/small", SMALL, 5000), ("/large", &large(), 20)] {
            let mut client = Client::connect(server.address, &request("GET", path, b""));
            client.run(many);
            assert_eq!(
                client.outcomes.count(200, body),
                many,
                "{arguments:?}: {:?}",
                client.outcomes
            );
        }
        let mut client = Client::connect(server.address, &request("HEAD", "/large", b""));
        client.run(10);
        assert_eq!(client.outcomes.count(200, b""), 10, "{:?}", client.outcomes);
    }
}

#[test]
#[ignore = "needs nghttpd (Debian: nghttp2-server)"]
fn bodies_are_echoed_through_windows_of_any_size() {
    for (at, bits) in ["5", "16", "30"].into_iter().enumerate() {
        let name = format!("nghttpd-echo-{at}");
        let server = Nghttpd::start(&name, &["--echo-upload", "-w", bits, "-W", bits]);
        for length in [10, 30_000] {
            let body = &large()[..length];
            let mut client = Client::connect(server.address, &request("POST", "/", body));
            client.run(20);
            assert_eq!(client.outcomes.count(200, body), 20, "{bits}: {:?}", client.outcomes);
        }
    }
}
