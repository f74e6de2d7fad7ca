//! A server that lets every request wait: `/?expire=MS` is answered after that many milliseconds.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

/// How many streams one connection may have: more than any demo opens.
const STREAMS: u32 = 1_000_000;

/// Serves until the process is ended. Prints `listening on ADDRESS` once it accepts connections.
///
/// # Errors
/// When the address cannot be had.
pub fn run(address: SocketAddr) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening on {}", listener.local_addr()?);
        loop {
            let (stream, peer) = listener.accept().await?;
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(request, peer));
                let connection = http2::Builder::new(TokioExecutor::new())
                    .max_concurrent_streams(STREAMS)
                    .serve_connection(TokioIo::new(stream), service);
                if let Err(error) = connection.await {
                    eprintln!("{peer}: {error}");
                }
            });
        }
    })
}

async fn answer(
    request: Request<Incoming>,
    peer: SocketAddr,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let wait = request.uri().query().and_then(expire).unwrap_or(Duration::ZERO);
    tokio::time::sleep(wait).await;
    let text = format!("lowtide-demo({}) {:?} {peer}", std::process::id(), request.version());
    Ok(Response::new(Full::new(Bytes::from(text))))
}

fn expire(query: &str) -> Option<Duration> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("expire="))?;
    value.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expire_parameter_is_parsed_from_the_query() {
        assert_eq!(expire("server=x&expire=20000"), Some(Duration::from_secs(20)));
        assert_eq!(expire("expires=1"), None);
        assert_eq!(expire("expire=soon"), None);
    }
}
