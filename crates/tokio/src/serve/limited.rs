//! A service that answers at once when there are too many requests.

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
use crate::keeper::shared::Shared;

/// Any error.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// The service of one connection.
#[derive(Debug, Clone)]
pub(super) struct Limited<S> {
    pub(super) app: S,
    pub(super) peer: SocketAddr,
    pub(super) limits: Limits,
    pub(super) shared: Arc<Shared>,
}

impl<S, B> Service<Request<Incoming>> for Limited<S>
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Response = Response<Either<B, Empty<B::Data>>>;
    type Error = BoxError;
    type Future = LimitedFuture<S, S::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        // This one is among them.
        if self.shared.in_flight() > self.limits.max_requests {
            self.shared.refused_requests.fetch_add(1, Relaxed);
            let is_http2 = request.version() == Version::HTTP_2;
            let is_reset = is_http2 && self.limits.overload == Overload::RefusedStream;
            return LimitedFuture::Refused { is_reset };
        }
        request.extensions_mut().insert(PeerAddr(self.peer));
        LimitedFuture::Ready { app: self.app.clone(), request: Some(request) }
    }
}

pin_project_lite::pin_project! {
    /// The response of a [`Limited`] service.
    #[project = LimitedState]
    #[project_replace = LimitedReplaced]
    pub(super) enum LimitedFuture<S, F> {
        /// The app must be ready first.
        Ready { app: S, request: Option<Request<Incoming>> },
        /// The app answers.
        Called { #[pin] future: F },
        /// There were too many.
        Refused { is_reset: bool },
    }
}

impl<S, B> Future for LimitedFuture<S, S::Future>
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Output = Result<Response<Either<B, Empty<B::Data>>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.as_mut().project() {
                LimitedState::Ready { app, request } => {
                    ready!(app.poll_ready(context)).map_err(Into::into)?;
                    let Some(request) = request.take() else { return Poll::Pending };
                    let future = app.call(request);
                    self.as_mut().project_replace(Self::Called { future });
                }
                LimitedState::Called { future } => {
                    let response = ready!(future.poll(context)).map_err(Into::into)?;
                    return Poll::Ready(Ok(response.map(Either::Left)));
                }
                LimitedState::Refused { is_reset: true } => {
                    return Poll::Ready(Err(h2::Error::from(h2::Reason::REFUSED_STREAM).into()));
                }
                LimitedState::Refused { is_reset: false } => {
                    let mut response = Response::new(Either::Right(Empty::new()));
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}
