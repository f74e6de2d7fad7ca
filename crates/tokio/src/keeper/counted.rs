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
use super::request_guard::RequestGuard;

/// A service of one connection, whose requests are counted:
/// [`Watch::service`](super::Watch::service).
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

/// A request that waits for its response.
#[derive(Debug)]
pub(crate) struct Waiting {
    guard: InFlight,
    is_connect: bool,
}

impl Waiting {
    /// Counts a request that starts.
    pub(crate) fn begin<B>(connection: &Arc<Connection>, request: &Request<B>) -> Self {
        let is_http1 = request.version() < Version::HTTP_2;
        let mut guard = connection.begin(is_http1);
        let is_connect = request.method() == Method::CONNECT;
        if is_connect {
            guard.set_endless();
        }
        if is_grpc(request) {
            connection.set_grpc();
        }
        Self { guard, is_connect }
    }

    /// Marks the handler as pending.
    pub(crate) fn set_pending(&mut self) {
        self.guard.set_pending(true);
    }

    /// Counts the request until the body of the response is dropped. `wrap` converts the body.
    pub(crate) fn respond<B: Body, C>(
        self,
        mut response: Response<B>,
        wrap: impl FnOnce(B) -> C,
    ) -> Response<WatchedBody<C>> {
        let Self { mut guard, is_connect } = self;
        let status = response.status();
        let is_http1 = guard.is_http1();
        let is_upgrade = is_http1 && status == StatusCode::SWITCHING_PROTOCOLS
            || is_connect && status.is_success();
        let guard = if is_upgrade {
            guard.upgrade();
            None
        } else {
            if is_http1 && guard.closes_now() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            let body = response.body();
            if !body.is_end_stream() && body.size_hint().exact().is_none() {
                guard.set_endless();
            }
            guard.set_pending(false);
            Some(InFlightGuard::Connection(guard))
        };
        response.map(|body| WatchedBody::new(wrap(body), guard))
    }
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
        let waiting = Some(Waiting::begin(&self.connection, &request));
        WatchedFuture { inner: self.inner.call(request), waiting }
    }
}

pin_project_lite::pin_project! {
    /// The response future of a [`WatchedService`].
    #[derive(Debug)]
    pub struct WatchedFuture<F> {
        #[pin]
        inner: F,
        waiting: Option<Waiting>,
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
        let result = this.inner.poll(context);
        poll_response(result, this.waiting, |body| body)
    }
}

/// Returns the response of a request whose handler was polled. `waiting` is `None` once there is a
/// response.
#[inline]
pub(crate) fn poll_response<B: Body, C, E>(
    result: Poll<Result<Response<B>, E>>,
    waiting: &mut Option<Waiting>,
    wrap: impl FnOnce(B) -> C,
) -> Poll<Result<Response<WatchedBody<C>>, E>> {
    match result {
        Poll::Pending => {
            if let Some(waiting) = waiting {
                waiting.set_pending();
            }
            Poll::Pending
        }
        Poll::Ready(result) => {
            let waiting = waiting.take();
            Poll::Ready(result.map(|response| match waiting {
                Some(waiting) => waiting.respond(response, wrap),
                // A future must not be polled after it is ready.
                None => response.map(|body| WatchedBody::new(wrap(body), None)),
            }))
        }
    }
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(crate) enum InFlightGuard {
    /// A request on a connection with a watch.
    Connection(InFlight),
    /// A request on a connection without a watch.
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
        guard: Option<InFlightGuard>,
    }
}

impl<B> WatchedBody<B> {
    pub(crate) fn new(inner: B, guard: Option<InFlightGuard>) -> Self {
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
        // A frame that was returned may wait for the client's flow-control window. A pending frame
        // waits for the app.
        if let Some(InFlightGuard::Connection(guard)) = this.guard {
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
