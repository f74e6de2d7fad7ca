//! `lowtide exporter`, queried over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::inspect::failure_of;
use crate::support::{lowtide, until};
use crate::top::Named;

/// An exporter that runs until it is dropped.
pub(crate) struct Exporter {
    child: Child,
    /// Its message when it was ready.
    said: String,
}

impl Exporter {
    pub(crate) fn start(words: &[&str]) -> Self {
        let mut child =
            lowtide().arg("exporter").args(words).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("listening on") || said.contains("writing metrics"), "{said}");
        Self { child, said }
    }

    /// Starts an exporter on a port that the kernel chooses.
    pub(crate) fn on_any_port(words: &[&str]) -> Self {
        Self::start(&[&["--listen", "127.0.0.1:0"], words].concat())
    }

    /// Returns its host and port.
    pub(crate) fn address(&self) -> &str {
        let (_, rest) = self.said.split_once("://").unwrap();
        rest.split_once('/').unwrap().0
    }

    pub(crate) fn get(&self, path: &str, headers: &str) -> String {
        ask(TcpStream::connect(self.address()).unwrap(), path, headers)
    }

    /// Returns the metrics, once every process has been inspected.
    fn complete(&self) -> String {
        until("all inspections", || {
            let text = self.get("/metrics", "");
            let waiting = |line: &&str| line.starts_with("lowtide_uninspected_processes{");
            let mut waiting = text.lines().filter(waiting).peekable();
            waiting.peek()?;
            waiting.all(|line| line.ends_with(" 0")).then(|| text.clone())
        })
    }

    fn end(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request, and returns the whole response.
fn ask(mut stream: impl Read + Write, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the value of a series.
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
}

#[test]
fn the_metrics_of_a_group_add_up_and_the_exporter_has_a_seccomp_filter() {
    let name = format!("ex{}", std::process::id());
    let (_one, _two) = (Named::start(&name), Named::start(&name));
    let exporter = Exporter::on_any_port(&["--group-by", "comm", "--comm", &name]);
    let text = exporter.complete();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    let label = format!("{{groupname=\"{name}\"}}");
    assert_eq!(value(&text, &format!("lowtide_processes{label}")), 2.0);
    let rss = value(&text, &format!("lowtide_rss_bytes{label}"));
    let owners = text.lines().filter(|line| line.starts_with("lowtide_resident_bytes{"));
    let bytes: Vec<f64> =
        owners.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(bytes.len(), 12, "{text}");
    // The kernel's count is off by up to a batch of pages for each processor.
    let sum: f64 = bytes.iter().sum();
    assert!((sum - rss).abs() < rss / 2.0, "{sum} {rss}");
    let libc = text.lines().find(|line| line.starts_with("lowtide_allocators{")).unwrap();
    assert!(libc.contains("libc=\"") && libc.ends_with(" 2"), "{libc}");
    assert!(!text.contains("# EOF"), "{text}");
    assert!(text.contains("# TYPE lowtide_exporter_cpu_seconds_total counter"), "{text}");

    let open = exporter.get("/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(
        open.contains("content-type: application/openmetrics-text") && open.ends_with("# EOF\n")
    );
    assert!(exporter.get("/healthz", "").ends_with("ok\n"));
    assert!(exporter.get("/other", "").starts_with("HTTP/1.1 404"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", exporter.child.id())).unwrap();
    assert!(status.contains("Seccomp:\t2"), "{status}");
    assert_eq!(exporter.end(), Some(0));
}

#[test]
fn special_characters_in_a_group_name_are_escaped() {
    let name = format!("a\"\\\n{{{}", std::process::id());
    let _named = Named::start(&name);
    let exporter = Exporter::on_any_port(&["--group-by", "comm", "--comm", &name]);
    let text = exporter.complete();
    let escaped = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    assert_eq!(value(&text, &format!("lowtide_processes{{groupname=\"{escaped}\"}}")), 1.0);
}

#[test]
fn a_selector_without_matches_has_no_group_until_a_process_matches() {
    let name = format!("xn{}", std::process::id());
    let exporter = Exporter::on_any_port(&["--comm", &name, "--group-by", "comm"]);
    let text = exporter.get("/metrics", "");
    assert!(text.starts_with("HTTP/1.1 200 ") && !text.contains("lowtide_rss_bytes{"), "{text}");
    assert!(text.contains("lowtide_exporter_cpu_seconds_total"), "{text}");
    let _named = Named::start(&name);
    until("the group", || {
        exporter.get("/metrics", "").contains("lowtide_rss_bytes{").then_some(())
    });
}

#[test]
fn groups_beyond_the_maximum_are_counted_together() {
    let exporter = Exporter::on_any_port(&["--max-groups", "1"]);
    let text = until("the first list of processes", || {
        Some(exporter.get("/metrics", "")).filter(|text| text.contains("lowtide_processes{"))
    });
    let groups = text.lines().filter(|line| line.starts_with("lowtide_processes{"));
    assert_eq!(groups.count(), 2, "{text}");
    let other = value(&text, "lowtide_processes{groupname=\"other\"}");
    assert_eq!(value(&text, "lowtide_exporter_grouped_as_other"), other);
}

#[test]
fn clients_that_never_read_or_never_send_do_not_delay_others() {
    let exporter = Exporter::on_any_port(&["--group-by", "comm"]);
    let idle: Vec<TcpStream> =
        (0..30).map(|_| TcpStream::connect(exporter.address()).unwrap()).collect();
    let mut deaf = TcpStream::connect(exporter.address()).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    // Until the buffers of both ends are full.
    while deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").is_ok() {}
    let address = exporter.address();
    let scrape = || ask(TcpStream::connect(address).unwrap(), "/metrics", "");
    std::thread::scope(|scope| {
        let scrapes: Vec<_> = (0..50).map(|_| scope.spawn(scrape)).collect();
        for scrape in scrapes {
            assert!(scrape.join().unwrap().starts_with("HTTP/1.1 200 OK"));
        }
    });
    drop(idle);
}

#[test]
fn a_unix_socket_is_removed_at_exit() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("socket");
    let exporter = Exporter::start(&["--listen", &format!("unix:{}", path.display())]);
    let answer = ask(UnixStream::connect(&path).unwrap(), "/metrics", "");
    assert!(answer.contains("lowtide_build_info"), "{answer}");
    assert_eq!(exporter.end(), Some(0));
    assert!(!path.exists());
}

#[test]
fn a_textfile_has_the_same_metrics() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("lowtide.prom");
    let exporter = Exporter::start(&["--textfile", path.to_str().unwrap()]);
    let text = until("the file", || std::fs::read_to_string(&path).ok());
    assert!(text.contains("# TYPE lowtide_rss_bytes gauge"), "{text}");
    assert_eq!(exporter.end(), Some(0));
}

/// Returns the directory with the certificate and the key of the tests of `lowtide-load`.
fn certificate() -> std::path::PathBuf {
    let path = "../load/tests/driver/certificate";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).canonicalize().unwrap()
}

