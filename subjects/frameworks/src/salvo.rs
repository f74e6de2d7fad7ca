//! salvo, on tokio's runtime.

use std::io;

use lowtide_tokio::Keeper;
use salvo::conn::tcp::TcpAcceptor;
use salvo::http::StatusCode;
use salvo::prelude::{Depot, FlowCtrl, Request, Response, Router, Server, handler};
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::figures::Counters;
use crate::options::Framework;
use crate::{MOST_UPLOADED, STREAMS, answer, expire};

/// Serves until the process is ended.
pub(crate) fn serve(
    listener: std::net::TcpListener,
    counters: Counters,
    keeper: Option<Keeper>,
) -> io::Result<()> {
    tokio::runtime::Runtime::new()?.block_on(run(listener, counters, keeper))
}

/// Runs the server. A keeper counts the requests and releases memory. It cannot recycle
/// connections: salvo runs them.
async fn run(
    listener: std::net::TcpListener,
    counters: Counters,
    keeper: Option<Keeper>,
) -> io::Result<()> {
    let acceptor: TcpAcceptor = TcpListener::from_std(listener)?.try_into()?;
    let mut server = Server::new(acceptor);
    server.http2_mut().max_concurrent_streams(STREAMS);
    if let Some(keeper) = &keeper {
        keeper.watch_runtime(Handle::current());
    }
    let router = Router::new()
        .hoop(Count(keeper))
        .get(Index(counters.clone()))
        .push(Router::with_path("upload").post(Upload(counters.clone())))
        .push(Router::with_path("figures").get(Figures(counters)));
    server.try_serve(router).await
}

/// Counts requests, if there is a keeper.
struct Count(Option<Keeper>);

#[handler]
impl Count {
    async fn handle(
        &self,
        request: &mut Request,
        depot: &mut Depot,
        response: &mut Response,
        control: &mut FlowCtrl,
    ) {
        let _guard = self.0.as_ref().map(Keeper::count_request);
        control.call_next(request, depot, response).await;
    }
}

struct Index(Counters);

#[handler]
impl Index {
    async fn handle(&self, request: &mut Request, response: &mut Response) {
        let _handled = self.0.begin();
        expire(request.query("expire")).await;
        response.render(answer(Framework::Salvo, request.version(), request.remote_addr()));
    }
}

struct Upload(Counters);

#[handler]
impl Upload {
    async fn handle(&self, request: &mut Request, response: &mut Response) {
        let _handled = self.0.begin();
        match request.payload_with_max_size(MOST_UPLOADED).await {
            Ok(picture) => response.render(picture.len().to_string()),
            Err(error) => {
                response.status_code(StatusCode::BAD_REQUEST);
                response.render(error.to_string());
            }
        }
    }
}

struct Figures(Counters);

#[handler]
impl Figures {
    async fn handle(&self, response: &mut Response) {
        response.render(self.0.json());
    }
}
