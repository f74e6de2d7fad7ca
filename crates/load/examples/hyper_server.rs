//! hyper's HTTP/2, plain or over TLS, for measurements of the load generator: each request is
//! answered at once.
//!
//! cargo run --release -p lowtide-load --example hyper_server -- ADDRESS [KEY CERTIFICATE]

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;

use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use hyper::rt::{Read, Write};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const MAX_STREAMS: u32 = 200_000;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (address, acceptor) = match words.as_slice() {
        [address] => (address, None),
        [address, key, certificate] => (address, Some(acceptor(key, certificate)?)),
        _ => return Err("hyper_server ADDRESS [KEY CERTIFICATE]".into()),
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (socket, _) = listener.accept().await?;
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                match acceptor {
                    None => serve(TokioIo::new(socket)).await,
                    Some(acceptor) => {
                        if let Ok(socket) = acceptor.accept(socket).await {
                            serve(TokioIo::new(socket)).await;
                        }
                    }
                }
            });
        }
    })
}

async fn serve(socket: impl Read + Write + Unpin) {
    let answer = service_fn(|_| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello\n"))))
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(MAX_STREAMS);
    // A client that disconnects is not an error.
    let _ = builder.serve_connection(socket, answer).await;
}

fn acceptor(key: &str, certificate: &str) -> Result<TlsAcceptor, Box<dyn Error>> {
    let certificate = CertificateDer::from_pem_file(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
