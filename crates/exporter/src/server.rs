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
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use lowtide_probe::machine::thread_cpu_s;
use lowtide_survey::budget::UncountedCpu;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::connections::{ConnectionEntry, Connections};
use crate::listen::ListenAddress;
use crate::metrics::{Ages, Exporter, ScrapeResult};
use crate::turns::{Client, Turns};
use crate::web_config::WebConfig;

/// Maximum time from the start of a connection to the head of its first request, TLS handshake
/// included.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for a write to make progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to wait for the head of the next request, which also limits idle connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum time to wait until a password can be verified.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time to wait after a connection could not be accepted, for example because too many files are
/// open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Minimum age of the last scan at which the exporter is unhealthy, in seconds.
const MAX_SCAN_AGE_S: f64 = 120.0;
/// Maximum time for which the thread that inspects looks for no process, in seconds. It looks each
/// second and after each inspection, which gives up itself, unless the machine is very busy.
const MAX_SILENCE_S: f64 = 300.0;

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
    verifications: Arc<Turns>,
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
        verifications: Arc::default(),
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
                    let (stream, address) = listener.accept().await?;
                    let _ = stream.set_nodelay(true);
                    Ok((stream, Client::from(address.ip())))
                };
                tokio::select! { () = accept_on(&context, accept) => {}, () = is_over => {} }
            }
            Listener::Unix(listener, _) => {
                let listener = UnixListener::from_std(listener)?;
                let accept = async || Ok((listener.accept().await?.0, Client::Local));
                tokio::select! { () = accept_on(&context, accept) => {}, () = is_over => {} }
            }
        }
        Ok(())
    })
}

/// Accepts connections, and serves each in a task of its own.
async fn accept_on<S>(
    context: &Arc<ServerContext>,
    accept: impl AsyncFn() -> io::Result<(S, Client)>,
) where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let connections = Arc::new(Connections::default());
    loop {
        let Ok((stream, client)) = accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (entry, has_replaced) = connections.add(client);
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
        async move { answer(&context, &request, entry.client()).await }
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
    client: Client,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = match admission(context, request, client).await {
        Admission::Admitted => answer_admitted(&context.exporter, request),
        Admission::Refused => {
            context.exporter.count(ScrapeResult::Unauthorized);
            let text = "the user name or the password is wrong\n";
            with_header(plain(StatusCode::UNAUTHORIZED, text), WWW_AUTHENTICATE, "Basic")
        }
        Admission::Unverified => {
            context.exporter.count(ScrapeResult::Busy);
            let text = "other clients send wrong passwords: the password was not verified\n";
            with_header(plain(StatusCode::SERVICE_UNAVAILABLE, text), RETRY_AFTER, "60")
        }
    };
    for (name, value) in &context.config.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

/// Whether a client may read the metrics.
enum Admission {
    Admitted,
    Refused,
    /// It is not known in time.
    Unverified,
}

impl From<bool> for Admission {
    fn from(is_admitted: bool) -> Self {
        if is_admitted { Self::Admitted } else { Self::Refused }
    }
}

async fn admission(
    context: &Arc<ServerContext>,
    request: &Request<Incoming>,
    client: Client,
) -> Admission {
    let Some(users) = &context.config.users else { return Admission::Admitted };
    let value = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    if let Some(is_admitted) = users.known(value) {
        return is_admitted.into();
    }
    let Some(credentials) = users.key_of(value) else { return Admission::Refused };
    let turn = context.verifications.wait(client, credentials);
    let Ok(turn) = timeout(VERIFICATION_TIMEOUT, turn).await else {
        return Admission::Unverified;
    };
    let (context, value) = (Arc::clone(context), value.map(<[u8]>::to_vec));
    // A verification takes a long time. Other connections are served meanwhile. The turn ends with
    // it, even if the client does not wait for the result.
    let verification = tokio::task::spawn_blocking(move || {
        let start_s = thread_cpu_s();
        let users = context.config.users.as_ref();
        let is_admitted = users.is_some_and(|users| users.admit(value.as_deref()));
        let cpu_s = thread_cpu_s() - start_s;
        context.cpu.add(cpu_s);
        if !is_admitted {
            turn.add_wrong(cpu_s);
        }
        is_admitted
    });
    verification.await.unwrap_or(false).into()
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
        "/healthz" => health(&exporter.ages()),
        "/" => with_type(StatusCode::OK, "text/html; charset=utf-8", PAGE.to_owned()),
        _ => plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
    }
}

/// Answers whether the metrics are up to date.
fn health(ages: &Ages) -> Response<Full<Bytes>> {
    let is_listed = ages.scan_s.is_some_and(|age_s| age_s < MAX_SCAN_AGE_S);
    let (status, first) = match () {
        () if !is_listed => {
            (StatusCode::SERVICE_UNAVAILABLE, "the processes were not listed for 2 minutes")
        }
        () if ages.silence_s > MAX_SILENCE_S => {
            (StatusCode::SERVICE_UNAVAILABLE, "an inspection has not ended for 5 minutes")
        }
        () => (StatusCode::OK, "ok"),
    };
    let age = |age_s: Option<f64>| match age_s {
        Some(age_s) => format!("{age_s:.0} s ago"),
        None => "none".to_owned(),
    };
    let (last, oldest) = (age(ages.last_inspection_s), age(ages.oldest_s));
    let left = ages.uninspected;
    plain(
        status,
        format!("{first}\nlast inspection: {last}; oldest: {oldest}; not inspected yet: {left}\n"),
    )
}

fn plain(status: StatusCode, text: impl Into<String>) -> Response<Full<Bytes>> {
    with_type(status, PLAIN, text.into())
}

fn with_type(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    with_header(response, CONTENT_TYPE, kind)
}

fn with_header(
    mut response: Response<Full<Bytes>>,
    name: HeaderName,
    value: &'static str,
) -> Response<Full<Bytes>> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
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
    fn without_a_list_of_processes_or_with_a_silent_inspector_the_exporter_is_unhealthy() {
        let healthy = || Ages { scan_s: Some(9.0), silence_s: 1.0, ..Ages::default() };
        let status = |ages: Ages| health(&ages).status().as_u16();
        assert_eq!(status(healthy()), 200);
        assert_eq!(status(Ages { scan_s: None, ..healthy() }), 503);
        assert_eq!(status(Ages { scan_s: Some(MAX_SCAN_AGE_S), ..healthy() }), 503);
        // A thread that has ended, or waits for a process.
        assert_eq!(status(Ages { silence_s: MAX_SILENCE_S + 1.0, ..healthy() }), 503);
        // A small budget on a large host: the metrics and an alert show it.
        let old = Some(1e6);
        assert_eq!(status(Ages { last_inspection_s: old, oldest_s: old, ..healthy() }), 200);
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
