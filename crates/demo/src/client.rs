//! A client that has all its requests in flight at once, over a few connections.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use lowtide_model::load::{Latency, LoadReport, LoadRound, MOST_RESPONSES, SCHEMA};

/// As many connections as the document has that the burst comes from.
const CONNECTIONS: usize = 8;

/// One burst.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    /// Where the server listens.
    pub address: SocketAddr,
    /// Requests in flight at once.
    pub streams: u32,
    /// How long the server lets each wait, in ms.
    pub expire_ms: u64,
}

#[derive(Default)]
struct Tally {
    sent: AtomicU64,
    in_flight: AtomicU64,
    peak_in_flight: AtomicU64,
    last_sent_us: AtomicU64,
    answers: Mutex<Answers>,
}

#[derive(Default)]
struct Answers {
    latencies: Vec<f32>,
    responses: BTreeMap<String, u64>,
    errors: BTreeMap<String, u64>,
}

/// Runs a burst, and tells what came of it.
///
/// # Errors
/// When no connection can be made.
pub fn run(burst: Burst) -> io::Result<LoadReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let round = runtime.block_on(one_round(burst))?;
    runtime.shutdown_background();
    Ok(LoadReport {
        schema: SCHEMA.to_owned(),
        client_peak_rss_bytes: peak_rss_bytes().unwrap_or(0),
        rounds: vec![round],
        interrupted: false,
        notes: Vec::new(),
    })
}

async fn one_round(burst: Burst) -> io::Result<LoadRound> {
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        senders.push(connect(burst.address).await?);
    }
    let uri = format!("http://{}/?expire={}", burst.address, burst.expire_ms);
    let begin = Instant::now();
    let tally = Arc::new(Tally::default());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..burst.streams as usize {
        let sender = senders[number % senders.len()].clone();
        tasks.spawn(one_request(sender, uri.clone(), begin, Arc::clone(&tally)));
    }
    while tasks.join_next().await.is_some() {}
    let completed_s = begin.elapsed().as_secs_f64();
    drop(senders);
    Ok(tally.round(burst.streams, completed_s))
}

async fn connect(address: SocketAddr) -> io::Result<SendRequest<Empty<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // Ends when the last sender is dropped.
    tokio::spawn(connection);
    Ok(sender)
}

async fn one_request(
    mut sender: SendRequest<Empty<Bytes>>,
    uri: String,
    begin: Instant,
    tally: Arc<Tally>,
) {
    let sent = Instant::now();
    let result = async {
        sender.ready().await?;
        let request = Request::get(uri).body(Empty::new()).map_err(|e| e.to_string());
        let request = match request {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        tally.begin(begin);
        let response = sender.send_request(request).await;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                tally.end();
                return Err(error);
            }
        };
        let status = response.status();
        let body = response.into_body().collect().await;
        tally.end();
        let text = String::from_utf8_lossy(&body?.to_bytes()).into_owned();
        if status.is_success() { Ok(Ok(text)) } else { Ok(Err(format!("status {status}"))) }
    }
    .await;
    let latency = sent.elapsed().as_secs_f32();
    let mut answers = tally.answers.lock().unwrap_or_else(PoisonError::into_inner);
    match result.unwrap_or_else(|error: hyper::Error| Err(error.to_string())) {
        Ok(body) => {
            answers.latencies.push(latency);
            *answers.responses.entry(body).or_default() += 1;
        }
        Err(error) => *answers.errors.entry(error).or_default() += 1,
    }
}

impl Tally {
    fn begin(&self, round: Instant) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak_in_flight.fetch_max(now, Ordering::Relaxed);
        let at = u64::try_from(round.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last_sent_us.fetch_max(at, Ordering::Relaxed);
    }

    fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    fn round(&self, requests: u32, completed_s: f64) -> LoadRound {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let succeeded = answers.latencies.len() as u64;
        let distinct = answers.responses.len();
        let mut responses = std::mem::take(&mut answers.responses);
        if distinct > MOST_RESPONSES {
            responses.clear();
        }
        LoadRound {
            round: 1,
            requests: u64::from(requests),
            succeeded,
            failed: u64::from(requests) - succeeded,
            peak_in_flight: self.peak_in_flight.load(Ordering::Relaxed),
            sent_s: self.last_sent_us.load(Ordering::Relaxed) as f64 / 1e6,
            completed_s,
            requests_per_s: succeeded as f64 / completed_s.max(1e-9),
            latency_s: Latency::of(&mut answers.latencies),
            responses,
            distinct_responses: distinct as u64,
            errors: std::mem::take(&mut answers.errors),
            ..LoadRound::default()
        }
    }
}

/// The most that this process has had resident.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    #[test]
    fn every_request_of_a_burst_is_answered_and_all_are_in_flight_at_once() {
        // The server runs for ever, so that it has to be a process; the test starts itself as one.
        if std::env::var_os("LOWTIDE_DEMO_SERVER").is_some() {
            crate::server::run("127.0.0.1:0".parse().unwrap()).unwrap();
            return;
        }
        let mut server = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "client::tests::every_request_of_a_burst_is_answered_and_all_are_in_flight_at_once",
                "--nocapture",
            ])
            .env("LOWTIDE_DEMO_SERVER", "1")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| line.split_once("listening on ").map(|(_, a)| a.parse().unwrap()))
            .unwrap();
        let report = run(Burst { address, streams: 500, expire_ms: 2000 }).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        let round = &report.rounds[0];
        assert_eq!((round.succeeded, round.failed), (500, 0), "{:?}", round.errors);
        assert_eq!(round.peak_in_flight, 500);
        assert_eq!(round.responses.values().sum::<u64>(), 500);
        assert!(round.latency_s.p50 >= 2.0);
    }
}
