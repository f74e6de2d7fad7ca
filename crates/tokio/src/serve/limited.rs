//! A service that refuses requests when there are too many.

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
use crate::keeper::Connection;

/// Any error.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The service of one connection. A refused request is not counted as one in flight: `app` counts.
#[derive(Debug, Clone)]
pub(super) struct Limited<S> {
    pub(super) app: S,
    pub(super) peer: SocketAddr,
    pub(super) inserts_peer: bool,
    pub(super) limits: Limits,
    pub(super) connection: Arc<Connection>,
}

impl<S, B> Service<Request<Incoming>> for Limited<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Response = Response<Either<B, Empty<B::Data>>>;
    type Error = BoxError;
    type Future = LimitedFuture<S::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let shared = &self.connection.shared;
        if shared.in_flight() >= self.limits.max_requests {
            shared.refused_requests.fetch_add(1, Relaxed);
            let is_http2 = request.version() == Version::HTTP_2;
            if !is_http2 && !request.body().is_end_stream() {
                // hyper closes the connection without reading the body. The client must get the response.
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
        LimitedFuture::Called { future: self.app.call(request) }
    }
}

pin_project_lite::pin_project! {
    /// The response of a [`Limited`] service.
    #[project = LimitedState]
    pub(super) enum LimitedFuture<F> {
        /// The app was called.
        Called { #[pin] future: F },
        /// There were too many requests.
        Refused { is_reset: bool },
    }
}

impl<F, B, E> Future for LimitedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body,
{
    type Output = Result<Response<Either<B, Empty<B::Data>>>, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            LimitedState::Called { future } => {
                let response = ready!(future.poll(context)).map_err(Into::into)?;
                Poll::Ready(Ok(response.map(Either::Left)))
            }
            LimitedState::Refused { is_reset: true } => {
                Poll::Ready(Err(h2::Error::from(h2::Reason::REFUSED_STREAM).into()))
            }
            LimitedState::Refused { is_reset: false } => {
                let mut response = Response::new(Either::Right(Empty::new()));
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                Poll::Ready(Ok(response))
            }
        }
    }
}
