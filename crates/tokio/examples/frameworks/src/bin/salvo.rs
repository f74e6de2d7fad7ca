//! salvo. The keeper releases memory when the load has fallen. It cannot recycle connections,
//! because salvo runs them itself.
//!
//!     cargo run --release --bin salvo -- 127.0.0.1:3000

use std::alloc::System;
use std::error::Error;

use lowtide_tokio::{Keeper, Tracked};
use salvo::conn::tcp::TcpAcceptor;
use salvo::prelude::{Depot, FlowCtrl, Request, Response, Router, Server, handler};
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: Tracked<System> = Tracked::new(System);

/// Counts requests.
struct Count(Keeper);

#[handler]
impl Count {
    async fn handle(
        &self,
        request: &mut Request,
        depot: &mut Depot,
        response: &mut Response,
        control: &mut FlowCtrl,
    ) {
        let _guard = self.0.count_request();
        control.call_next(request, depot, response).await;
    }
}

#[handler]
async fn hello() -> &'static str {
    "hello\n"
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let acceptor: TcpAcceptor = listener.try_into()?;
    let router = Router::new().hoop(Count(Keeper::start()?)).get(hello);
    Server::new(acceptor).try_serve(router).await?;
    Ok(())
}
