//! A server in this process, for tests.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::routing::{any, get, post};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lowtide_tokio::{Keeper, Limits, PeerAddr, Recycle, serve};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

pub(crate) const LONG: Duration = Duration::from_secs(100);
pub(crate) const SHORT: Duration = Duration::from_millis(50);
/// A time that is longer than a step of a test, also on a busy machine.
pub(crate) const NOTICEABLE: Duration = Duration::from_secs(5);

/// A server in this process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) keeper: Keeper,
    /// Lets the handlers of `/wait` return.
    pub(crate) go: Arc<Notify>,
    /// Ends the responses of `/endless`.
    pub(crate) end: Arc<Notify>,
    pub(crate) shutdown: Option<oneshot::Sender<()>>,
    pub(crate) task: JoinHandle<std::io::Result<()>>,
}

pub(crate) fn recycle() -> Recycle {
    Recycle::new().min_age(Duration::ZERO).jitter(Duration::ZERO)
}

pub(crate) fn limits() -> Limits {
    Limits::new().max_concurrent_streams(10_000)
}

pub(crate) async fn start(limits: Limits, recycle: Recycle) -> Server {
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
        .route("/echo", any(echo))
        .route("/medium", get(|| async { vec![b'a'; 1 << 18] }))
        .route("/large", get(|| async { vec![7; 256 << 20] }))
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
        .with_peer_addr()
        .admit(|peer| peer.ip() != std::net::IpAddr::from([127, 0, 0, 9]))
        .with_graceful_shutdown(async {
            // If the sender is dropped, the server ends as well.
            let _ = signal.await;
        });
    let task = tokio::spawn(server.into_future());
    Server { address, keeper, go, end, shutdown: Some(shutdown), task }
}

/// Serves an upgraded connection that echoes its input: WebSocket on HTTP/1.1, extended CONNECT on
/// HTTP/2.
async fn echo(mut request: axum::extract::Request) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
        // It ends when the client closes it.
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
        let _ = writer.shutdown().await;
    });
    let response = Response::builder();
    let response = match request.method() {
        &hyper::Method::CONNECT => response,
        _ => response
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "echo"),
    };
    response.body(Body::empty()).unwrap()
}

/// Returns a response of unknown length, which ends when `end` is notified.
pub(crate) async fn endless(end: Arc<Notify>) -> Response<Body> {
    let end = async move {
        end.notified().await;
        Ok::<_, Infallible>("end")
    };
    Response::new(Body::from_stream(futures_util::stream::once(end)))
}

impl Server {
    pub(crate) async fn http2(&self) -> http2::SendRequest<Body> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.max_send_buf_size(1 << 20);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    pub(crate) async fn http1(&self) -> http1::SendRequest<Body> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Lets the handlers of `/wait` return until a condition holds.
    pub(crate) async fn go_until(&self, condition: impl Fn() -> bool) {
        while !condition() {
            // A handler may not wait yet.
            self.go.notify_waiters();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the metrics meet a condition.
    pub(crate) async fn wait_until(
        &self,
        what: &str,
        condition: impl Fn(&lowtide_tokio::Metrics) -> bool,
    ) {
        let waiting = async {
            while !condition(&self.keeper.metrics()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(LONG, waiting).await.is_err() {
            panic!("{what}: {:?}", self.keeper.metrics());
        }
    }
}

pub(crate) fn request(server: &Server, path: &str) -> Request<Body> {
    let uri = format!("http://{}{path}", server.address);
    Request::builder().uri(uri).body(Body::empty()).unwrap()
}

/// Creates an HTTP/1.1 request.
pub(crate) fn request1(path: &str) -> Request<Body> {
    Request::builder().uri(path).header("host", "a").body(Body::empty()).unwrap()
}

pub(crate) async fn text<B>(response: Response<B>) -> String
where
    B: hyper::body::Body<Data = axum::body::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let bytes = axum::body::to_bytes(Body::new(response.into_body()), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Sends `count` concurrent requests to `/wait`, and lets them end.
pub(crate) async fn wide(server: &Server, sender: &http2::SendRequest<Body>, count: usize) {
    let before = server.keeper.metrics().in_flight;
    let requests: Vec<_> = (0..count)
        .map(|_| tokio::spawn(sender.clone().send_request(request(server, "/wait"))))
        .collect();
    server.wait_until("all in flight", |now| now.in_flight == before + count).await;
    server.go_until(|| requests.iter().all(JoinHandle::is_finished)).await;
    for request in requests {
        assert_eq!(text(request.await.unwrap().unwrap()).await, "waited");
    }
}
