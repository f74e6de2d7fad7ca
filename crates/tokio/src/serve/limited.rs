//! The service of one connection.

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use http::header::{HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::{Either, Empty};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::{TowerToHyperService, TowerToHyperServiceFuture};

use super::{Limits, Overload, PeerAddr};
use crate::WatchedBody;
use crate::keeper::{Connection, Waiting, poll_response};

/// Any error.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The hyper service of one connection, for a tower service. It counts requests, and refuses some.
#[derive(Debug, Clone)]
pub(super) struct Limited<S> {
    pub(super) app: TowerToHyperService<S>,
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
    type Future = LimitedFuture<TowerToHyperServiceFuture<S, Request<Incoming>>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let shared = &self.connection.shared;
        let max_requests = self.limits.max_requests;
        if max_requests < usize::MAX && shared.in_flight() >= max_requests {
            shared.refused_requests.fetch_add(1, Relaxed);
            let is_http2 = request.version() == Version::HTTP_2;
            if !is_http2 && !request.body().is_end_stream() {
                // hyper closes the connection without reading the body. The client must get the
                // response.
                self.connection.set_lingers();
            }
            let is_reset = is_http2 && self.limits.overload == Overload::RefusedStream;
            return LimitedFuture::Refused { is_reset };
        }
        if self.inserts_peer {
            let extensions = request.extensions_mut();
            extensions.insert(PeerAddr(self.peer));
            #[cfg(feature = "axum")]
            extensions.insert(axum::extract::ConnectInfo(self.peer));
        }
        let waiting = Some(Waiting::begin(&self.connection, &request));
        LimitedFuture::Called { future: self.app.call(request), waiting }
    }
}

pin_project_lite::pin_project! {
    /// The response of a [`Limited`] service.
    #[project = LimitedState]
    pub(super) enum LimitedFuture<F> {
        /// The app was called.
        Called { #[pin] future: F, waiting: Option<Waiting> },
        /// There were too many requests. They are not counted as in flight.
        Refused { is_reset: bool },
    }
}

impl<F, B, E> Future for LimitedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body,
{
    type Output = Result<Response<LimitedBody<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            LimitedState::Called { future, waiting } => {
                poll_response(future.poll(context), waiting, Either::Left).map_err(Into::into)
            }
            LimitedState::Refused { is_reset: true } => {
                Poll::Ready(Err(h2::Error::from(h2::Reason::REFUSED_STREAM).into()))
            }
            LimitedState::Refused { is_reset: false } => {
                let body = WatchedBody::new(Either::Right(Empty::new()), None);
                let mut response = Response::new(body);
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                Poll::Ready(Ok(response))
            }
        }
    }
}
