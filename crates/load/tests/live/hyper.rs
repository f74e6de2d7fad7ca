//! Tests against hyper's server, whose HTTP/2 is the crate `h2`.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lowtide_load::{ErrorCode, RequestFailure};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::client::{Client, request};

/// The state of a server.
struct State {
    /// Number of requests on `/gate` that are answered together.
    gate: usize,
    arrived: AtomicUsize,
    open: Semaphore,
    /// Shuts the server down gracefully after a request on `/stop`.
    stop: Semaphore,
}

/// Serves one connection in a separate thread.
fn serve(gate: usize, configure: impl FnOnce(&mut Builder<TokioExecutor>)) -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let mut builder = Builder::new(TokioExecutor::new());
    configure(&mut builder);
    thread::spawn(move || runtime.block_on(connection(listener, &builder, gate)));
    address
}

async fn connection(listener: TcpListener, builder: &Builder<TokioExecutor>, gate: usize) {
    let (socket, _) = listener.accept().await.unwrap();
    let arrived = AtomicUsize::new(0);
    let (open, stop) = (Semaphore::new(0), Semaphore::new(0));
    let state = Arc::new(State { gate, arrived, open, stop });
    let service = service_fn(|request| answer(request, Arc::clone(&state)));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let mut stopped = pin!(state.stop.acquire());
    let has_ended = poll_fn(|context| match connection.as_mut().poll(context) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending => stopped.as_mut().poll(context).map(|_| false),
    });
    if has_ended.await {
        return;
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
) -> Result<Response<Full<Bytes>>, io::Error> {
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/gate" => {
            let arrived = 1 + state.arrived.fetch_add(1, Ordering::Relaxed);
            if arrived == state.gate {
                state.open.add_permits(arrived);
            }
            state.open.acquire().await.unwrap().forget();
        }
        "/never" => std::future::pending().await,
        "/stop" => state.stop.add_permits(1),
        "/error" => return Err(io::Error::other("as the test wants it")),
        _ => {}
    }
    let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    let body = if body.is_empty() { Bytes::from(format!("this is {path}")) } else { body };
    Ok(Response::new(Full::new(body)))
}

#[test]
fn ten_thousand_requests_are_in_flight_at_once_and_all_are_answered() {
    let many = 10_000;
    let server = serve(many, |builder| {
        builder.max_concurrent_streams(20_000);
    });
    let mut client = Client::connect(server, &request("GET", "/gate", b""));
    client.run(many);
    assert_eq!((client.max_in_flight, client.outcomes.count(200, b"this is /gate")), (many, many));
    assert!(client.goodbye().failed.is_empty());
}

#[test]
fn the_concurrent_stream_limit_of_the_server_is_respected() {
    let server = serve(0, |builder| {
        builder.max_concurrent_streams(3);
    });
    let mut client = Client::connect(server, &request("GET", "/", b""));
    client.run(500);
    assert_eq!((client.max_in_flight, client.outcomes.count(200, b"this is /")), (3, 500));
}

/// Returns `length` bytes without a short period.
fn body(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * at / 251) as u8).collect()
}

#[test]
fn bodies_of_any_length_are_echoed_unchanged() {
    for (length, many) in [(1, 1000), (5_000, 300), (100_000, 50), (5_000_000, 3)] {
        let body = body(length);
        let server = serve(0, |_| {});
        let mut client = Client::connect(server, &request("POST", "/", &body));
        client.run(many);
        assert_eq!(client.outcomes.count(200, &body), many, "{length}: {:?}", client.outcomes);
    }
}

#[test]
fn bodies_pass_through_small_windows() {
    let body = body(200_000);
    let server = serve(0, |builder| {
        builder.initial_stream_window_size(1000).initial_connection_window_size(5000);
    });
    let mut client = Client::connect(server, &request("POST", "/", &body));
    client.run(10);
    assert_eq!(client.outcomes.count(200, &body), 10, "{:?}", client.outcomes);
}

#[test]
fn a_server_without_a_header_table_is_supported() {
    let server = serve(0, |builder| {
        builder.header_table_size(0);
    });
    let mut client = Client::connect(server, &request("GET", "/", b""));
    client.run(100);
    assert_eq!(client.outcomes.count(200, b"this is /"), 100, "{:?}", client.outcomes);
}

#[test]
fn a_shutdown_completes_started_requests_and_fails_the_rest_as_not_processed() {
    let server = serve(0, |_| {});
    let mut client = Client::connect(server, &request("GET", "/stop", b""));
    client.run_until(1_000_000, |client| client.is_draining());
    let sent = client.sent();
    client.run(sent);
    let outcomes = client.outcomes;
    let not_processed = RequestFailure::NotProcessed(ErrorCode::NO_ERROR);
    let failed = outcomes.failed.get(&not_processed).copied().unwrap_or(0);
    assert!(outcomes.count(200, b"this is /stop") > 0);
    assert_eq!(outcomes.count(200, b"this is /stop") + failed, sent, "{outcomes:?}");
}

#[test]
fn requests_that_the_server_resets_fail_with_the_error_code() {
    let server = serve(0, |_| {});
    let mut client = Client::connect(server, &request("GET", "/error", b""));
    client.run(100);
    let internal_error = RequestFailure::StreamReset(ErrorCode(2));
    assert_eq!(client.outcomes.failed, [(internal_error, 100)].into());
}

#[test]
fn requests_that_time_out_make_room_for_others() {
    let server = serve(0, |builder| {
        builder.max_concurrent_streams(10);
    });
    let mut client = Client::connect(server, &request("GET", "/never", b""));
    for round in 1..=5 {
        client.run_until(10 * round, |client| client.sent() == 10 * round);
        client.expire();
    }
    assert_eq!(client.outcomes.failed, [(RequestFailure::TimedOut, 50)].into());
    assert_eq!(client.goodbye().in_all, 50);
}
