//! Tests of the loop against servers built on hyper.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod server;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lowtide_load::{
    Available, Event, HttpVersion, LoadEvent, LoadObserver, LoadSpec, LoadState, OtherProtocol,
    RequestFailure, RequestTemplate, RunError, Shape, run,
};
use lowtide_model::load::{LoadReport, LoadRound};
use server::Speaks;

const H2: Speaks = Speaks::Http2(10_000);

fn plan(url: &str) -> LoadSpec {
    LoadSpec {
        targets: vec![url.parse().unwrap()],
        connections: 4,
        streams: 100,
        shape: Shape::Burst(400),
        linger: Duration::ZERO,
        timeout: Duration::from_secs(30),
        idle_close: None,
        request: RequestTemplate {
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Arc::default(),
        },
        version: HttpVersion::Auto,
        insecure: false,
        sample_interval: Duration::from_millis(100),
    }
}

fn h2(url: &str) -> LoadSpec {
    LoadSpec { version: HttpVersion::Http2, ..plan(url) }
}

fn available() -> Available {
    Available {
        files: lowtide_load::raise_open_files(),
        memory_bytes: None,
        ports: lowtide_load::ephemeral_ports(),
    }
}

fn try_run(plan: &LoadSpec) -> Result<LoadReport, RunError> {
    run(plan, &available(), &mut (), &AtomicBool::new(false))
}

fn one_round(plan: &LoadSpec) -> LoadRound {
    let report = try_run(plan).unwrap();
    assert_eq!(report.rounds.len(), 1);
    whole(&report.rounds[0]);
    report.rounds[0].clone()
}

/// Checks that each request has an outcome, and each failure a cause.
fn whole(round: &LoadRound) {
    assert_eq!(round.requests, round.succeeded + round.failed, "{round:?}");
    assert_eq!(round.errors.values().sum::<u64>(), round.failed, "{round:?}");
}

fn repeat(times: u32, shape: Shape, pause: Duration) -> Shape {
    let between = Box::new(Shape::Idle { time: pause, trickle: None });
    Shape::Repeat { times, round: vec![shape], between }
}

fn no_connection(plan: &LoadSpec) -> RequestFailure {
    match try_run(plan).unwrap_err() {
        RunError::NoConnection { failure, .. } => failure,
        other => panic!("{other}"),
    }
}

#[test]
fn a_whole_burst_is_in_flight_at_once_and_spread_over_the_connections() {
    let server = server::start(H2, false);
    let round = one_round(&LoadSpec { streams: 1000, ..h2(&format!("http://{server}/together")) });
    assert_eq!((round.succeeded, round.failed), (400, 0), "{:?}", round.errors);
    assert_eq!(round.responses.values().copied().collect::<Vec<_>>(), [100; 4]);
    assert_eq!(round.peak_in_flight, 400);
}

#[test]
fn http1_sends_one_request_at_a_time_on_a_persistent_connection() {
    let server = server::start(Speaks::Http1, false);
    let round = one_round(&LoadSpec { streams: 1, ..plan(&format!("http://{server}/peer")) });
    assert_eq!((round.succeeded, round.peak_in_flight), (400, 4));
    assert_eq!(round.distinct_responses, 4);
}

#[test]
fn bodies_are_sent_completely_over_both_versions() {
    for (speaks, version) in [(Speaks::Http1, HttpVersion::Http1), (H2, HttpVersion::Http2)] {
        let server = server::start(speaks, false);
        let mut plan = plan(&format!("http://{server}/"));
        plan.version = version;
        plan.shape = Shape::Burst(20);
        plan.request.method = "POST".to_owned();
        plan.request.body = vec![7; 300_000].into();
        let round = one_round(&plan);
        assert_eq!(round.responses.get("POST 300000"), Some(&20), "{round:?}");
    }
}

#[test]
fn tls_negotiates_the_version_and_requires_a_trusted_certificate() {
    for speaks in [Speaks::Http1, H2] {
        let server = server::start(speaks, true);
        let mut plan = plan(&format!("https://localhost:{}/", server.port()));
        assert!(matches!(no_connection(&plan), RequestFailure::NotTrusted(_)));
        plan.insecure = true;
        let round = one_round(&plan);
        assert_eq!((round.succeeded, round.failed), (400, 0), "{:?}", round.errors);
        plan.version = if speaks == H2 { HttpVersion::Http1 } else { HttpVersion::Http2 };
        assert_eq!(no_connection(&plan), RequestFailure::NoProtocol);
    }
}

#[test]
fn another_protocol_or_a_closed_port_is_reported_as_the_failure() {
    let (one, two) = (server::start(Speaks::Http1, false), server::start(H2, false));
    // hyper recognises HTTP/2, and closes without a response.
    assert_eq!(no_connection(&h2(&format!("http://{one}/"))), RequestFailure::Closed);
    // Its reply may be lost when it then resets the connection.
    let said = no_connection(&plan(&format!("http://{two}/")));
    assert!(
        matches!(said, RequestFailure::NotHttp1(OtherProtocol::Http2) | RequestFailure::Reset),
        "{said}"
    );
    let tls = LoadSpec { insecure: true, ..plan(&format!("https://{one}/")) };
    assert!(matches!(no_connection(&tls), RequestFailure::Tls(_)));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(no_connection(&plan(&format!("http://{nobody}/"))), RequestFailure::Refused);
    assert_eq!(no_connection(&plan(&format!("tcp:{nobody}"))), RequestFailure::Refused);
}

