//! Eight connections, each with an endless response and 10,000 requests. Half of the endless
//! responses begin before the requests, half after 5,000 of them. Usage: endless ADDRESS. Prints a
//! line when all requests have ended, and then keeps the endless responses for 5 s.

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

const REQUESTS: usize = 10_000;

#[tokio::main]
async fn main() {
    let address = std::env::args().nth(1).unwrap();
    let connections: Vec<_> = (0..8)
        .map(|index| {
            let address = address.clone();
            tokio::spawn(connection(address, if index % 2 == 0 { 0 } else { REQUESTS / 2 }))
        })
        .collect();
    let mut failed = 0;
    let mut held = Vec::new();
    for connection in connections {
        let (count, endless) = connection.await.unwrap();
        failed += count;
        held.push(endless);
    }
    println!("{{\"requests\":{},\"failed\":{failed}}}", 8 * REQUESTS);
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let mut ended = 0;
    for mut endless in held {
        // Frames that arrived before are read first.
        while let Ok(Some(frame)) = tokio::time::timeout(std::time::Duration::from_millis(10), endless.frame()).await {
            ended += usize::from(frame.is_err());
        }
    }
    println!("{{\"endless_responses_cut\":{ended}}}");
}

/// Returns how many requests have failed, and the endless response.
async fn connection(address: String, before: usize) -> (usize, hyper::body::Incoming) {
    let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let get = |path: &str| Request::get(format!("http://{address}{path}")).body(Empty::<Bytes>::new()).unwrap();
    let mut endless = None;
    let mut requests = Vec::new();
    for index in 0..REQUESTS {
        if index == before {
            endless = Some(sender.send_request(get("/endless")).await.unwrap().into_body());
        }
        let response = sender.send_request(get("/?expire=3000"));
        requests.push(tokio::spawn(async move { response.await.ok()?.into_body().collect().await.ok() }));
    }
    let mut failed = 0;
    for request in requests {
        failed += usize::from(request.await.unwrap().is_none());
    }
    (failed, endless.unwrap())
}
