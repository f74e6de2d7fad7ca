//! The server of the post (studies/README.md): every request sleeps for the time that it
//! specifies, so that a million of them are in flight at once. It also has the instruments of the
//! post: a counting allocator, the number of live tasks, resident memory, and a runtime that is
//! replaced when it has no more tasks.
//!
//! ```text
//! subject-million-streams [--refresh] [--keep recycle,sweep,release] [--figures FILE] [ADDRESS]
//!                                                 ADDRESS: 127.0.0.1:3000; --keep: what lowtide-tokio does
//! curl 'http://127.0.0.1:3000/?expire=20000'      axum(PID) HTTP/1.1 PEER
//! curl http://127.0.0.1:3000/figures              its counters as JSON
//! ```

mod allocator;
mod figures;
mod options;
mod runtime;
mod server;

use std::process::ExitCode;

use lowtide_tokio::Tracked;
use subject_common::Counting;

use allocator::Real;
use figures::Counters;
use options::Options;
use runtime::Rolling;

#[global_allocator]
static ALLOCATOR: Counting<Tracked<Real>> = Counting(Tracked::new(Real));

/// As in the post, the listener and the monitor run on the main runtime. Connections are served
/// on the runtime that is replaced.
#[tokio::main]
async fn main() -> ExitCode {
    let ran = match Options::read(std::env::args().skip(1)) {
        Ok(options) => run(options).await,
        Err(sentence) => Err(sentence),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), String> {
    let rolling = Rolling::new().map_err(|error| format!("no runtime: {error}"))?;
    let keeper = options.acts.map(|acts| server::keep(acts, &rolling)).transpose();
    let keeper = keeper.map_err(|error| format!("no keeper: {error}"))?;
    let counters = Counters::new(rolling.clone(), keeper.clone());
    println!("axum-demo pid is {}", std::process::id());
    let address = options.address;
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(|error| format!("{address} cannot be listened on: {error}"))?;
    println!("listening on {address}");
    tokio::spawn(figures::monitor(counters.clone(), rolling.clone(), options));
    server::serve(listener, counters, &rolling, keeper).await
}
