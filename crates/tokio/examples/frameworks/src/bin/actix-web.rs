//! actix-web. The keeper releases memory when the load has fallen. It cannot recycle connections,
//! because actix-web runs them itself.
//!
//!     cargo run --release --bin actix-web -- 127.0.0.1:3000

use std::alloc::System;
use std::io;

use actix_web::dev::Service;
use actix_web::{App, HttpServer, web};
use lowtide_tokio::{Keeper, Tracked};
use tokio::runtime::Handle;

#[global_allocator]
static ALLOCATOR: Tracked<System> = Tracked::new(System);

#[actix_web::main]
async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let keeper = Keeper::start()?;
    let server = HttpServer::new(move || {
        // Each worker has a runtime of its own, and calls this once. mimalloc and jemalloc need a
        // sweep of each.
        keeper.watch_runtime(Handle::current());
        let keeper = keeper.clone();
        App::new()
            .wrap_fn(move |request, service| {
                let guard = keeper.count_request();
                let response = service.call(request);
                async move {
                    let response = response.await;
                    drop(guard);
                    response
                }
            })
            .route("/", web::get().to(async || "hello\n"))
    });
    let server = server.bind_auto_h2c(address)?;
    for address in server.addrs() {
        println!("{address}");
    }
    server.run().await
}
