//! A gRPC server by tonic, on lowtide-tokio's `serve`.
//!
//!     cargo run --release --bin tonic -- 127.0.0.1:3000
//!
//! The service is the health check of gRPC. `serve` takes the place of tonic's `Server`. For TLS,
//! use an accept loop of your own, as the README of lowtide-tokio shows. Connections with gRPC
//! requests are not recycled, because tonic's client fails some calls when it receives a GOAWAY.
//! See `Recycle::grpc`.

use std::alloc::System;
use std::error::Error;

use lowtide_tokio::{Tracked, serve};
use tokio::net::TcpListener;
use tonic::service::Routes;

#[global_allocator]
static ALLOCATOR: Tracked<System> = Tracked::new(System);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let (_reporter, health) = tonic_health::server::health_reporter();
    serve(listener, Routes::new(health).prepare()).await?;
    Ok(())
}