#[test]
fn a_lower_stream_limit_of_the_server_is_respected_and_noted() {
    let server = server::start(Speaks::Http2(10), false);
    let report = try_run(&h2(&format!("http://{server}/soon"))).unwrap();
    let round = &report.rounds[0];
    assert_eq!((round.succeeded, round.peak_in_flight), (400, 40), "{:?}", round.errors);
    assert!(report.notes[0].starts_with("the server permits 10 streams"), "{:?}", report.notes);
}

#[test]
fn a_request_without_a_timely_response_fails_over_both_versions() {
    for (speaks, version) in [(Speaks::Http1, HttpVersion::Http1), (H2, HttpVersion::Http2)] {
        let server = server::start(speaks, false);
        let mut plan = plan(&format!("http://{server}/never"));
        plan.version = version;
        plan.timeout = Duration::from_secs(2);
        plan.shape = Shape::Burst(8);
        let round = one_round(&plan);
        assert_eq!(round.errors.get("timed out"), Some(&8), "{round:?}");
    }
}

#[test]
fn a_scheduled_request_that_times_out_counts_only_in_latency_with_timeouts() {
    for (speaks, version, connections) in
        [(Speaks::Http1, HttpVersion::Http1, 1), (H2, HttpVersion::Http2, 4)]
    {
        let server = server::start(speaks, false);
        let mut plan = plan(&format!("http://{server}/never"));
        plan.version = version;
        plan.connections = connections;
        plan.timeout = Duration::from_secs(2);
        plan.shape = Shape::Ramp { rate: "100/s".parse().unwrap(), count: 8 };
        let round = one_round(&plan);
        assert_eq!((round.timed_out, round.failed_ratio), (Some(8), Some(1.0)), "{round:?}");
        assert_eq!(round.latency_s.max, 0.0);
        // No request was given up before its timeout.
        assert!(round.latency_with_timeouts_s.unwrap().p50 >= 1.99, "{round:?}");
    }
}

#[test]
fn a_round_without_timeouts_has_a_single_latency() {
    let server = server::start(H2, false);
    let round = one_round(&h2(&format!("http://{server}/")));
    assert_eq!((round.timed_out, round.latency_with_timeouts_s), (None, None));
}

/// Starts a server that answers one request, closes its port, and then closes the connection.
fn dying() -> SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        drop(listener);
        let _ = stream.read(&mut [0; 4096]);
    });
    address
}

#[test]
fn requests_that_were_never_sent_are_not_reported_as_refused() {
    let plan = LoadSpec { connections: 1, ..plan(&format!("http://{}/", dying())) };
    let round = one_round(&plan);
    assert_eq!((round.requests, round.succeeded, round.failed), (400, 1, 399));
    let never = "never sent: all connections were given up (connection refused)";
    assert_eq!(round.errors.get(never), Some(&398), "{round:?}");
    assert_eq!(round.errors.get("connection refused"), None);
}

#[test]
fn a_response_with_an_error_status_is_a_failure() {
    let server = server::start(H2, false);
    let round = one_round(&h2(&format!("http://{server}/status")));
    assert_eq!(round.errors.get("answered with status 503"), Some(&400));
    assert!(round.responses.is_empty());
}

/// Starts a server that reads a request, and closes.
fn closing() -> SocketAddr {
    server::serve(|mut stream, _| async move {
        let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 4096]).await;
    })
}

#[test]
fn requests_fail_if_the_server_closes_early_and_the_counts_add_up() {
    let round = one_round(&plan(&format!("http://{}/", closing())));
    assert_eq!((round.requests, round.succeeded, round.failed), (400, 0, 400));
}

#[test]
fn connections_are_reused_in_the_next_round_or_closed_when_idle() {
    let server = server::start(H2, false);
    let mut plan = h2(&format!("http://{server}/peer"));
    plan.shape = repeat(2, Shape::Burst(400), Duration::from_millis(400));
    let peers = |plan: &LoadSpec| {
        let rounds = try_run(plan).unwrap().rounds;
        rounds.iter().map(whole).for_each(drop);
        let keys = |round: &LoadRound| round.responses.keys().cloned().collect::<BTreeSet<_>>();
        (keys(&rounds[0]), keys(&rounds[1]))
    };
    // A connection that is established late may have had no request in its round: the others were
    // faster.
    let (first, second) = peers(&plan);
    assert!(!first.is_disjoint(&second), "{first:?} {second:?}");
    assert!(first.union(&second).count() <= 4, "{first:?} {second:?}");
    plan.idle_close = Some(Duration::from_millis(50));
    let (first, second) = peers(&plan);
    assert!(first.is_disjoint(&second), "{first:?} {second:?}");
}

