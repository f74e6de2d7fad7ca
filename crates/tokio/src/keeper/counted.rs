//! A service whose requests are counted, each until the body of its response was sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::service::Service;

use super::connection::{Connection, InFlight};
use super::layer::RequestGuard;

/// A service of one connection, whose requests are counted: [`Watch::service`](super::Watch::service).
#[derive(Debug, Clone)]
pub struct WatchedService<S> {
    inner: S,
    connection: Arc<Connection>,
}

impl<S> WatchedService<S> {
    pub(super) fn new(inner: S, connection: Arc<Connection>) -> Self {
        Self { inner, connection }
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for WatchedService<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>>,
    ResponseBody: Body,
{
    type Response = Response<WatchedBody<ResponseBody>>;
    type Error = S::Error;
    type Future = WatchedFuture<S::Future>;

    fn call(&self, request: Request<RequestBody>) -> Self::Future {
        let is_http1 = request.version() < Version::HTTP_2;
        let mut guard = self.connection.begin(is_http1);
        let is_connect = request.method() == Method::CONNECT;
        if is_connect {
            guard.set_endless();
        }
        if is_grpc(&request) {
            self.connection.set_grpc();
        }
        WatchedFuture { inner: self.inner.call(request), guard: Some(guard), is_connect }
    }
}

pin_project_lite::pin_project! {
    /// The response future of a [`WatchedService`].
    #[derive(Debug)]
    pub struct WatchedFuture<F> {
        #[pin]
        inner: F,
        guard: Option<InFlight>,
        is_connect: bool,
    }
}

impl<F, B, E> Future for WatchedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<WatchedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Poll::Ready(response) = this.inner.poll(context) else {
            if let Some(guard) = this.guard {
                guard.set_pending(true);
            }
            return Poll::Pending;
        };
        let mut guard = this.guard.take();
        Poll::Ready(response.map(|mut response| {
            let status = response.status();
            let is_http1 = guard.as_ref().is_some_and(InFlight::is_http1);
            let is_upgrade = is_http1 && status == StatusCode::SWITCHING_PROTOCOLS
                || *this.is_connect && status.is_success();
            let body = response.body();
            let may_be_endless = !body.is_end_stream() && body.size_hint().exact().is_none();
            if is_upgrade {
                if let Some(guard) = guard.take() {
                    guard.upgrade();
                }
            } else if is_http1 && guard.as_ref().is_some_and(InFlight::closes_now) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            if let Some(guard) = &mut guard {
                if may_be_endless {
                    guard.set_endless();
                }
                guard.set_pending(false);
            }
            response.map(|body| WatchedBody::new(body, guard.map(Guard::Connection)))
        }))
    }
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(super) enum Guard {
    /// On a connection that has a watch.
    Connection(InFlight),
    /// On a connection of which nothing is known.
    Request {
        /// Counts until it is dropped.
        _guard: RequestGuard,
    },
}

pin_project_lite::pin_project! {
    /// The body of a response. Its request is in flight until it is dropped.
    #[derive(Debug)]
    pub struct WatchedBody<B> {
        #[pin]
        inner: B,
        guard: Option<Guard>,
    }
}

impl<B> WatchedBody<B> {
    pub(super) fn new(inner: B, guard: Option<Guard>) -> Self {
        Self { inner, guard }
    }
}

impl<B: Body> Body for WatchedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let frame = this.inner.poll_frame(context);
        // A frame that was returned may wait for the client's flow-control window. A pending frame waits for the app.
        if let Some(Guard::Connection(guard)) = this.guard {
            guard.set_pending(frame.is_pending());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
