//! An axum server on HTTP/1 and HTTP/2: `/?expire=MS` holds its answer for so long, and 100 to
//! 2,000 bytes with it; `/echo/TEXT` answers TEXT at once.
use std::{collections::HashMap, time::Duration};

use axum::{
    extract::{Path, Query},
    routing::get,
    Router,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};

async fn wait(Query(query): Query<HashMap<String, u64>>) -> String {
    let expire = query.get("expire").copied().unwrap_or(0);
    let size = 100 + (&query as *const _ as usize >> 4) * 7919 % 1900;
    let held = vec![1_u8; size];
    tokio::time::sleep(Duration::from_millis(expire)).await;
    format!("{}", held.iter().map(|&byte| usize::from(byte)).sum::<usize>() == size)
}

async fn echo(Path(text): Path<String>) -> String {
    text
}

#[tokio::main]
async fn main() {
    let address = std::env::args().nth(1).expect("an address");
    let app = Router::new().route("/", get(wait)).route("/echo/{text}", get(echo));
    let listener = tokio::net::TcpListener::bind(address).await.expect("bind");
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let service = TowerToHyperService::new(app.clone());
        tokio::spawn(async move {
            let mut builder = Builder::new(TokioExecutor::new());
            builder.http2().max_concurrent_streams(1_000_000);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
