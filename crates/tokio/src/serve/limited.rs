//! The service of one connection.

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use http::header::{HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::{Either, Empty};
use hyper::body::Incoming;
use hyper::service::Service;

use super::{Limits, Overload, PeerAddr};
use crate::WatchedBody;
use crate::keeper::{Connection, Waiting, poll_response};

/// Any error.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The hyper service of one connection, for a tower service. It counts requests, and refuses some.
///
/// It does what `hyper_util::service::TowerToHyperService` does as well: each further layer would copy the request once more.
#[derive(Debug, Clone)]
pub(super) struct Limited<S> {
    pub(super) app: S,
    pub(super) peer: SocketAddr,
    pub(super) inserts_peer: bool,
    pub(super) limits: Limits,
    pub(super) connection: Arc<Connection>,
}

/// A response of the app, or one without a body.
type LimitedBody<B> = WatchedBody<Either<B, Empty<<B as Body>::Data>>>;

impl<S, B> Service<Request<Incoming>> for Limited<S>
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Response = Response<LimitedBody<B>>;
    type Error = BoxError;
    type Future = LimitedFuture<S>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let shared = &self.connection.shared;
        let max_requests = self.limits.max_requests;
        if max_requests < usize::MAX && shared.in_flight() >= max_requests {
            shared.refused_requests.fetch_add(1, Relaxed);
            let is_http2 = request.version() == Version::HTTP_2;
            if !is_http2 && !request.body().is_end_stream() {
                // hyper closes the connection without reading the body. The client must get the response.
                self.connection.set_lingers();
            }
            let is_reset = is_http2 && self.limits.overload == Overload::RefusedStream;
            return LimitedFuture { state: State::Refused { is_reset }, waiting: None };
        }
        if self.inserts_peer {
            let extensions = request.extensions_mut();
            extensions.insert(PeerAddr(self.peer));
            #[cfg(feature = "axum")]
            extensions.insert(axum::extract::ConnectInfo(self.peer));
        }
        let waiting = Some(Waiting::begin(&self.connection, &request));
        let state = State::Begun { app: self.app.clone(), request: Some(request) };
        LimitedFuture { state, waiting }
    }
}

pin_project_lite::pin_project! {
    /// The response of a [`Limited`] service.
    pub(super) struct LimitedFuture<S: tower_service::Service<Request<Incoming>>> {
        #[pin]
        state: State<S>,
        waiting: Option<Waiting>,
    }
}

pin_project_lite::pin_project! {
    #[project = StateProjection]
    enum State<S: tower_service::Service<Request<Incoming>>> {
        /// The app will be called when it is ready.
        Begun { app: S, request: Option<Request<Incoming>> },
        /// The app was called.
        Called { #[pin] future: S::Future },
        /// There were too many requests. They are not counted as in flight.
        Refused { is_reset: bool },
    }
}

impl<S, B> Future for LimitedFuture<S>
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Output = Result<Response<LimitedBody<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProjection::Begun { app, request } => {
                    ready!(app.poll_ready(context)).map_err(Into::into)?;
                    // It is there until the app is called.
                    let Some(request) = request.take() else { return Poll::Pending };
                    let future = app.call(request);
                    this.state.set(State::Called { future });
                }
                StateProjection::Called { future } => {
                    let result = future.poll(context);
                    return poll_response(result, this.waiting, Either::Left).map_err(Into::into);
                }
                StateProjection::Refused { is_reset: true } => {
                    return Poll::Ready(Err(h2::Error::from(h2::Reason::REFUSED_STREAM).into()));
                }
                StateProjection::Refused { is_reset: false } => {
                    let body = WatchedBody::new(Either::Right(Empty::new()), None);
                    let mut response = Response::new(body);
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    let headers = response.headers_mut();
                    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}
