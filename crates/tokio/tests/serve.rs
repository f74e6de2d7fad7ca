//! `serve` with clients that behave, and with those that do not.

#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::routing::{get, post};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lowtide_tokio::{Keeper, Limits, Overload, PeerAddr, Recycle, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(100);
const SHORT: Duration = Duration::from_millis(50);

/// A server in this process.
struct Server {
    address: SocketAddr,
    keeper: Keeper,
    /// Lets requests for `/wait` go on.
    go: Arc<Notify>,
    /// Ends the responses of `/endless`.
    end: Arc<Notify>,
    shutdown: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

fn recycle() -> Recycle {
    Recycle::new().min_age(Duration::ZERO).jitter(Duration::ZERO)
}

fn limits() -> Limits {
    Limits::new().max_concurrent_streams(10_000)
}

async fn start(limits: Limits, recycle: Recycle) -> Server {
    let keeper = Keeper::builder().recycle(recycle).start().unwrap();
    let go = Arc::new(Notify::new());
    let end = Arc::new(Notify::new());
    let (waiting, ending) = (Arc::clone(&go), Arc::clone(&end));
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route(
            "/peer",
            get(|Extension(PeerAddr(peer)): Extension<PeerAddr>| async move { peer.to_string() }),
        )
        .route(
            "/wait",
            get(move || {
                let waiting = Arc::clone(&waiting);
                async move {
                    waiting.notified().await;
                    "waited"
                }
            }),
        )
        .route("/endless", get(move || endless(Arc::clone(&ending))))
        .route("/upload", post(|body: axum::body::Bytes| async move { body.len().to_string() }))
        .route(
            "/panic",
            get(|| async {
                if true {
                    panic!("a handler that fails")
                }
            }),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (shutdown, signal) = oneshot::channel();
    let server = serve(listener, app)
        .keeper(keeper.clone())
        .limits(limits)
        .admit(|peer| peer.ip() != std::net::IpAddr::from([127, 0, 0, 9]))
        .with_graceful_shutdown(async {
            // A server whose sender is dropped ends as well.
            let _ = signal.await;
        });
    let task = tokio::spawn(server.into_future());
    Server { address, keeper, go, end, shutdown: Some(shutdown), task }
}

/// A response of unknown length, which ends when it is woken.
async fn endless(end: Arc<Notify>) -> Response<Body> {
    let end = async move {
        end.notified().await;
        Ok::<_, Infallible>("end")
    };
    Response::new(Body::from_stream(futures_util::stream::once(end)))
}

impl Server {
    async fn http2(&self) -> http2::SendRequest<Body> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.max_send_buf_size(1 << 20);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    async fn http1(&self) -> http1::SendRequest<Body> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Waits until a figure fulfils a condition.
    async fn wait_until(&self, what: &str, condition: impl Fn(&lowtide_tokio::Figures) -> bool) {
        let waiting = async {
            while !condition(&self.keeper.figures()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(LONG, waiting).await.is_err() {
            panic!("{what}: {:?}", self.keeper.figures());
        }
    }
}

fn request(server: &Server, path: &str) -> Request<Body> {
    let uri = format!("http://{}{path}", server.address);
    Request::builder().uri(uri).body(Body::empty()).unwrap()
}

/// A request of HTTP/1.1.
fn request1(path: &str) -> Request<Body> {
    Request::builder().uri(path).header("host", "a").body(Body::empty()).unwrap()
}

async fn text<B>(response: Response<B>) -> String
where
    B: hyper::body::Body<Data = axum::body::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let bytes = axum::body::to_bytes(Body::new(response.into_body()), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Sends so many requests to `/wait` at once, and lets them end.
async fn wide(server: &Server, sender: &http2::SendRequest<Body>, count: usize) {
    let before = server.keeper.figures().in_flight;
    let requests: Vec<_> = (0..count)
        .map(|_| tokio::spawn(sender.clone().send_request(request(server, "/wait"))))
        .collect();
    server.wait_until("all in flight", |now| now.in_flight == before + count).await;
    // Each handler waits by now, or finds a permit.
    while requests.iter().any(|request| !request.is_finished()) {
        server.go.notify_waiters();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for request in requests {
        assert_eq!(text(request.await.unwrap().unwrap()).await, "waited");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_are_served_and_the_address_of_the_client_is_known() {
    let server = start(limits(), recycle()).await;
    let response = server.http2().await.send_request(request(&server, "/")).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    assert_eq!(text(response).await, "hello");
    let response = server.http1().await.send_request(request1("/peer")).await.unwrap();
    assert!(text(response).await.starts_with("127.0.0.1:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wide_connection_is_recycled_when_it_has_drained_and_a_narrow_one_is_not() {
    let server = start(limits(), recycle()).await;
    let narrow = server.http2().await;
    wide(&server, &narrow, 99).await;
    let sender = server.http2().await;
    wide(&server, &sender, 100).await;
    server
        .wait_until("recycled", |now| now.recycled_connections == 1 && now.connections == 1)
        .await;
    assert!(sender.is_closed() && !narrow.is_closed());
    server.wait_until("closed", |now| now.closing_connections == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_an_endless_response_is_pinned_until_that_ends() {
    let server = start(limits(), recycle()).await;
    let mut sender = server.http2().await;
    let endless = sender.send_request(request(&server, "/endless")).await.unwrap();
    wide(&server, &sender, 100).await;
    server.wait_until("pinned", |now| now.pinned_connections == 1).await;
    let figures = server.keeper.figures();
    assert_eq!((figures.recycled_connections, figures.in_flight), (0, 1));
    assert!(figures.pinned_bytes > 90_000, "{figures:?}");
    server.end.notify_one();
    assert_eq!(text(endless).await, "end");
    server.wait_until("recycled", |now| now.recycled_connections == 1).await;
    server.wait_until("closed", |now| now.connections == 0).await;
    assert_eq!(server.keeper.figures().pinned_connections, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_on_http1_closes_its_connection_with_the_next_response() {
    let server = start(limits(), recycle()).await;
    let mut sender = server.http1().await;
    let body = Body::from(vec![7; 1 << 20]);
    let upload = Request::post("/upload").header("host", "a").body(body).unwrap();
    let response = sender.send_request(upload).await.unwrap();
    assert_eq!(response.headers().get("connection"), None);
    assert_eq!(text(response).await, (1 << 20).to_string());
    server.wait_until("recycled", |now| now.recycled_connections == 1).await;
    sender.ready().await.unwrap();
    let response = sender.send_request(request1("/")).await.unwrap();
    assert_eq!(response.headers()["connection"], "close");
    assert_eq!(text(response).await, "hello");
    server.wait_until("closed", |now| now.connections == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_answers_a_ping_loses_its_idle_connection() {
    let server = start(limits(), recycle()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // The preface, empty settings, and 100 requests for `/` in HPACK: GET, http, `/`, authority `a`.
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let path = b"\x82\x86\x04\x05/wait\x41\x01a";
    for stream in 0..100_u32 {
        bytes.extend([0, 0, path.len() as u8, 1, 5]);
        bytes.extend((stream * 2 + 1).to_be_bytes());
        bytes.extend(path);
    }
    stream.write_all(&bytes).await.unwrap();
    server.wait_until("all in flight", |now| now.in_flight == 100).await;
    while server.keeper.figures().in_flight > 0 {
        server.go.notify_waiters();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It reads all there is, and says nothing.
    let mut read = Vec::new();
    tokio::time::timeout(LONG, stream.read_to_end(&mut read)).await.unwrap().unwrap();
    server.wait_until("closed", |now| now.connections == 0).await;
    assert_eq!(server.keeper.figures().cut_connections, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_get_503_or_refused_stream() {
    for overload in [Overload::Unavailable, Overload::RefusedStream] {
        let limits = limits().max_requests(1).overload(overload);
        let server = start(limits, recycle()).await;
        let mut sender = server.http2().await;
        let first = tokio::spawn(sender.clone().send_request(request(&server, "/wait")));
        server.wait_until("one in flight", |now| now.in_flight == 1).await;
        let second = sender.send_request(request(&server, "/")).await;
        match overload {
            Overload::RefusedStream => {
                let error = second.unwrap_err();
                let source = std::error::Error::source(&error).unwrap();
                let reason = source.downcast_ref::<h2::Error>().unwrap().reason();
                assert_eq!(reason, Some(h2::Reason::REFUSED_STREAM));
            }
            _ => {
                let response = second.unwrap();
                assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
                assert_eq!(response.headers()["retry-after"], "1");
            }
        }
        let third = server.http1().await.send_request(request1("/")).await.unwrap();
        assert_eq!(third.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(server.keeper.figures().refused_requests, 2);
        while !first.is_finished() {
            server.go.notify_waiters();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(text(first.await.unwrap().unwrap()).await, "waited");
        let last = sender.send_request(request(&server, "/")).await.unwrap();
        assert_eq!(last.status(), StatusCode::OK);
    }
}

/// Connects from an address of the loopback network.
async fn connect_from(server: &Server, last: u8) -> std::io::Result<TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0)))?;
    socket.connect(server.address).await
}

/// Returns whether a connection from this address is reset, before or after it is established.
async fn is_reset(server: &Server, last: u8) -> bool {
    let read = async {
        let mut stream = connect_from(server, last).await?;
        stream.read(&mut [0; 64]).await
    };
    let read = tokio::time::timeout(LONG, read).await.unwrap();
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

/// Returns the answer to a request from this address; `None` if the connection is reset.
async fn hello_from(server: &Server, last: u8) -> Option<String> {
    let stream = connect_from(server, last).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    Some(text(sender.send_request(request1("/")).await.ok()?).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_with_too_many_connections_and_one_that_is_not_admitted_are_reset() {
    let limits = limits().max_connections_per_address(2);
    let server = start(limits, recycle()).await;
    assert!(is_reset(&server, 9).await);
    let first = connect_from(&server, 2).await.unwrap();
    let _second = connect_from(&server, 2).await.unwrap();
    assert!(is_reset(&server, 2).await);
    assert_eq!(server.keeper.figures().refused_connections, 2);
    assert_eq!(hello_from(&server, 3).await.as_deref(), Some("hello"));
    // The address may connect again as soon as a connection of it has ended.
    drop(first);
    let again = async {
        loop {
            if let Some(answer) = hello_from(&server, 2).await {
                break answer;
            }
        }
    };
    assert_eq!(tokio::time::timeout(LONG, again).await.unwrap(), "hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_places_are_taken_a_connection_waits_until_one_is_free() {
    let limits = limits().max_connections(1);
    let server = start(limits, recycle()).await;
    let mut first = server.http1().await;
    assert_eq!(first.send_request(request1("/")).await.unwrap().status(), StatusCode::OK);
    let mut second = server.http1().await;
    let waiting = tokio::spawn(async move { second.send_request(request1("/")).await });
    tokio::time::sleep(SHORT).await;
    assert!(!waiting.is_finished() && server.keeper.figures().connections == 1);
    drop(first);
    let response = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_send_nothing_half_a_preface_or_half_a_header_are_closed() {
    let limits = limits().first_byte_timeout(SHORT).header_timeout(SHORT);
    let server = start(limits, recycle()).await;
    for bytes in ["", "PRI * HTT", "GET / HTTP/1.1\r\nhost:"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut read = Vec::new();
        // It ends, whether by a reset or not.
        let ended = tokio::time::timeout(LONG, stream.read_to_end(&mut read)).await;
        assert!(ended.is_ok(), "{bytes:?}");
    }
    server.wait_until("closed", |now| now.connections == 0).await;
    // A client that has closed its side gets its answer.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    assert!(read.is_empty() || read.ends_with(b"hello"), "{:?}", String::from_utf8_lossy(&read));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed_and_one_with_a_request_is_not() {
    let limits = limits().header_timeout(SHORT).idle_timeout(SHORT);
    let server = start(limits, recycle()).await;
    let mut idle = server.http2().await;
    assert_eq!(idle.send_request(request(&server, "/")).await.unwrap().status(), StatusCode::OK);
    let busy = server.http2().await;
    let waiting = tokio::spawn(busy.clone().send_request(request(&server, "/wait")));
    server.wait_until("one is closed", |now| now.connections == 1 && now.in_flight == 1).await;
    assert!(idle.is_closed() && !waiting.is_finished());
    while !waiting.is_finished() {
        server.go.notify_waiters();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(text(waiting.await.unwrap().unwrap()).await, "waited");
    server.wait_until("both are closed", |now| now.connections == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_leaves_no_request_in_flight() {
    let server = start(limits(), recycle()).await;
    let mut sender = server.http2().await;
    assert!(sender.send_request(request(&server, "/panic")).await.is_err());
    assert!(server.http1().await.send_request(request1("/panic")).await.is_err());
    server.wait_until("none in flight", |now| now.in_flight == 0).await;
    assert_eq!(sender.send_request(request(&server, "/")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_shutdown_waits_for_requests_and_a_timeout_ends_them() {
    let mut server = start(limits(), recycle()).await;
    let sender = server.http2().await;
    let waiting = tokio::spawn(sender.clone().send_request(request(&server, "/wait")));
    server.wait_until("one in flight", |now| now.in_flight == 1).await;
    // One that has not sent anything does not hold it up.
    let _silent = TcpStream::connect(server.address).await.unwrap();
    server.shutdown.take().unwrap().send(()).unwrap();
    let is_refused = async { while TcpStream::connect(server.address).await.is_ok() {} };
    tokio::time::timeout(LONG, is_refused).await.unwrap();
    assert!(!server.task.is_finished() && !waiting.is_finished());
    while !waiting.is_finished() {
        server.go.notify_waiters();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(text(waiting.await.unwrap().unwrap()).await, "waited");
    tokio::time::timeout(LONG, server.task).await.unwrap().unwrap().unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/", get(std::future::pending::<()>));
    let (shutdown, signal) = oneshot::channel();
    let server = serve(listener, app)
        .with_graceful_shutdown(async { drop::<Result<(), _>>(signal.await) })
        .shutdown_timeout(SHORT);
    let task = tokio::spawn(server.into_future());
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = tokio::spawn(async move { sender.send_request(request1("/")).await });
    tokio::time::sleep(SHORT).await;
    shutdown.send(()).unwrap();
    tokio::time::timeout(LONG, task).await.unwrap().unwrap().unwrap();
    assert!(request.await.unwrap().is_err());
}
