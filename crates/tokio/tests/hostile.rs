//! `serve` with clients that do not behave.

#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod server;

use hyper::StatusCode;
use server::{LONG, SHORT, Server, limits, recycle, request1, start};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns the preface of HTTP/2, and empty settings.
fn preface() -> Vec<u8> {
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()
}

/// Returns a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Returns the frame of a GET request: http, this path in HPACK, and the authority `a`.
fn headers(index: u32, path: &[u8]) -> Vec<u8> {
    let block = [b"\x82\x86", path, b"\x41\x01a"].concat();
    frame(HEADERS, END_STREAM | END_HEADERS, index * 2 + 1, &block)
}

/// The path `/` in HPACK.
const ROOT: &[u8] = b"\x84";

/// Writes until the server closes the connection, and reads its output meanwhile. Returns the bytes
/// that were read.
async fn write_until_closed(stream: TcpStream, bytes: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let (mut reader, mut writer) = stream.into_split();
    let reading = tokio::spawn(async move {
        let mut read = Vec::new();
        // It ends, whether by a reset or not.
        let _ = reader.read_to_end(&mut read).await;
        read
    });
    let writing = async {
        for bytes in bytes {
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
        panic!("the server takes all there is");
    };
    tokio::time::timeout(LONG, writing).await.unwrap();
    tokio::time::timeout(LONG, reading).await.unwrap().unwrap()
}

/// Checks that no trace of the hostile client remains, and that another client is served.
async fn expect_served(server: &Server) {
    server.wait_until("closed", |now| (now.connections, now.in_flight) == (0, 0)).await;
    let response = server.http1().await.send_request(request1("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_answers_a_ping_loses_its_idle_connection() {
    let server = start(limits(), recycle().stall_timeout(SHORT)).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let mut bytes = preface();
    for index in 0..100 {
        bytes.extend(headers(index, b"\x04\x05/wait"));
    }
    stream.write_all(&bytes).await.unwrap();
    server.wait_until("all in flight", |now| now.in_flight == 100).await;
    server.go_until(|| server.keeper.metrics().in_flight == 0).await;
    // It reads all available data, and writes nothing.
    let mut read = Vec::new();
    tokio::time::timeout(LONG, stream.read_to_end(&mut read)).await.unwrap().unwrap();
    server.wait_until("closed", |now| now.connections == 0).await;
    assert_eq!(server.keeper.metrics().cut_connections, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_send_nothing_or_a_partial_preface_or_header_are_disconnected() {
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
    // A client that has closed its side gets a whole answer, or none: hyper treats that as the end
    // of the connection.
    let server = start(server::limits(), recycle()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    assert!(read.is_empty() || read.ends_with(b"hello"), "{:?}", String::from_utf8_lossy(&read));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_disconnected() {
    let server = start(limits().user_timeout(SHORT), recycle()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    stream.readable().await.unwrap();
    expect_served(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_client_that_grants_no_window_is_disconnected() {
    let limits = limits().header_timeout(SHORT).idle_timeout(SHORT);
    let server = start(limits, recycle().stall_timeout(SHORT)).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let mut bytes = preface();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    bytes.extend(headers(0, ROOT));
    stream.write_all(&bytes).await.unwrap();
    let mut read = Vec::new();
    // The settings come first, and the end after them.
    tokio::time::timeout(LONG, stream.read_to_end(&mut read)).await.unwrap().unwrap();
    expect_served(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_opens_and_resets_streams_is_disconnected() {
    let server = start(limits(), recycle()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&preface()).await.unwrap();
    let resets = (0..1_000_000).map(|index| {
        let reset = frame(RST_STREAM, 0, index * 2 + 1, &8_u32.to_be_bytes());
        [headers(index, b"\x04\x05/wait"), reset].concat()
    });
    write_until_closed(stream, resets).await;
    expect_served(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_opens_streams_endlessly_stays_within_the_stream_limit() {
    let server = start(limits().max_concurrent_streams(200), recycle()).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let reading = tokio::spawn(async move {
        // The client ignores the refusals.
        let _ = tokio::io::copy(&mut reader, &mut tokio::io::sink()).await;
    });
    writer.write_all(&preface()).await.unwrap();
    for index in 0..100_000 {
        if writer.write_all(&headers(index, b"\x04\x05/wait")).await.is_err() {
            break;
        }
        assert!(server.keeper.metrics().in_flight <= 200, "{:?}", server.keeper.metrics());
    }
    let response = server.http1().await.send_request(request1("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(writer);
    reading.abort();
    expect_served(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_headers_endlessly_is_disconnected() {
    let server = start(limits(), recycle()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n").await.unwrap();
    let lines = (0..1_000_000).map(|index| format!("x-{index}: {index}\r\n").into_bytes());
    let read = write_until_closed(stream, lines).await;
    assert!(read.is_empty() || read.starts_with(b"HTTP/1.1 431 "));
    expect_served(&server).await;

    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&preface()).await.unwrap();
    let block = [b"\x82\x86", ROOT, b"\x41\x01a"].concat();
    stream.write_all(&frame(HEADERS, END_STREAM, 1, &block)).await.unwrap();
    // A literal header without indexing: `x: y`.
    let fields = b"\0\x01x\x01y".repeat(1000);
    let frames = (0..1_000_000).map(|_| frame(CONTINUATION, 0, 1, &fields));
    write_until_closed(stream, frames).await;
    expect_served(&server).await;
}
