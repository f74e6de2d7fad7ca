//! Serves the metrics over HTTP.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use lowtide_probe::machine::thread_cpu_s;
use lowtide_survey::budget::UncountedCpu;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::connections::{ConnectionEntry, Connections};
use crate::listen::ListenAddress;
use crate::metrics::{Exporter, ScrapeResult};
use crate::web_config::WebConfig;

/// Maximum time from the start of a connection to the head of its first request, TLS handshake
/// included.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for a write to make progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to wait for the head of the next request, which also limits idle connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Time between two checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time to wait after a connection could not be accepted, for example because too many files are
/// open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Minimum age of the last scan at which the exporter is unhealthy, in seconds.
const MAX_SCAN_AGE_S: f64 = 120.0;
/// Maximum duration of an inspection, in seconds: it gives up itself, unless the machine is very
/// busy.
const MAX_INSPECTION_S: f64 = 300.0;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
const PAGE: &str = "<html><head><title>lowtide</title></head><body><h1>lowtide exporter</h1>\
    <p><a href=\"/metrics\">Metrics</a></p></body></html>\n";

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(StdListener),
    /// A Unix socket at a path. [`crate::file_process`] removes its file.
    Unix(StdUnixListener, PathBuf),
}

impl Listener {
    /// Listens at an address.
    ///
    /// # Errors
    /// Fails if the address is in use, cannot be resolved, or is not permitted.
    pub fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(text) => {
                let listener = StdListener::bind(ListenAddress::resolve(text)?.as_slice())?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            ListenAddress::Unix(path) => {
                remove_abandoned(path)?;
                let listener = StdUnixListener::bind(path)?;
                // Like TCP on localhost: all users with access to the directory may connect.
                lowtide_record::files::share_socket(path)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener, path.clone()))
            }
        }
    }

    /// Returns the address of the socket. For port 0, it has the port that the kernel has chosen.
    pub fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string())
            }
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }
}

/// Removes a socket on which no process listens any more.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    let is_socket = path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// The state that all connections share.
struct ServerContext {
    exporter: Arc<Exporter>,
    config: WebConfig,
    /// Held while a password is verified: verifications run one at a time.
    verification: Arc<Mutex<()>>,
    /// CPU time of verifications and of this thread, which is not charged to the survey.
    cpu: UncountedCpu,
}

/// Serves until a signal arrives.
///
/// # Errors
/// Fails if the event loop cannot be started.
pub fn serve(
    exporter: &Arc<Exporter>,
    listener: Listener,
    config: WebConfig,
    interrupt: &AtomicBool,
) -> io::Result<()> {
    let mut charged_s = thread_cpu_s();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cpu = exporter.serving_cpu();
    let context = Arc::new(ServerContext {
        exporter: Arc::clone(exporter),
        config,
        verification: Arc::default(),
        cpu: cpu.clone(),
    });
    let is_over = async {
        while !interrupt.load(Ordering::Relaxed) {
            sleep(POLL_INTERVAL).await;
            let used_s = thread_cpu_s();
            cpu.add(used_s - charged_s);
            charged_s = used_s;
        }
    };
    runtime.block_on(async {
        match listener {
            Listener::Tcp(listener) => {
                let listener = TcpListener::from_std(listener)?;
                let accept = async || {
                    let (stream, _) = listener.accept().await?;
                    let _ = stream.set_nodelay(true);
                    Ok(stream)
                };
                tokio::select! { () = accept_on(&context, accept) => {}, () = is_over => {} }
            }
            Listener::Unix(listener, _) => {
                let listener = UnixListener::from_std(listener)?;
                let accept = async || Ok(listener.accept().await?.0);
                tokio::select! { () = accept_on(&context, accept) => {}, () = is_over => {} }
            }
        }
        Ok(())
    })
}

/// Accepts connections, and serves each in a task of its own.
async fn accept_on<S>(context: &Arc<ServerContext>, accept: impl AsyncFn() -> io::Result<S>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let connections = Arc::new(Connections::default());
    loop {
        let Ok(stream) = accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (entry, has_replaced) = connections.add();
        if has_replaced {
            context.exporter.count(ScrapeResult::Busy);
        }
        let task = tokio::spawn(serve_stream(Arc::clone(context), stream, entry.clone()));
        entry.set_task(task.abort_handle());
    }
}

/// Serves a connection, and closes it if its first request is late.
async fn serve_stream<S>(context: Arc<ServerContext>, stream: S, entry: ConnectionEntry)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = Box::pin(TimeoutStream::new(stream));
    stream.as_mut().set_write_timeout_pinned(Some(WRITE_TIMEOUT));
    let serve = async {
        match context.config.tls.clone() {
            None => serve_http(&context, stream, &entry).await,
            Some(tls) => {
                if let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await {
                    serve_http(&context, stream, &entry).await;
                }
            }
        }
    };
    let is_late = async {
        sleep(FIRST_REQUEST_TIMEOUT).await;
        if entry.has_request() {
            std::future::pending().await
        }
    };
    tokio::select! { () = serve => {}, () = is_late => {} }
}

