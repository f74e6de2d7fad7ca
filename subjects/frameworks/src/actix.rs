//! actix-web on its own runtime: one thread per core, each with connections of its own.

use std::io;
use std::time::Duration;

use actix_web::dev::Service;
use actix_web::http::KeepAlive;
use actix_web::web::{Bytes, Data, PayloadConfig, Query, get, post};
use actix_web::{App, HttpRequest, HttpServer};
use lowtide_tokio::Keeper;
use serde::Deserialize;
use tokio::runtime::Handle;

use crate::figures::Counters;
use crate::options::Framework;
use crate::{MOST_UPLOADED, answer, expire};

/// Maximum time to read a request. The default is 5 s, which a busy machine exceeds.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Deserialize)]
struct Asked {
    expire: Option<u64>,
}

/// Serves until the process is ended.
pub(crate) fn serve(
    listener: std::net::TcpListener,
    counters: Counters,
    keeper: Option<Keeper>,
) -> io::Result<()> {
    actix_web::rt::System::new().block_on(run(listener, counters, keeper))
}

/// Runs the server. A keeper counts the requests and releases memory. It cannot recycle
/// connections: actix-web runs them.
async fn run(
    listener: std::net::TcpListener,
    counters: Counters,
    keeper: Option<Keeper>,
) -> io::Result<()> {
    HttpServer::new(move || {
        if let Some(keeper) = &keeper {
            keeper.watch_runtime(Handle::current());
        }
        let keeper = keeper.clone();
        App::new()
            .wrap_fn(move |request, service| {
                let guard = keeper.as_ref().map(Keeper::count_request);
                let response = service.call(request);
                async move {
                    let response = response.await;
                    drop(guard);
                    response
                }
            })
            .app_data(Data::new(counters.clone()))
            .app_data(PayloadConfig::new(MOST_UPLOADED))
            .route("/", get().to(index))
            .route("/upload", post().to(upload))
            .route("/figures", get().to(async |counters: Data<Counters>| counters.json()))
    })
    // The default of 5 s ends a connection if the answer to a ping waits behind a burst.
    .keep_alive(KeepAlive::Os)
    .client_request_timeout(PATIENCE)
    .listen_auto_h2c(listener)?
    .run()
    .await
}

async fn index(request: HttpRequest, counters: Data<Counters>, asked: Query<Asked>) -> String {
    let _handled = counters.begin();
    expire(asked.expire).await;
    let peer = request.peer_addr().map_or("somebody".to_owned(), |peer| peer.to_string());
    answer(Framework::Actix, request.version(), peer)
}

async fn upload(counters: Data<Counters>, picture: Bytes) -> String {
    let _handled = counters.begin();
    picture.len().to_string()
}
