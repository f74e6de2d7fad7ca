//! Plain TCP connections, with both ends in this process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::runtimes::{Gate, Runtimes, wait_until};
use crate::stage::Stage;

/// Number of other open files of the process.
const OTHER_FILES: u64 = 100;
/// Number of connections from one address to one port: there are fewer than 28,232 ports to connect
/// from.
const PER_ADDRESS: usize = 20_000;
/// Maximum number of connections that wait for the listener: fewer than the kernel's backlog, since
/// the kernel drops those above it, and retries them only seconds later.
const AT_ONCE: usize = 100;

/// Returns how many of the requested connections the file limit allows, after raising it as far as
/// possible.
///
/// # Errors
/// Fails if it does not allow a single one.
pub(crate) fn allowed(asked: usize) -> Result<usize, String> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let Some(files) = files else { return Ok(asked) };
    let allowed = usize::try_from(files.saturating_sub(OTHER_FILES) / 2).unwrap_or(usize::MAX);
    if allowed == 0 {
        return Err(format!(
            "no connection is possible with {files} open files: raise `ulimit -n`"
        ));
    }
    if allowed < asked {
        println!("of {asked} connections, {files} open files allow {allowed}");
    }
    Ok(allowed.min(asked))
}

/// The connections that failed.
#[derive(Default)]
struct Failures {
    count: AtomicUsize,
    last: Mutex<String>,
}

/// Runs one round.
pub(crate) fn round(stage: &Stage, runtimes: &Runtimes, count: usize) -> Result<(), String> {
    let (handle, own) = runtimes.of_round()?;
    let (server, client) = (Gate::new(), Gate::new());
    let failures = Arc::new(Failures::default());
    let mut listeners = Vec::new();
    for place in 0..count.div_ceil(PER_ADDRESS) {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + place as u32);
        let listener = handle
            .block_on(TcpListener::bind((address, 0)))
            .and_then(|listener| listener.local_addr().map(|at| (listener, at)));
        let (listener, at) =
            listener.map_err(|error| format!("{address} cannot be listened on: {error}"))?;
        let turn = Arc::new(Semaphore::new(AT_ONCE));
        listeners.push(handle.spawn(accept(listener, server.clone(), turn.clone())));
        for _ in 0..PER_ADDRESS.min(count - place * PER_ADDRESS) {
            handle.spawn(connect(at, client.clone(), turn.clone(), failures.clone()));
        }
    }
    wait_until(|| client.asleep() + failures.count.load(Ordering::Relaxed) == count);
    let open = client.asleep();
    if open < count {
        let last = failures.last.lock().unwrap_or_else(PoisonError::into_inner);
        return Err(format!("{} connections of {count} failed: {last}", count - open));
    }
    wait_until(|| server.asleep() == open);
    stage.announce("filled", &format!("{open} connections"));
    client.open();
    server.open();
    listeners.iter().for_each(tokio::task::JoinHandle::abort);
    wait_until(|| client.asleep() + server.asleep() == 0);
    stage.announce("emptied", "no connection");
    if let Some(own) = own {
        drop(own);
        stage.announce("dropped", "no runtime");
    }
    Ok(())
}

/// Accepts connections, and holds each in a task of its own.
async fn accept(listener: TcpListener, gate: Gate, turn: Arc<Semaphore>) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            turn.add_permits(1);
            tokio::spawn(hold(stream, gate.clone()));
        }
    }
}

/// Connects when it is its turn, and holds the connection.
async fn connect(to: SocketAddr, gate: Gate, turn: Arc<Semaphore>, failures: Arc<Failures>) {
    if let Ok(permit) = turn.acquire().await {
        permit.forget(); // the other end returns it
    }
    match TcpStream::connect(to).await {
        Ok(stream) => hold(stream, gate).await,
        Err(error) => {
            turn.add_permits(1);
            *failures.last.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
            failures.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn hold(stream: TcpStream, gate: Gate) {
    gate.sleep().await;
    drop(stream);
}
