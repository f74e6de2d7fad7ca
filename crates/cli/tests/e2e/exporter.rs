//! `lowtide exporter`, queried over HTTP.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lowtide_testing::Running;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};

use crate::inspect::failure_of;
use crate::support::{fixture, lowtide, until};
use crate::top::Named;

/// An exporter that runs until it is dropped.
pub(crate) struct Exporter {
    child: Running,
    /// Its message when it was ready.
    said: String,
}

impl Exporter {
    pub(crate) fn start(words: &[&str]) -> Self {
        Self::spawn(lowtide().arg("exporter").args(words))
    }

    /// Starts an exporter by a command.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        // A message about the user comes first.
        let said = lines.find(|line| !line.contains("stays root")).unwrap_or_default();
        assert!(said.contains("listening on") || said.contains("writing metrics"), "{said}");
        Self { child: child.into(), said }
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
    pub(crate) fn complete(&self) -> String {
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
    assert_eq!(bytes.len(), 14, "{text}");
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
    let health = exporter.get("/healthz", "");
    assert!(
        health.starts_with("HTTP/1.1 200") && health.contains("\nok\nlast inspection: "),
        "{health}"
    );
    assert!(health.ends_with("not inspected yet: 0\n"), "{health}");
    assert!(exporter.get("/other", "").starts_with("HTTP/1.1 404"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", exporter.child.id())).unwrap();
    assert!(status.contains("Seccomp:\t2"), "{status}");
    assert_eq!(exporter.end(), Some(0));
}

#[test]
fn in_a_group_name_special_characters_are_escaped_and_control_characters_are_replaced() {
    // A scrape that is shown in a terminal must not steer it.
    let name = format!("\"\\\u{1b}\n\u{202e}{}", std::process::id());
    let _named = Named::start(&name);
    let exporter = Exporter::on_any_port(&["--group-by", "comm", "--comm", &name]);
    let text = exporter.complete();
    let escaped = format!("\\\"\\\\   {}", std::process::id());
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
fn slow_clients_do_not_close_the_exporter_to_others() {
    let exporter = Exporter::on_any_port(&["--comm", "none"]);
    let slow: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(exporter.address()).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nX-a: ").unwrap();
            stream
        })
        .collect();
    let text = exporter.get("/metrics", "");
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert!(value(&text, "lowtide_exporter_scrapes_total{result=\"busy\"}") >= 44.0, "{text}");
    drop(slow);
}

#[test]
fn a_connection_without_a_request_is_closed_before_an_idle_one() {
    let exporter = Exporter::on_any_port(&["--comm", "none"]);
    let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut idle = TcpStream::connect(exporter.address()).unwrap();
    let mut slow = TcpStream::connect(exporter.address()).unwrap();
    idle.write_all(request).unwrap();
    assert_ne!(idle.read(&mut [0; 1024]).unwrap(), 0);
    slow.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    // A byte now and then does not extend the time.
    slow.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    until("the end of the slow connection", || match slow.read(&mut [0; 1024]) {
        Ok(_) => Some(()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(()),
        Err(_) => slow.write_all(b"X").err().map(drop),
    });
    idle.write_all(request).unwrap();
    assert_ne!(idle.read(&mut [0; 1024]).unwrap(), 0);
}

/// The password `secret`, hashed by bcrypt with the smallest cost.
const HASH: &str = "$2y$04$6qi/1Gh1OlkC7n2SuCcKs.CMMCjac3aHcF2uh35r3UFpuxQFE7ctG";

/// Starts an exporter at an address, for users whose password is `secret`.
fn with_users(home: &Path, listen: &str, users: &[&str]) -> Exporter {
    let config = home.join("web-config.yml");
    let users: String = users.iter().map(|user| format!("  {user}: {HASH}\n")).collect();
    std::fs::write(&config, format!("basic_auth_users:\n{users}")).unwrap();
    let config = config.to_str().unwrap();
    Exporter::start(&["--listen", listen, "--web-config", config, "--comm", "none"])
}

fn authorization(credentials: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(credentials))
}

#[test]
fn wrong_passwords_are_verified_one_at_a_time() {
    let home = tempfile::tempdir().unwrap();
    let exporter = with_users(home.path(), "127.0.0.1:0", &["alice"]);
    let count =
        || std::fs::read_dir(format!("/proc/{}/task", exporter.child.id())).unwrap().count();
    let (address, is_over) = (exporter.address(), AtomicBool::new(false));
    let wrong = |client: usize| {
        for turn in 0..2 {
            let header = authorization(&format!("alice:{client} {turn}"));
            let answer = ask(TcpStream::connect(address).unwrap(), "/metrics", &header);
            // 503: not verified in time.
            let is_refused = ["HTTP/1.1 401", "HTTP/1.1 503"].map(|head| answer.starts_with(head));
            assert!(is_refused.contains(&true), "{answer}");
        }
    };
    let most = std::thread::scope(|scope| {
        let threads = scope.spawn(|| {
            let counts = std::iter::repeat_with(count);
            counts.take_while(|_| !is_over.load(Ordering::Relaxed)).max()
        });
        let clients: Vec<_> = (0..40).map(|client| scope.spawn(move || wrong(client))).collect();
        for client in clients {
            client.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        threads.join().unwrap()
    });
    // The server, the survey's two threads and the thread of an inspection, one that verifies, and
    // a few that have just verified and are not idle yet: fewer than a quarter of the clients.
    assert!(most.unwrap() < 10, "{most:?}");
}

#[test]
fn clients_with_wrong_passwords_do_not_keep_scrapers_out() {
    let home = tempfile::tempdir().unwrap();
    let exporter = with_users(home.path(), "0.0.0.0:0", &["alice", "bob"]);
    let port: u16 = exporter.address().rsplit(':').next().unwrap().parse().unwrap();
    let connect = |last: u8| {
        let [own, other] = [[127, 0, 0, last], [127, 0, 0, 1]].map(IpAddr::from);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(own, 0).into()).unwrap();
        socket.connect(&SocketAddr::new(other, port).into()).unwrap();
        TcpStream::from(socket)
    };
    let right = |last: u8, user: &str| {
        let answer = ask(connect(last), "/metrics", &authorization(&format!("{user}:secret")));
        assert!(answer.starts_with("HTTP/1.1 200"), "{user} at 127.0.0.{last}: {answer}");
        value(&answer, "lowtide_exporter_scrapes_total{result=\"unauthorized\"}")
    };
    right(1, "alice");
    let is_over = AtomicBool::new(false);
    let flood = |client: usize| {
        for turn in (0_u64..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
            ask(connect(1), "/metrics", &authorization(&format!("alice:{client} {turn}")));
        }
    };
    std::thread::scope(|scope| {
        (0..30).for_each(|client| drop(scope.spawn(move || flood(client))));
        // One whose password is known, at the same address.
        until("refusals", || (right(1, "alice") >= 3.0).then_some(()));
        // One whose password is not known yet, at another address.
        right(2, "bob");
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn scrapes_are_not_charged_to_the_survey() {
    let name = format!("sc{}", std::process::id());
    let exporter = Exporter::on_any_port(&["--budget", "0.1%", "--comm", &name]);
    let cpu = "lowtide_exporter_serving_cpu_seconds_total";
    // Three times the CPU time that the survey may use in its first minutes.
    until("CPU time for scrapes", || {
        let text = (0..100).map(|_| exporter.get("/metrics", "")).next_back().unwrap();
        (value(&text, cpu) > 1.0).then_some(())
    });
    let _named = Named::start(&name);
    exporter.complete();
}

#[test]
fn a_unix_socket_is_removed_even_if_the_exporter_is_killed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("socket");
    let exporter = Exporter::start(&["--listen", &format!("unix:{}", path.display())]);
    assert!(path.exists());
    drop(exporter);
    until("the removal", || (!path.exists()).then_some(()));
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
    let exporter = with_users(home.path(), "127.0.0.1:0", &["alice"]);
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

    let (directory, config) = (certificate(), home.path().join("web-config.yml"));
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

/// Returns an exporter that is started as `setpriv` with these words starts it.
fn with_privileges(words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(words).arg(lowtide().get_program());
    command.arg("exporter").env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

const TWO: &str = "-all,+sys_ptrace,+dac_read_search";
/// CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE, as `/proc/PID/status` shows them.
const TWO_BITS: &str = "0000000000080004";
const NONE: &str = "0000000000000000";

/// The ways in which the exporter is deployed: the words for `setpriv`, the user of the exporter,
/// and its bounding set, which only CAP_SETPCAP can empty.
fn deployments() -> [(Vec<String>, &'static str, &'static str); 4] {
    let words = |text: String| text.split(' ').map(str::to_owned).collect();
    [
        // root
        (words("--nnp".to_owned()), "65534", NONE),
        // root in a container with capabilities to change the user, as in the DaemonSet, and
        // without them
        (
            words(format!("--bounding-set={TWO},+setuid,+setgid --no-new-privs")),
            "65534",
            "00000000000800c4",
        ),
        (words(format!("--bounding-set={TWO} --no-new-privs")), "0", TWO_BITS),
        // a user of its own, as in the unit for systemd
        (
            words(format!(
                "--bounding-set={TWO} --inh-caps={TWO} --ambient-caps={TWO} --reuid=61234 \
                 --regid=61234 --clear-groups"
            )),
            "61234",
            TWO_BITS,
        ),
    ]
}

/// Returns a field of a thread's status.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

fn holds_no_privileges(status: &str, user: &str, capabilities: &str, bounding: &str) {
    let expected = [
        ("Uid", [user; 4].join("\t")),
        ("Gid", [user; 4].join("\t")),
        ("CapInh", NONE.to_owned()),
        ("CapPrm", capabilities.to_owned()),
        ("CapEff", capabilities.to_owned()),
        ("CapBnd", bounding.to_owned()),
        ("CapAmb", NONE.to_owned()),
        ("NoNewPrivs", "1".to_owned()),
        ("Seccomp", "2".to_owned()),
    ];
    for (name, value) in expected {
        assert_eq!(field(status, name), value, "{name}: {status}");
    }
}

#[test]
#[ignore = "needs root, and setpriv (Debian: util-linux)"]
fn every_thread_of_the_exporter_has_only_the_privileges_for_reading() {
    let named = Named::start(&format!("pr{}", std::process::id()));
    for (words, user, bounding) in deployments() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = with_privileges(&words);
        let exporter =
            Exporter::spawn(command.args(["--listen", "127.0.0.1:0", "--comm", &named.name]));
        let text = exporter.complete();
        // It can still read processes of another user.
        assert!(text.contains("lowtide_resident_bytes{"), "{text}");
        assert!(
            !text
                .lines()
                .any(|line| line.starts_with("lowtide_unreadable") && !line.ends_with(" 0")),
            "{text}"
        );
        let tasks = std::fs::read_dir(format!("/proc/{}/task", exporter.child.id())).unwrap();
        let mut threads = 0;
        for task in tasks.flatten() {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap();
            holds_no_privileges(&status, user, TWO_BITS, bounding);
            threads += 1;
        }
        assert!(threads >= 3, "{threads}");
    }
}

#[test]
#[ignore = "needs root, and setpriv (Debian: util-linux)"]
fn code_in_the_exporter_cannot_change_processes_files_or_the_system() {
    let inject = fixture("inject", &[]);
    let mut victim = Named::start(&format!("vi{}", std::process::id()));
    for (words, _, _) in deployments() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = with_privileges(&words);
        let exporter = Exporter::spawn(command.args(["--listen", "127.0.0.1:0", "--comm", "none"]));
        let pids = [exporter.child.id(), victim.child.id()].map(|pid| pid.to_string());
        let done = until("a system call of its first thread", || {
            let done = Command::new(&inject).args(&pids).output().unwrap();
            (done.status.code() != Some(3)).then_some(done)
        });
        assert!(done.status.success(), "{done:?}");
        let text = String::from_utf8(done.stdout).unwrap();
        let (first, refused) = text.split_once('\n').unwrap();
        assert_eq!(first, "open for reading: 0", "{words:?}");
        assert!(refused.lines().count() == 17, "{text}");
        for line in refused.lines() {
            assert!(line.ends_with(": 1"), "{words:?}: {line}");
        }
        assert!(victim.child.try_wait().unwrap().is_none());
        assert!(exporter.get("/metrics", "").starts_with("HTTP/1.1 200"));
        assert_eq!(exporter.end(), Some(0));
    }
}

#[test]
#[ignore = "needs root"]
fn the_process_that_writes_a_text_file_is_the_owner_of_its_directory_without_capabilities() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for owner in [0, 61235] {
        chown(home.path(), Some(owner), Some(owner)).unwrap();
        let path = home.path().join(format!("{owner}.prom"));
        let exporter = Exporter::start(&["--textfile", path.to_str().unwrap()]);
        let file = until("the file", || std::fs::metadata(&path).ok());
        assert_eq!((file.uid(), file.gid()), (owner, owner));
        let own = exporter.child.id();
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", children.trim())).unwrap();
        holds_no_privileges(&status, &owner.to_string(), NONE, NONE);
        assert_eq!(exporter.end(), Some(0));
    }
}
