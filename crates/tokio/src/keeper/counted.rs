//! A service whose requests are counted, each until the body of its response was sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::service::Service;

use super::connection::{Connection, InFlight};

/// A service of one connection, whose requests are counted: [`Watch::service`](super::Watch::service).
#[derive(Debug, Clone)]
pub struct Counted<S> {
    inner: S,
    connection: Arc<Connection>,
}

impl<S> Counted<S> {
    pub(super) fn new(inner: S, connection: Arc<Connection>) -> Self {
        Self { inner, connection }
    }
}

/// The size of a request body on HTTP/1.1, in bytes; `None` if its header does not have it.
fn body_bytes<B>(request: &Request<B>) -> Option<u64> {
    let headers = request.headers();
    match headers.get(CONTENT_LENGTH) {
        Some(length) => length.to_str().ok()?.parse().ok(),
        None => (!headers.contains_key(TRANSFER_ENCODING)).then_some(0),
    }
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for Counted<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>>,
    ResponseBody: Body,
{
    type Response = Response<CountedBody<ResponseBody>>;
    type Error = S::Error;
    type Future = CountedFuture<S::Future>;

    fn call(&self, request: Request<RequestBody>) -> Self::Future {
        let mut guard = self.connection.begin();
        let is_http1 = request.version() < Version::HTTP_2;
        if is_http1 {
            self.connection.note_http1(body_bytes(&request));
        }
        if request.method() == Method::CONNECT {
            guard.set_endless();
        }
        CountedFuture {
            inner: self.inner.call(request),
            guard: Some(guard),
            connection: Arc::clone(&self.connection),
            is_http1,
        }
    }
}

pin_project_lite::pin_project! {
    /// The response of a [`Counted`] service.
    #[derive(Debug)]
    pub struct CountedFuture<F> {
        #[pin]
        inner: F,
        guard: Option<InFlight>,
        connection: Arc<Connection>,
        is_http1: bool,
    }
}

impl<F, B, E> Future for CountedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<CountedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.inner.poll(context));
        let mut guard = this.guard.take();
        Poll::Ready(response.map(|mut response| {
            let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            let body = response.body();
            let may_be_endless = !body.is_end_stream() && body.size_hint().exact().is_none();
            if let Some(guard) = guard.as_mut().filter(|_| is_upgrade || may_be_endless) {
                guard.set_endless();
            }
            if *this.is_http1 && !is_upgrade && this.connection.closes_next.load(Relaxed) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response.map(|inner| CountedBody { inner, guard })
        }))
    }
}

pin_project_lite::pin_project! {
    /// The body of a response. Its request is in flight until it is dropped.
    #[derive(Debug)]
    pub struct CountedBody<B> {
        #[pin]
        inner: B,
        guard: Option<InFlight>,
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.project().inner.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
