//! axum on axum-server. The keeper releases memory when the load has fallen. It cannot recycle
//! connections, because axum-server runs them itself.
//!
//!     cargo run --release --bin axum-server -- 127.0.0.1:3000

use std::alloc::System;
use std::io;
use std::net::TcpListener;

use axum::Router;
use axum::routing::get;
use lowtide_tokio::{Keeper, Tracked};

#[global_allocator]
static ALLOCATOR: Tracked<System> = Tracked::new(System);

#[tokio::main]
async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    println!("{}", listener.local_addr()?);
    let keeper = Keeper::start()?;
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(keeper.layer());
    axum_server::from_tcp(listener)?.serve(app.into_make_service()).await
}
