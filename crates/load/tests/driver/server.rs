//! Test servers, each on a port of 127.0.0.1, for as long as the test runs.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, server::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The protocol of a server.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Speaks {
    Http1,
    /// HTTP/2 with at most this many streams on a connection.
    Http2(u32),
}

/// Starts a server on a separate thread.
pub(crate) fn start(speaks: Speaks, tls: bool) -> SocketAddr {
    let acceptor = tls.then(|| acceptor(speaks));
    serve(move |stream, peer| {
        let acceptor = acceptor.clone();
        async move {
            match acceptor {
                None => speak(stream, peer, speaks).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        speak(stream, peer, speaks).await;
                    }
                }
            }
        }
    })
}

/// Starts a server that handles each connection with `each`.
pub(crate) fn serve<F, R>(each: F) -> SocketAddr
where
    F: Fn(TcpStream, SocketAddr) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            while let Ok((stream, peer)) = listener.accept().await {
                tokio::spawn(each(stream, peer));
            }
        });
    });
    receiver.recv().unwrap()
}

async fn speak<S>(stream: S, peer: SocketAddr, speaks: Speaks)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| answer(request, peer));
    let io = TokioIo::new(stream);
    let _ = match speaks {
        Speaks::Http1 => conn::http1::Builder::new().serve_connection(io, service).await,
        Speaks::Http2(streams) => {
            conn::http2::Builder::new(TokioExecutor::new())
                .max_concurrent_streams(streams)
                .serve_connection(io, service)
                .await
        }
    };
}

/// Number of requests for `/together` that are answered together, in a single test.
const ALL: u64 = 400;
static TOGETHER: AtomicU64 = AtomicU64::new(0);

/// Answers `/peer` with the client's address, `/together` in the same way but only after all
/// requests have arrived, `/never` never, `/status` with an error, and other paths with the length
/// of the body.
async fn answer(
    request: Request<Incoming>,
    peer: SocketAddr,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let mut response = Response::default();
    let text = match path.as_str() {
        "/peer" => peer.to_string(),
        "/never" => std::future::pending().await,
        "/together" => {
            TOGETHER.fetch_add(1, Ordering::Relaxed);
            while TOGETHER.load(Ordering::Relaxed) < ALL {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            peer.to_string()
        }
        "/soon" => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            "soon".to_owned()
        }
        "/status" => {
            *response.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
            "busy".to_owned()
        }
        _ => {
            let method = request.method().to_string();
            let body = request.into_body().collect().await;
            format!("{method} {}", body.map_or(0, |body| body.to_bytes().len()))
        }
    };
    *response.body_mut() = Full::new(Bytes::from(text));
    Ok(response)
}

fn acceptor(speaks: Speaks) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("certificate/cert.pem"));
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("certificate/key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.unwrap()], key)
        .unwrap();
    config.alpn_protocols = match speaks {
        Speaks::Http1 => vec![b"http/1.1".to_vec()],
        Speaks::Http2(_) => vec![b"h2".to_vec()],
    };
    TlsAcceptor::from(Arc::new(config))
}
