//! Sends requests, 64 at a time, and counts those that fail. Usage: client reqwest|hyper-util|tonic
//! ADDRESS SECONDS BYTES. With 0 bytes it sends GET, else POST with a body of that size. Prints a
//! JSON line.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioExecutor;

const AT_ONCE: usize = 64;

#[derive(Clone)]
enum Client {
    Reqwest(reqwest::Client),
    HyperUtil(hyper_util::client::legacy::Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>),
    Tonic(tonic_health::pb::health_client::HealthClient<tonic::transport::Channel>),
}

impl Client {
    async fn send(&mut self, address: &str, body: Bytes) -> Result<usize, String> {
        let path = if body.is_empty() { "" } else { "echo" };
        let url = format!("http://{address}/{path}");
        match self {
            Self::Reqwest(client) => {
                let request = if body.is_empty() { client.get(url) } else { client.post(url).body(body) };
                let response = request.send().await.and_then(|response| response.error_for_status());
                let bytes = response.map_err(all)?.bytes().await.map_err(all)?;
                Ok(bytes.len())
            }
            Self::HyperUtil(client) => {
                let method = if body.is_empty() { "GET" } else { "POST" };
                let request = hyper::Request::builder().method(method).uri(url).body(Full::new(body)).unwrap();
                let response = client.request(request).await.map_err(all)?;
                Ok(response.into_body().collect().await.map_err(all)?.to_bytes().len())
            }
            Self::Tonic(client) => {
                client.check(tonic_health::pb::HealthCheckRequest::default()).await.map_err(all)?;
                Ok(0)
            }
        }
    }
}

/// An error with its causes.
fn all(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, address, seconds, bytes] = &arguments[..] else { panic!("four arguments") };
    let client = match &name[..] {
        "reqwest" => Client::Reqwest(reqwest::Client::builder().http2_prior_knowledge().build().unwrap()),
        "hyper-util" => Client::HyperUtil(
            hyper_util::client::legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http(),
        ),
        "tonic" => {
            let channel = tonic::transport::Endpoint::new(format!("http://{address}")).unwrap().connect_lazy();
            Client::Tonic(tonic_health::pb::health_client::HealthClient::new(channel))
        }
        _ => panic!("unknown client"),
    };
    let body = Bytes::from(vec![7; bytes.parse().unwrap()]);
    let end = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
    let errors = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (mut client, address, body, errors) = (client.clone(), address.clone(), body.clone(), Arc::clone(&errors));
            tokio::spawn(async move {
                let (mut sent, mut failed) = (0_u64, 0_u64);
                while Instant::now() < end {
                    sent += 1;
                    if let Err(error) = client.send(&address, body.clone()).await {
                        failed += 1;
                        *errors.lock().unwrap().entry(error).or_default() += 1;
                    }
                }
                (sent, failed)
            })
        })
        .collect();
    let (mut sent, mut failed) = (0, 0);
    for task in tasks {
        let one = task.await.unwrap();
        (sent, failed) = (sent + one.0, failed + one.1);
    }
    println!("{{\"client\":\"{name}\",\"bytes\":{bytes},\"sent\":{sent},\"failed\":{failed},\"errors\":{:?}}}", errors.lock().unwrap());
}
