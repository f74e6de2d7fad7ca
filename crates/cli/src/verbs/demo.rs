//! `lowtide demo`: the whole product in about two minutes, and the server of its burst.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use lowtide_model::bytes::Human;
use lowtide_model::number::HumanCount;
use lowtide_study::{Settings, TreatmentSettings, Words};

use super::study;
use crate::args::{DemoArgs, DemoServerArgs};
use crate::console::output::{Output, note};
use crate::failure::exit::{Exit, Failure};
use crate::shell::quoted;

/// Default number of requests in flight: enough to show the effect of a burst.
const USUAL_STREAMS: u32 = 50_000;
/// Maximum default number of requests in flight: more would make the demo too long.
const MOST_STREAMS: u32 = 75_000;
/// Number of connections, as in the million-streams post (docs/documents/README.md).
const CONNECTIONS: u32 = 8;
/// Memory of server and client per request in flight, in bytes: a generous estimate.
const BYTES_PER_STREAM: u64 = 16 << 10;
/// Divisor of the available memory: the demo uses at most this fraction.
const PART_OF_MEMORY: u64 = 4;

pub(crate) fn run(args: &DemoArgs, output: &Output) -> Result<Exit, Failure> {
    if cfg!(target_feature = "crt-static") {
        return Err(Failure::failed(
            "the demo preloads allocators into lowtide's own server, and nothing can be preloaded into this \
             lowtide, which is statically linked: run the demo with a lowtide that is linked with glibc, or \
             study a program of your own",
        )
        .next("lowtide study -- YOUR COMMAND"));
    }
    let streams = args.streams.unwrap_or_else(streams_for_this_machine);
    if streams == 0 {
        return Err(Failure::usage("--streams: must be at least 1"));
    }
    let address = free_address()?;
    let program = std::env::current_exe().map_err(|error| {
        Failure::failed(format!("lowtide cannot find its own program to start it again: {error}"))
    })?;
    let program = program.into_os_string().into_string().map_err(|path| {
        Failure::failed(format!("{} is not valid UTF-8, which a record requires", path.display()))
    })?;
    // Long enough that the last request is sent before the first response.
    let expire_ms = 2000 + u64::from(streams) / 50;
    let load = format!(
        "exec {} --json load 'http://{address}/?expire={expire_ms}' -c {CONNECTIONS} -m {} -n {streams}",
        quoted(&program),
        // More than one, which requires HTTP/2.
        streams.div_ceil(CONNECTIONS).max(2)
    );
    let settings = Settings {
        name: Some("demo".to_owned()),
        about: Some(format!(
            "{streams} HTTP/2 requests are in flight at once, over {CONNECTIONS} connections, to a server whose \
             handler sleeps for {:.1} s. How much memory does the process still hold after the load?",
            expire_ms as f64 / 1000.0
        )),
        command: Some(vec![program, "demo-server".to_owned(), address.to_string()]),
        allocator: Some(Words::Joined("glibc,jemalloc,mimalloc".to_owned())),
        // By default, jemalloc returns no memory while it is idle. With this setting, it does.
        tune: Some(vec!["jemalloc/background_thread".to_owned()]),
        treatment: vec![TreatmentSettings {
            allocator: Words::Joined("glibc".to_owned()),
            policy: Some("adaptive".to_owned()),
            ..TreatmentSettings::default()
        }],
        load: Some(load),
        ready: Some("log:^listening on ".to_owned()),
        settle: Some("3s".to_owned()),
        repeat: Some(args.repeat),
        output: args.output.clone(),
        ..Settings::default()
    };
    let times = if args.repeat == 1 { "once".to_owned() } else { format!("{} times", args.repeat) };
    let begins = format!(
        "{} requests in flight at once, under 5 treatments, each {times}",
        HumanCount(streams.into())
    );
    let exit = study::run_settings(settings, &begins, output)?;
    if !output.json {
        output.text("next: lowtide study -- YOUR COMMAND   (lowtide study --help)\n")?;
    }
    Ok(exit)
}

pub(crate) fn server(args: &DemoServerArgs) -> Result<Exit, Failure> {
    lowtide_demo::server::run(args.address)
        .map_err(|error| Failure::failed(format!("{}: {error}", args.address)))?;
    Ok(Exit::Done)
}

fn streams_for_this_machine() -> u32 {
    let machine = lowtide_probe::machine::detect();
    let at_hand = [machine.memory_available_bytes, machine.cgroup_limit_bytes];
    let streams = streams_for(at_hand.into_iter().flatten().min());
    if streams < USUAL_STREAMS {
        note!(
            "note: {USUAL_STREAMS} requests in flight would show more, but need {} of available memory; \
             --streams sets another number",
            Human(u64::from(USUAL_STREAMS) * BYTES_PER_STREAM * PART_OF_MEMORY)
        );
    }
    streams
}

fn streams_for(bytes_at_hand: Option<u64>) -> u32 {
    let Some(bytes) = bytes_at_hand else { return USUAL_STREAMS };
    let fits = bytes / PART_OF_MEMORY / BYTES_PER_STREAM;
    u32::try_from(fits).unwrap_or(MOST_STREAMS).clamp(1, MOST_STREAMS)
}

/// Returns an address with a free port. The port is closed at once, so another process could bind
/// it before the server does; the server then reports an error.
fn free_address() -> Result<SocketAddr, Failure> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    TcpListener::bind(any)
        .and_then(|listener| listener.local_addr())
        .map_err(|error| Failure::failed(format!("no port is available on 127.0.0.1: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_burst_takes_at_most_a_quarter_of_the_available_memory() {
        assert_eq!(streams_for(Some(1 << 30)), 16_384);
        assert_eq!(streams_for(Some(1 << 40)), MOST_STREAMS);
        assert_eq!(streams_for(None), USUAL_STREAMS);
    }
}
