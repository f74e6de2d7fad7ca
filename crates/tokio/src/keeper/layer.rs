//! Counts the requests of servers that run their connections themselves.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::counted::{InFlightGuard, WatchedBody};
use super::request_guard::RequestGuard;
use super::shared::Shared;

/// A tower layer that counts requests: [`Keeper::layer`](super::Keeper::layer).
#[derive(Debug, Clone)]
pub struct CountLayer {
    pub(super) shared: Arc<Shared>,
}

impl<S> Layer<S> for CountLayer {
    type Service = CountService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CountService { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A tower service whose requests are counted: [`CountLayer`].
#[derive(Debug, Clone)]
pub struct CountService<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for CountService<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>>,
    ResponseBody: Body,
{
    type Response = Response<WatchedBody<ResponseBody>>;
    type Error = S::Error;
    type Future = CountServiceFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let guard = Some(RequestGuard::new(Arc::clone(&self.shared)));
        CountServiceFuture { inner: self.inner.call(request), guard }
    }
}

pin_project_lite::pin_project! {
    /// The response future of a [`CountService`].
    #[derive(Debug)]
    pub struct CountServiceFuture<F> {
        #[pin]
        inner: F,
        guard: Option<RequestGuard>,
    }
}

impl<F, B, E> Future for CountServiceFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<WatchedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.inner.poll(context));
        let guard = this.guard.take().map(|guard| InFlightGuard::Request { _guard: guard });
        Poll::Ready(response.map(|response| response.map(|body| WatchedBody::new(body, guard))))
    }
}
