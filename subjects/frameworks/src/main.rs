//! The servers of the post (studies/README.md): axum, actix-web and salvo under the same test.
//! Every request sleeps for the time that it specifies, so that a million of them are in flight at
//! once. An uploaded picture is read completely, and the response is its length. axum can decode it
//! as well.
//!
//! ```text
//! subject-frameworks axum|actix|salvo [--keep] [--figures FILE] [ADDRESS]
//!                                      --keep: lowtide-tokio keeps the memory low; ADDRESS: 127.0.0.1:3000
//! curl 'http://127.0.0.1:3000/?expire=20000'                  axum(PID) HTTP/1.1 PEER
//! curl --data-binary @picture http://127.0.0.1:3000/upload    its length
//! curl --data-binary @picture http://127.0.0.1:3000/decode    its width and height (axum)
//! curl http://127.0.0.1:3000/figures                          its counters as JSON
//! subject-frameworks picture SIDE >picture                    a JPEG picture of SIDE × SIDE pixels
//! ```

mod actix;
mod axum;
mod figures;
mod options;
mod pictures;
mod salvo;

use std::alloc::System;
use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;

use lowtide_tokio::{Keeper, Tracked};
use subject_common::Counting;

use figures::{Counters, monitor};
use options::{Framework, Options};

#[global_allocator]
static ALLOCATOR: Counting<Tracked<System>> = Counting(Tracked::new(System));

/// Maximum number of streams of one connection. The h2 library has no limit of its own, hyper has
/// 200.
const STREAMS: u32 = 1_000_000;
/// Maximum size of a picture, in bytes.
const MOST_UPLOADED: usize = 64 << 20;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    let ran = if words.next_if_eq("picture").is_some() {
        picture(words.next())
    } else {
        Options::read(words).and_then(run)
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a picture to the standard output.
fn picture(side: Option<String>) -> Result<(), String> {
    let side = side.and_then(|side| side.parse().ok()).filter(|side| (1..=65_535).contains(side));
    let side = side.ok_or("how many pixels has each side, from 1 to 65,535?")?;
    pictures::write(side, std::io::stdout().lock())
}

fn run(options: Options) -> Result<(), String> {
    let Options { framework, address, .. } = options;
    let name = framework.name();
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| format!("{address} cannot be listened on: {error}"))?;
    println!("{name}-demo pid is {}", std::process::id());
    println!("listening on {address}");
    let keeper = options.keep.then(Keeper::start).transpose();
    let keeper = keeper.map_err(|error| format!("no keeper: {error}"))?;
    let counters = Counters::default();
    let watched = counters.clone();
    std::thread::spawn(move || monitor(&watched, &options));
    let served = match framework {
        Framework::Axum => axum::serve(listener, counters, keeper),
        Framework::Actix => actix::serve(listener, counters, keeper),
        Framework::Salvo => salvo::serve(listener, counters, keeper),
    };
    served.map_err(|error| format!("{name} cannot serve: {error}"))
}

/// Waits for the number of ms that the request specifies.
async fn expire(milliseconds: Option<u64>) {
    if let Some(milliseconds) = milliseconds {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    }
}

/// Returns the response of the post: the server, the version of HTTP, and the client.
fn answer(
    framework: Framework,
    version: impl std::fmt::Debug,
    peer: impl std::fmt::Display,
) -> String {
    format!("{}({}) {version:?} {peer}", framework.name(), std::process::id())
}