#[test]
fn several_targets_alternate_by_round_and_a_trickle_is_counted_separately() {
    let (one, two) = (server::start(H2, false), server::start(H2, false));
    let mut plan = h2(&format!("http://{one}/peer"));
    plan.targets.push(format!("http://{two}/soon").parse().unwrap());
    let between =
        Box::new(Shape::Idle { time: Duration::from_millis(300), trickle: "20/s".parse().ok() });
    plan.shape = Shape::Repeat { times: 3, round: vec![Shape::Burst(40)], between };
    let rounds = try_run(&plan).unwrap().rounds;
    let urls: Vec<&str> = rounds.iter().filter_map(|round| round.url.as_deref()).collect();
    assert_eq!(urls, [format!("http://{one}/peer"), format!("http://{two}/soon"), urls[0].into()]);
    for round in &rounds {
        whole(round);
        assert_eq!(round.requests, 40);
    }
    let trickle = rounds[0].between_rounds.as_ref().unwrap();
    assert!(trickle.requests > 0 && trickle.requests == trickle.succeeded + trickle.failed);
    assert_eq!(rounds[2].between_rounds, None);
}

#[test]
fn a_ramp_sends_its_whole_schedule_and_a_sustained_load_succeeds() {
    let server = server::start(H2, false);
    let mut plan = h2(&format!("http://{server}/"));
    plan.shape = Shape::Ramp { rate: "1000/s".parse().unwrap(), count: 300 };
    assert_eq!(one_round(&plan).succeeded, 300);
    plan.shape = Shape::Sustain(Duration::from_secs(1));
    let round = one_round(&plan);
    assert!(round.succeeded > 0 && round.failed == 0, "{round:?}");
}

#[test]
fn bare_connections_are_held_and_those_that_the_server_closes_are_counted() {
    let server = server::start(H2, true);
    let mut plan = plan(&format!("tls:localhost:{}", server.port()));
    plan.insecure = true;
    plan.connections = 20;
    plan.shape = repeat(1, Shape::Burst(20), Duration::ZERO);
    let Shape::Repeat { round, .. } = &mut plan.shape else { unreachable!() };
    round.push(Shape::Hold(Duration::from_millis(300)));
    let held = one_round(&plan);
    assert_eq!((held.succeeded, held.peak_in_flight, held.closed_while_held), (20, 20, Some(0)));
    // A server that closes all of them once they are held.
    let (held, seen) = tokio::sync::watch::channel(false);
    let hasty = server::serve(move |stream, _| {
        let mut seen = seen.clone();
        async move {
            let _ = seen.wait_for(|held| *held).await;
            drop(stream);
        }
    });
    plan.targets = vec![format!("tcp:{hasty}").parse().unwrap()];
    let Shape::Repeat { round, .. } = &mut plan.shape else { unreachable!() };
    *round.last_mut().unwrap() = Shape::Hold(Duration::from_secs(600));
    let interrupt = AtomicBool::new(false);
    let mut observer = UntilClosed { held, interrupt: &interrupt };
    let report = run(&plan, &available(), &mut observer, &interrupt).unwrap();
    let held = &report.rounds[0];
    assert_eq!((held.succeeded, held.closed_while_held), (20, Some(20)));
}

/// Makes the server close the held connections, and interrupts when all of them are closed.
struct UntilClosed<'a> {
    held: tokio::sync::watch::Sender<bool>,
    interrupt: &'a AtomicBool,
}

impl LoadObserver for UntilClosed<'_> {
    fn observe(&mut self, progress: LoadEvent<'_>) {
        match progress {
            LoadEvent::State(LoadState { connections: 20, .. }) => self.held.send_replace(true),
            LoadEvent::State(LoadState { connections: 0, .. }) if *self.held.borrow() => {
                self.interrupt.swap(true, Ordering::Relaxed)
            }
            _ => false,
        };
    }
}

/// Interrupts as soon as `in_flight` requests are in flight.
struct Impatient<'a> {
    interrupt: &'a AtomicBool,
    in_flight: u64,
    marks: Vec<Event>,
}

impl LoadObserver for Impatient<'_> {
    fn observe(&mut self, progress: LoadEvent<'_>) {
        match progress {
            LoadEvent::State(state) if state.in_flight >= self.in_flight => {
                self.interrupt.store(true, Ordering::Relaxed);
            }
            LoadEvent::Mark { moment, .. } => self.marks.push(moment),
            _ => {}
        }
    }
}

#[test]
fn an_interrupted_load_reports_its_results_so_far() {
    let server = server::start(H2, false);
    let mut plan = h2(&format!("http://{server}/never"));
    plan.shape = repeat(3, Shape::Burst(400), Duration::ZERO);
    plan.sample_interval = Duration::from_millis(5);
    let interrupt = AtomicBool::new(false);
    let mut observer = Impatient { interrupt: &interrupt, in_flight: 400, marks: Vec::new() };
    let report = run(&plan, &available(), &mut observer, &interrupt).unwrap();
    assert!(report.interrupted);
    assert_eq!(report.rounds.len(), 1);
    whole(&report.rounds[0]);
    assert_eq!(report.rounds[0].errors.get("interrupted"), Some(&400));
    assert_eq!(observer.marks[0], Event::LoadBegin);
}
