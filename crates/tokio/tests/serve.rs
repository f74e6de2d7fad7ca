//! `serve` with clients that behave.

#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod server;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, Version};
use hyper_util::rt::TokioIo;
use lowtide_tokio::{Keeper, Overload, Recycle, serve};
use server::{
    LONG, NOTICEABLE, SHORT, Server, limits, recycle, request, request1, start, text, wide,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

#[tokio::test(flavor = "multi_thread")]
async fn http1_and_http2_are_served_and_the_client_address_is_available() {
    let server = start(limits(), recycle()).await;
    let response = server.http2().await.send_request(request(&server, "/")).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    assert_eq!(text(response).await, "hello");
    let response = server.http1().await.send_request(request1("/peer")).await.unwrap();
    assert!(text(response).await.starts_with("127.0.0.1:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wide_connection_is_recycled_after_draining_but_a_narrow_one_is_not() {
    let server = start(limits(), recycle()).await;
    let narrow = server.http2().await;
    wide(&server, &narrow, 99).await;
    let sender = server.http2().await;
    wide(&server, &sender, 100).await;
    server
        .wait_until("recycled", |now| now.recycled_connections == 1 && now.connections == 1)
        .await;
    server.wait_until("the client's side", |_| sender.is_closed()).await;
    assert!(!narrow.is_closed());
    server.wait_until("closed", |now| now.closing_connections == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_an_endless_response_is_pinned_until_the_response_ends() {
    let server = start(limits(), recycle()).await;
    let mut sender = server.http2().await;
    let endless = sender.send_request(request(&server, "/endless")).await.unwrap();
    wide(&server, &sender, 100).await;
    server.wait_until("pinned", |now| now.pinned_connections == 1).await;
    let metrics = server.keeper.metrics();
    assert_eq!((metrics.recycled_connections, metrics.in_flight), (0, 1));
    assert!(metrics.pinned_bytes > 90_000, "{metrics:?}");
    server.end.notify_one();
    assert_eq!(text(endless).await, "end");
    server.wait_until("recycled", |now| now.recycled_connections == 1).await;
    server.wait_until("closed", |now| now.connections == 0).await;
    assert_eq!(server.keeper.metrics().pinned_connections, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http1_connection_is_closed_with_a_response_after_a_large_upload() {
    let server = start(limits().http1_max_buf_size(1 << 20), recycle()).await;
    let mut sender = server.http1().await;
    let body = Body::from(vec![7; 1 << 20]);
    let upload = Request::post("/upload").header("host", "a").body(body).unwrap();
    let response = sender.send_request(upload).await.unwrap();
    assert_eq!(response.headers().get("connection"), None);
    assert_eq!(text(response).await, (1 << 20).to_string());
    // The keeper's thread decides this.
    let closed = async {
        loop {
            sender.ready().await.unwrap();
            let response = sender.send_request(request1("/")).await.unwrap();
            let closes = response.headers().get("connection").is_some_and(|value| value == "close");
            assert_eq!(text(response).await, "hello");
            if closes {
                break;
            }
        }
    };
    tokio::time::timeout(LONG, closed).await.unwrap();
    server.wait_until("closed", |now| now.connections == 0).await;
    assert_eq!(server.keeper.metrics().recycled_connections, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_above_the_limit_get_503_or_refused_stream() {
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
        assert_eq!(server.keeper.metrics().refused_requests, 2);
        server.go_until(|| first.is_finished()).await;
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
async fn connections_above_the_address_limit_or_not_admitted_are_reset() {
    let limits = limits().max_connections_per_address(2);
    let server = start(limits, recycle()).await;
    assert!(is_reset(&server, 9).await);
    let first = connect_from(&server, 2).await.unwrap();
    let _second = connect_from(&server, 2).await.unwrap();
    assert!(is_reset(&server, 2).await);
    assert_eq!(server.keeper.metrics().refused_connections, 2);
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
async fn a_connection_above_the_limit_waits_until_another_closes() {
    let limits = limits().max_connections(1);
    let server = start(limits, recycle()).await;
    let mut first = server.http1().await;
    assert_eq!(first.send_request(request1("/")).await.unwrap().status(), StatusCode::OK);
    let mut second = server.http1().await;
    let waiting = tokio::spawn(async move { second.send_request(request1("/")).await });
    tokio::time::sleep(SHORT).await;
    assert!(!waiting.is_finished() && server.keeper.metrics().connections == 1);
    drop(first);
    let response = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed_but_one_with_a_request_is_not() {
    // Long enough for the second client to send its request, also on a busy machine.
    let limits = limits().header_timeout(NOTICEABLE).idle_timeout(NOTICEABLE);
    let server = start(limits, recycle()).await;
    let mut idle = server.http2().await;
    assert_eq!(idle.send_request(request(&server, "/")).await.unwrap().status(), StatusCode::OK);
    let busy = server.http2().await;
    let waiting = tokio::spawn(busy.clone().send_request(request(&server, "/wait")));
    server.wait_until("one is closed", |now| now.connections == 1 && now.in_flight == 1).await;
    server.wait_until("the client's side", |_| idle.is_closed()).await;
    assert!(!waiting.is_finished());
    server.go_until(|| waiting.is_finished()).await;
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
async fn a_graceful_shutdown_waits_for_requests_up_to_its_timeout() {
    let mut server = start(limits(), recycle()).await;
    let sender = server.http2().await;
    let waiting = tokio::spawn(sender.clone().send_request(request(&server, "/wait")));
    server.wait_until("one in flight", |now| now.in_flight == 1).await;
    // A client that has not sent anything does not delay it.
    let _silent = TcpStream::connect(server.address).await.unwrap();
    server.shutdown.take().unwrap().send(()).unwrap();
    let is_refused = async { while TcpStream::connect(server.address).await.is_ok() {} };
    tokio::time::timeout(LONG, is_refused).await.unwrap();
    assert!(!server.task.is_finished() && !waiting.is_finished());
    server.go_until(|| waiting.is_finished()).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_http1_connection_may_outlast_the_header_timeout() {
    let server = start(limits().header_timeout(NOTICEABLE).idle_timeout(LONG), recycle()).await;
    let mut sender = server.http1().await;
    assert_eq!(sender.send_request(request1("/")).await.unwrap().status(), StatusCode::OK);
    tokio::time::sleep(NOTICEABLE * 2).await;
    assert_eq!(sender.send_request(request1("/")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_counts_until_it_is_closed() {
    let server = start(limits().max_connections(1).idle_timeout(SHORT), recycle()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(b"GET /echo HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .await
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    // The limit is one connection, so a second one must wait.
    let mut second = server.http1().await;
    let waiting = tokio::spawn(async move { second.send_request(request1("/")).await });
    for byte in 0..100 {
        stream.write_u8(byte).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), byte);
    }
    let metrics = server.keeper.metrics();
    assert_eq!((metrics.connections, metrics.in_flight), (1, 1));
    assert!(!waiting.is_finished());
    drop(stream);
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
    server.wait_until("none in flight", |now| now.in_flight == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_connect_pins_its_connection_until_it_is_closed() {
    let server = start(limits().idle_timeout(SHORT), recycle()).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, mut connection) = h2::client::handshake(stream).await.unwrap();
    let pings = connection.ping_pong();
    let connection = tokio::spawn(connection);
    // The answer comes after the settings of the server.
    pings.unwrap().ping(h2::Ping::opaque()).await.unwrap();
    let uri = format!("http://{}", server.address);
    let connect = Request::builder()
        .method(Method::CONNECT)
        .extension(h2::ext::Protocol::from_static("echo"))
        .uri(format!("{uri}/echo"));
    let (response, mut writer) = sender.send_request(connect.body(()).unwrap(), false).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut reader = response.into_body();
    let requests: Vec<_> = (0..100)
        .map(|_| {
            let request = Request::get(format!("{uri}/wait")).body(()).unwrap();
            tokio::spawn(sender.send_request(request, true).unwrap().0)
        })
        .collect();
    server.wait_until("all in flight", |now| now.in_flight == 100).await;
    server.go_until(|| requests.iter().all(|request| request.is_finished())).await;
    server.wait_until("pinned", |now| now.pinned_connections == 1 && now.in_flight == 0).await;
    for byte in 0..100 {
        writer.send_data(vec![byte].into(), false).unwrap();
        let echo = reader.data().await.unwrap().unwrap();
        reader.flow_control().release_capacity(echo.len()).unwrap();
        assert_eq!(echo[..], [byte]);
    }
    assert_eq!(server.keeper.metrics().recycled_connections, 0);
    connection.abort();
    server.wait_until("closed", |now| (now.connections, now.in_flight) == (0, 0)).await;
    assert_eq!(server.keeper.metrics().pinned_connections, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_counts_requests_of_a_server_that_manages_its_own_connections() {
    let keeper = Keeper::start().unwrap();
    let app = Router::new().route("/", get(std::future::pending::<()>)).layer(keeper.layer());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async { axum::serve(listener, app).await });
    let wait_until = async |count| {
        while keeper.metrics().in_flight != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    wait_until(1).await;
    let guard = keeper.count_request();
    wait_until(2).await;
    drop((stream, guard));
    wait_until(0).await;
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configure_hook_sets_options_of_hyper() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, Router::new().route("/", get(|| async { "hello" })));
    let server = server.configure(|http| {
        http.http1().title_case_headers(true);
    });
    tokio::spawn(server.into_future());
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.contains("\r\nContent-Length: 5\r\n"), "{response}");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_bodies_and_bounded_buffers_do_not_close_an_http1_connection() {
    let never = Recycle::never().min_age(Duration::ZERO);
    for (limits, recycle, bytes) in [
        (limits().http1_max_buf_size(1 << 20), recycle(), 1),
        (limits().http1_max_buf_size(1 << 20), never, 1 << 20),
        (limits(), recycle(), 1 << 20),
    ] {
        let server = start(limits, recycle).await;
        let mut sender = server.http1().await;
        for _ in 0..20 {
            sender.ready().await.unwrap();
            let frames = futures_util::stream::iter([Ok::<_, Infallible>(vec![7; bytes])]);
            let upload = Request::post("/upload").header("host", "a");
            let upload = upload.body(Body::from_stream(frames)).unwrap();
            let response = sender.send_request(upload).await.unwrap();
            assert_eq!(response.headers().get("connection"), None);
            assert_eq!(text(response).await, bytes.to_string());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(server.keeper.metrics().connections, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_at_its_request_limit_is_recycled_and_loses_no_request() {
    let server = start(limits(), recycle().max_requests(50)).await;
    for _ in 0..5 {
        let sender = server.http2().await;
        let requests: Vec<_> = (0..50)
            .map(|_| tokio::spawn(sender.clone().send_request(request(&server, "/wait"))))
            .collect();
        server.wait_until("all in flight", |now| now.in_flight == 50).await;
        server.go_until(|| requests.iter().all(|request| request.is_finished())).await;
        for request in requests {
            assert_eq!(text(request.await.unwrap().unwrap()).await, "waited");
        }
        server.wait_until("closed", |now| now.connections == 0).await;
    }
    let metrics = server.keeper.metrics();
    assert_eq!((metrics.recycled_connections, metrics.cut_connections), (5, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_pins_its_connection_unless_recycling_of_grpc_is_enabled() {
    for (is_recycled, pinned, recycled) in [(false, 1, 0), (true, 0, 1)] {
        let server = start(limits(), recycle().grpc(is_recycled)).await;
        let mut sender = server.http2().await;
        let mut call = request(&server, "/");
        call.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
        assert_eq!(sender.send_request(call).await.unwrap().status(), StatusCode::OK);
        wide(&server, &sender, 100).await;
        server
            .wait_until("decided", |now| {
                (now.pinned_connections, now.recycled_connections) == (pinned, recycled)
            })
            .await;
    }
}

/// Reads a response slowly: a small part after each pause.
async fn read_slowly(mut stream: TcpStream, total: usize) {
    let mut read = 0;
    let mut buffer = vec![0; 1 << 18];
    while read < total {
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "it ends after {read} bytes");
        // After each mebibyte: a sleep can take long on a busy machine.
        if (read + count) >> 20 > read >> 20 {
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
        read += count;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_receives_the_whole_response_during_a_shutdown() {
    let recycle = recycle().max_requests(100).stall_timeout(Duration::from_secs(10));
    let mut server = start(limits(), recycle).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    stream.readable().await.unwrap();
    let slow = tokio::spawn(read_slowly(stream, 256 << 20));
    // On HTTP/2, the bodies are in hyper's buffers when the requests have ended: the client reads
    // with a small window.
    let sender = server.http2().await;
    let bodies: Vec<_> = (0..100)
        .map(|_| {
            let response = sender.clone().send_request(request(&server, "/medium"));
            tokio::spawn(async move { text(response.await.unwrap()).await })
        })
        .collect();
    server.wait_until("recycled", |now| now.recycled_connections == 1).await;
    server.shutdown.take().unwrap().send(()).unwrap();
    for body in bodies {
        let body = tokio::time::timeout(LONG, body).await.unwrap().unwrap();
        assert_eq!(body.len(), 1 << 18);
    }
    tokio::time::timeout(LONG, slow).await.unwrap().unwrap();
    tokio::time::timeout(LONG, server.task).await.unwrap().unwrap().unwrap();
    assert_eq!(server.keeper.metrics().cut_connections, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_upload_receives_a_503_response() {
    let server = start(limits().max_requests(0), recycle()).await;
    for _ in 0..20 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = b"POST /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n";
        stream.write_all(head).await.unwrap();
        // The server may close before it has read all of this.
        let _ = stream.write_all(&vec![7; 1 << 20]).await;
        let mut response = [0; 12];
        stream.read_exact(&mut response).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 503");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_of_any_length_are_accepted() {
    let max = Duration::MAX;
    let limits = limits().header_timeout(max).idle_timeout(max).first_byte_timeout(max);
    let limits = limits.user_timeout(max).ping_interval(Some(max));
    let recycle = Recycle::new().min_age(max).linger(max).stall_timeout(max).max_drain(Some(max));
    let server = start(limits, recycle).await;
    for _ in 0..3 {
        let response = server.http1().await.send_request(request1("/")).await.unwrap();
        assert_eq!(text(response).await, "hello");
        let mut sender = server.http2().await;
        wide(&server, &sender, 100).await;
        let response = sender.send_request(request(&server, "/")).await.unwrap();
        assert_eq!(text(response).await, "hello");
    }
    server.keeper.release_now().await.unwrap();
}