async fn serve_http<S>(context: &Arc<ServerContext>, stream: S, entry: &ConnectionEntry)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| {
        entry.add_request();
        let context = Arc::clone(context);
        async move { answer(&context, &request).await }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // A client that disconnects or does not speak HTTP is not an error of the server.
    let _ = connection.await;
}

async fn answer(
    context: &Arc<ServerContext>,
    request: &Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = if is_admitted(context, request).await {
        answer_admitted(&context.exporter, request)
    } else {
        context.exporter.count(ScrapeResult::Unauthorized);
        let mut response =
            plain(StatusCode::UNAUTHORIZED, "the user name or the password is wrong\n");
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, hyper::http::HeaderValue::from_static("Basic"));
        response
    };
    for (name, value) in &context.config.headers {
        if let (Ok(name), Ok(value)) =
            (hyper::http::HeaderName::try_from(name), hyper::http::HeaderValue::try_from(value))
        {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

async fn is_admitted(context: &Arc<ServerContext>, request: &Request<Incoming>) -> bool {
    let Some(users) = &context.config.users else { return true };
    let value = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    if let Some(is_admitted) = users.known(value) {
        return is_admitted;
    }
    let one = Arc::clone(&context.verification).lock_owned().await;
    let (context, value) = (Arc::clone(context), value.map(<[u8]>::to_vec));
    // A verification takes a long time. Other connections are served meanwhile.
    let verification = tokio::task::spawn_blocking(move || {
        // Even if the client does not wait for the result.
        let _one = one;
        let start_s = thread_cpu_s();
        let users = context.config.users.as_ref();
        let is_admitted = users.is_some_and(|users| users.admit(value.as_deref()));
        context.cpu.add(thread_cpu_s() - start_s);
        is_admitted
    });
    verification.await.unwrap_or(false)
}

fn answer_admitted(exporter: &Exporter, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n");
    }
    match request.uri().path() {
        "/metrics" => {
            exporter.count(ScrapeResult::Ok);
            let accept = request.headers().get_all(ACCEPT).iter();
            let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
            match wants_open_metrics(&accept.join(",")) {
                true => with_type(StatusCode::OK, OPEN_METRICS, exporter.open_metrics()),
                false => with_type(StatusCode::OK, TEXT, exporter.text()),
            }
        }
        "/healthz" => match problem(exporter) {
            None => plain(StatusCode::OK, "ok\n"),
            Some(problem) => plain(StatusCode::SERVICE_UNAVAILABLE, problem),
        },
        "/" => with_type(StatusCode::OK, "text/html; charset=utf-8", PAGE.to_owned()),
        _ => plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
    }
}

/// Returns why the metrics are too old.
fn problem(exporter: &Exporter) -> Option<&'static str> {
    let is_listed = exporter.scan_age_s().is_some_and(|age_s| age_s < MAX_SCAN_AGE_S);
    match () {
        () if !is_listed => Some("the processes were not listed for 2 minutes\n"),
        () if exporter.inspection_s() > MAX_INSPECTION_S => {
            Some("an inspection has not ended for 5 minutes\n")
        }
        () => None,
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    with_type(status, PLAIN, text.to_owned())
}

fn with_type(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::http::HeaderValue::from_static(kind));
    response
}

/// Returns whether a client prefers OpenMetrics, by its `Accept` header.
pub(crate) fn wants_open_metrics(accept: &str) -> bool {
    let quality = |kind: &str| {
        let of_range = accept.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            if parts.next() != Some(kind) {
                return None;
            }
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
            Some(quality.unwrap_or(1.0))
        });
        of_range.fold(0.0, f64::max)
    };
    let wished = quality("application/openmetrics-text");
    wished > 0.0 && wished >= quality("text/plain")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_sent_only_to_clients_that_prefer_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert!(wants_open_metrics(prometheus));
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/plain,application/openmetrics-text;q=0.5",
            "application/openmetrics-text;q=0",
        ] {
            assert!(!wants_open_metrics(accept), "{accept}");
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_but_one_in_use_is_not() {
        let home = tempfile::tempdir().unwrap();
        let address = ListenAddress::Unix(home.path().join("socket"));
        let Ok(Listener::Unix(first, path)) = Listener::bind(&address) else { panic!() };
        assert_eq!(Listener::bind(&address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // As if the process had been killed.
        drop(first);
        assert!(path.exists() && Listener::bind(&address).is_ok());
    }
}
