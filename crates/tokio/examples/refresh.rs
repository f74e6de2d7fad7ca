//! The refresh of a runtime, by which some servers return memory (tokio#6760): connections are
//! served on a runtime that is replaced when it has no task. The threads of the old runtime end,
//! and some allocators then return what they cached.
//!
//!     cargo run --release -p lowtide-tokio --example refresh -- 127.0.0.1:3000
//!
//! Its limits:
//!
//! - It waits until every connection is closed: one client with a connection that stays open
//!   prevents it.
//! - The tables of open HTTP/2 connections stay. A [`Keeper`](lowtide_tokio::Keeper) recycles these
//!   connections.
//! - glibc keeps the memory of threads that have ended: `malloc_trim` is still needed.
//! - Everything that a handler spawns must run on this runtime, or its memory is not returned.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::{Router, routing::get};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::{server::conn::auto, service::TowerToHyperService};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

#[tokio::main]
async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let app = Router::new().route("/", get(|| async { "hello\n" }));
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let serving = Arc::new(RwLock::new(Runtime::new()?));
    let refreshed = Arc::clone(&serving);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            // No connection can begin while this lock is held.
            let mut runtime = refreshed.write().unwrap_or_else(PoisonError::into_inner);
            if runtime.metrics().num_alive_tasks() == 0
                && let Ok(new) = Runtime::new()
            {
                std::mem::replace(&mut *runtime, new).shutdown_background();
            }
        }
    });
    loop {
        let (stream, _) = listener.accept().await?;
        let service = TowerToHyperService::new(app.clone());
        let stream = stream.into_std()?;
        serving.read().unwrap_or_else(PoisonError::into_inner).spawn(async move {
            // The socket is registered with the runtime that serves it.
            let stream = tokio::net::TcpStream::from_std(stream)?;
            let builder = auto::Builder::new(TokioExecutor::new());
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            connection.await.map_err(io::Error::other)
        });
    }
}