#[test]
fn the_web_configuration_enables_passwords_and_tls() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("web-config.yml");
    let hash = "$2y$04$6qi/1Gh1OlkC7n2SuCcKs.CMMCjac3aHcF2uh35r3UFpuxQFE7ctG";
    std::fs::write(&config, format!("basic_auth_users:\n  alice: {hash}\n")).unwrap();
    let exporter = Exporter::on_any_port(&["--web-config", config.to_str().unwrap()]);
    let refused = exporter.get("/metrics", "");
    assert!(refused.starts_with("HTTP/1.1 401") && !refused.contains("lowtide_"), "{refused}");
    // alice:wrong
    let refused = exporter.get("/metrics", "Authorization: Basic YWxpY2U6d3Jvbmc=\r\n");
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    // alice:secret
    let served = exporter.get("/metrics", "Authorization: Basic YWxpY2U6c2VjcmV0\r\n");
    assert!(served.starts_with("HTTP/1.1 200"), "{served}");
    assert_eq!(value(&served, "lowtide_exporter_scrapes_total{result=\"unauthorized\"}"), 2.0);
    drop(exporter);

    let directory = certificate();
    let tls = format!(
        "tls_server_config:\n  cert_file: {0}/cert.pem\n  key_file: {0}/key.pem\n",
        directory.display()
    );
    std::fs::write(&config, tls).unwrap();
    let exporter = Exporter::on_any_port(&["--web-config", config.to_str().unwrap()]);
    assert!(exporter.said.contains("https://"), "{}", exporter.said);
    let url = format!("https://{}/healthz", exporter.address());
    let done = lowtide().args(["--json", "load", &url, "-k", "-n", "3"]).output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(found["rounds"][0]["succeeded"], 3, "{found:#}");
}

#[test]
fn invalid_input_is_reported_in_one_sentence() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = failure_of("exporter", &["--listen", &address], 1, "failed");
    assert!(said.starts_with(&format!("cannot listen on {address}")), "{said}");
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("web-config.yml");
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("../exporter/tests/other-key.pem");
    for (text, part) in [
        ("basic_auth_usrs:\n  a: b\n".to_owned(), "basic_auth_usrs"),
        (
            format!(
                "tls_server_config:\n  cert_file: {}/cert.pem\n  key_file: {}\n",
                certificate().display(),
                other.display()
            ),
            "cannot be used together",
        ),
    ] {
        std::fs::write(&config, text).unwrap();
        let said = failure_of("exporter", &["--web-config", config.to_str().unwrap()], 2, "usage");
        assert!(said.contains(part), "{said}");
    }
    failure_of("exporter", &["--web-config", "/no/such/file"], 2, "usage");
    for flags in [
        ["--listen", "here"],
        ["--group-by", "user"],
        ["--max-groups", "0"],
        ["--budget", "2"],
        ["--textfile", "/no/such/directory/file"],
    ] {
        let exit = if flags[0] == "--textfile" { (1, "failed") } else { (2, "usage") };
        failure_of("exporter", &flags, exit.0, exit.1);
    }
}
