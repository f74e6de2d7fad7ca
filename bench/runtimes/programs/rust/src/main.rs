//! A report service: each request builds a table of 50,000 rows and returns it as JSON.

use axum::{Json, Router, routing::get};
use serde::Serialize;

#[derive(Serialize)]
struct Row {
    id: u32,
    name: String,
    total: f64,
    tags: Vec<String>,
}

async fn report() -> Json<Vec<Row>> {
    let row = |id: u32| Row {
        id,
        name: format!("customer {id}"),
        total: f64::from(id) * 1.5,
        tags: vec!["a".into(), "b".into(), id.to_string()],
    };
    Json((0..50_000).map(row).collect())
}

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
        axum::serve(listener, Router::new().route("/", get(report))).await
    })
}
