//! `lowtide load URL…`.

mod asked;
mod shown;

use lowtide_load::RunError;
use lowtide_load::failure::Failure as Reason;
use lowtide_load::limits::{self, Given};
use lowtide_report::load as picture;

use crate::args::LoadArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::output::Output;

pub(crate) fn run(args: &LoadArgs, output: &Output) -> Result<Exit, Failure> {
    let plan = asked::plan(args)?;
    let machine = lowtide_probe::machine::look();
    let at_hand = [machine.memory_available_bytes, machine.cgroup_limit_bytes];
    let given = Given {
        files: limits::raise_files(),
        memory_bytes: at_hand.into_iter().flatten().min(),
        ports: limits::ports(),
    };
    let mut shown = shown::Shown::new(args, &plan, &machine, output)?;
    let interrupt = interrupt::flag();
    let done = lowtide_load::run(&plan, &given, &mut shown, &interrupt);
    shown.finish()?;
    let report = done.map_err(|error| failure(error, args))?;
    if output.json {
        output.object(&report)?;
    } else {
        output.text(&picture::end(&report, output.screen()))?;
    }
    Ok(if report.interrupted { Exit::Interrupted } else { Exit::Done })
}

/// Why there was nothing to report, and what helps.
fn failure(error: RunError, args: &LoadArgs) -> Failure {
    let failure = match &error {
        RunError::Limit(_) | RunError::Tls(_) => Failure::usage(&error),
        _ => Failure::failed(&error),
    };
    let RunError::NoConnection { target, failure: reason } = &error else { return failure };
    let again = |flag: &str| format!("lowtide load {} {flag}", crate::shell::quoted(target));
    match reason {
        Reason::NotTrusted(_) => failure.next(again("-k")),
        Reason::NotHttp1("HTTP/2") => failure.next(again("--http2")),
        Reason::NotHttp1("TLS") => failure.next(again("").trim().replacen("http:", "https:", 1)),
        // Many servers close without a word when they are asked for a protocol that they do not speak.
        Reason::Closed | Reason::Reset if args.http2 || args.streams > Some(1) => {
            failure.next(again("--http1"))
        }
        Reason::NotHttp2(_) | Reason::NoProtocol if !args.http1 => failure.next(again("--http1")),
        Reason::NoProtocol => failure.next(again("--http2")),
        Reason::Tls("what came was not TLS") => {
            let plain = again("").replacen("https:", "http:", 1).replacen("tls:", "tcp:", 1);
            failure.next(plain.trim())
        }
        Reason::Refused => Failure::failed(format!("{error}: is the server running there?")),
        _ => failure,
    }
}
