//! Plain TCP connections, with both ends in this process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::options::Options;
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
    stage.drop_runtime(own, "no runtime");
    Ok(())
}

/// Runs one round of a million attempts at once, as the post's program makes them: each is a
/// task that is spawned by another task, connects to this process, and holds its connection for a
/// while. Those that fail end at once. The limits of files and ports are left as they are.
pub(crate) fn attempts(
    stage: &Stage,
    runtimes: &Runtimes,
    options: &Options,
) -> Result<(), String> {
    let (handle, own) = runtimes.of_round()?;
    let (count, sleep) = (options.count, options.sleep);
    let listener = handle.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let listener = listener.map_err(|error| format!("no port can be listened on: {error}"))?;
    let at = listener.local_addr().map_err(|error| error.to_string())?;
    let server = handle.spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(hold_for(stream, sleep))),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    let [connected, failed, ended] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
    let all = [&connected, &failed, &ended].map(Arc::clone);
    handle.spawn(async move {
        for _ in 0..count {
            let [connected, failed, ended] = all.clone();
            tokio::spawn(async move {
                match TcpStream::connect(at).await {
                    Ok(stream) => {
                        connected.fetch_add(1, Ordering::Relaxed);
                        hold_for(stream, sleep).await;
                    }
                    Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
                }
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    let number = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    wait_until(|| number(&connected) + number(&failed) == count);
    stage.announce("filled", &format!("{} connections in {count} attempts", number(&connected)));
    wait_until(|| number(&ended) == count);
    server.abort();
    stage.announce("emptied", "no connection");
    stage.drop_runtime(own, "no runtime");
    Ok(())
}

async fn hold_for(stream: TcpStream, time: Duration) {
    tokio::time::sleep(time).await;
    drop(stream);
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
