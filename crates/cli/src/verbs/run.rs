//! `lowtide run`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lowtide_model::bytes::Human;
use lowtide_policy::PolicyKind;
use lowtide_probe::process::ProcReader;
use lowtide_probe::sampler::Sampler;
use lowtide_probe::target::Target;
use lowtide_probe::tree::descendants_of;
use lowtide_release::ReleaseError;
use lowtide_study::launch_under;
use lowtide_supervise::black_box::BoxSize;
use lowtide_supervise::reaper::{self, Policy, PolicyContext, ServiceCommand};
use lowtide_supervise::{Scope, Supervisor};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::args::RunArgs;
use crate::console::output::note;
use crate::failure::exit::{Exit, Failure};
use crate::supervision::{ActReporter, Printed, SupervisionRecord, is_lowtide, options, prepare};

/// Runs the command to completion, and passes on its exit status.
pub(crate) fn run(args: RunArgs) -> Result<Exit, Failure> {
    let failed = |failure: Failure| failure.with_exit(Exit::RunFailed);
    let fallback = fallback(&args);
    let service = match (service(&args, fallback), fallback) {
        (Err(failure), Fallback::Trim) if !args.policy.policy.needs_preload() => {
            note!("lowtide: the memory of the command will not be released: {failure}");
            service(&args, Fallback::None).map_err(failed)?
        }
        (service, _) => service.map_err(failed)?,
    };
    // An unwritable log must be reported before the command starts.
    drop(reporter(&args).map_err(failed)?);
    args.policy.output.as_deref().map_or(Ok(()), SupervisionRecord::check).map_err(failed)?;
    let supervise = |context: PolicyContext| supervise(&args, context);
    let policy = Policy { run: &supervise, is_first_victim: args.policy.black_box.is_none() };
    let policy = is_supervised(&args, fallback).then_some(policy);
    let ended = reaper::run(&service, policy).map_err(|error| {
        let exit = match error.code() {
            126 => Exit::NotExecutable,
            127 => Exit::NotFound,
            _ => Exit::RunFailed,
        };
        Failure::new(exit, error)
    })?;
    ended.pass_on()
}

/// Returns whether a process observes the command: to release its memory, or for the record.
fn is_supervised(args: &RunArgs, fallback: Fallback) -> bool {
    let releases = args.policy.policy != PolicyKind::None && fallback == Fallback::None;
    releases || args.policy.output.is_some() || args.policy.black_box.is_some()
}

fn reporter(args: &RunArgs) -> Result<ActReporter, Failure> {
    ActReporter::open(&args.policy, Printed::Warnings, None)
}

/// Returns the command with its allocator, the allocator's setting, and the library that the policy
/// needs.
fn service(args: &RunArgs, fallback: Fallback) -> Result<ServiceCommand, Failure> {
    let policy = args.policy.policy;
    let needs_preload = policy.needs_preload() || fallback == Fallback::Trim;
    let (mut command, mut set) = (args.command.clone(), Vec::new());
    if args.allocator.is_some() || args.tune.is_some() || needs_preload {
        let text = |word: &OsString| {
            let text = word.to_str().map(str::to_owned);
            text.ok_or_else(|| Failure::usage(
                    "the command must be valid UTF-8 with --allocator, --tune, --unbounded or the policy freed",
                ))
        };
        let words: Vec<String> = args.command.iter().map(text).collect::<Result<_, _>>()?;
        // The library that counts freed bytes also calls malloc_trim.
        let preloaded = if needs_preload { PolicyKind::Freed(trim_at(policy)) } else { policy };
        let (allocator, tune) = (args.allocator.as_deref(), args.tune.as_deref());
        let launch = launch_under(allocator, tune, preloaded, &words).map_err(Failure::usage)?;
        command = launch.command.into_iter().map(OsString::from).collect();
        set = launch.set.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    }
    if fallback == Fallback::Trim {
        set.push((lowtide_preload::TRIM_AT.into(), trim_at(policy).to_string().into()));
    }
    ServiceCommand::new(&command, &set, &[]).map_err(Failure::usage)
}

/// Number of bytes that are freed between two calls of malloc_trim, unless the policy sets it.
const TRIM_AT_BYTES: u64 = 256 << 20;

/// Returns the number of bytes that are freed between two calls of malloc_trim.
fn trim_at(policy: PolicyKind) -> u64 {
    match policy {
        PolicyKind::Freed(bytes) => bytes,
        _ => TRIM_AT_BYTES,
    }
}

/// The mechanism that releases memory where processes may not be traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fallback {
    /// Nothing.
    None,
    /// Threads that free memory call malloc_trim.
    Trim,
}

/// Returns the fallback: the command releases its own memory if it may not be traced and the user
/// permits that.
fn fallback(args: &RunArgs) -> Fallback {
    if !args.unbounded || args.policy.policy == PolicyKind::None || may_trace() {
        return Fallback::None;
    }
    note!(
        "lowtide: the kernel forbids tracing here: the command calls malloc_trim itself each time that it has freed {}",
        Human(trim_at(args.policy.policy))
    );
    Fallback::Trim
}

/// Returns whether a child of this process may be traced.
fn may_trace() -> bool {
    let Ok(program) = std::env::current_exe() else { return true };
    // The keeper waits for a line on stdin.
    let mut command = Command::new(program);
    command.arg("keep").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return true };
    let target = Target::open(child.id());
    let may = target.is_ok_and(|target| lowtide_release::check_permission(&target).is_ok());
    let _ = child.kill();
    let _ = child.wait();
    may
}

/// Supervises the command and its descendants, in a process of its own. Returns the exit code.
fn supervise(args: &RunArgs, context: PolicyContext) -> u8 {
    let interrupt = Arc::new(AtomicBool::new(false));
    let _ = signal_hook::flag::register(SIGTERM, Arc::clone(&interrupt));
    // Signals from a terminal are for the command, which may handle them and continue.
    for signal in [SIGINT, SIGHUP, SIGQUIT] {
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
    let mut reporter = match reporter(args) {
        Ok(reporter) => reporter,
        Err(failure) => {
            note!("lowtide: {failure}");
            return 1;
        }
    };
    if let Err(failure) = prepare() {
        note!("lowtide: the memory of the command will not be released: {failure}");
        return 0;
    }
    let scope = Scope::of_selection(move || {
        let mut below: BTreeSet<u32> = descendants_of(context.reaper);
        below.retain(|pid| !is_lowtide(*pid));
        Some(below)
    });
    if let Some(path) = &args.policy.output {
        let words = args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        // The subject is the service with its descendants. Apart from this process, the reaper has
        // no others.
        let sampler = Sampler::for_descendants_of(context.reaper);
        match SupervisionRecord::start(path, sampler, args.policy.policy, words) {
            Ok(record) => reporter.record(record),
            Err(failure) => note!("lowtide: {failure}"),
        }
    }
    if !args.unbounded {
        report_permission(context.service);
    }
    // The processes must not be lost for the lack of a record.
    let black_box =
        reporter.start_black_box(&args.policy, BoxSize::Small).unwrap_or_else(|failure| {
            note!("lowtide: {failure}");
            None
        });
    let family = Some(context.service);
    let options = options(&args.policy, None, false, family, interrupt, black_box.as_ref());
    Supervisor::new(options, scope, &mut reporter).run();
    drop(black_box);
    if args.policy.policy != PolicyKind::None {
        reporter.end();
    }
    0
}

/// Warns if the command may not be traced, so that its memory cannot be released.
fn report_permission(service: u32) {
    let checked = Target::open(service)
        .map_err(ReleaseError::from)
        .and_then(|target| lowtide_release::check_permission(&target));
    // A command that has ended needs no release.
    let is_running = ProcReader::open(service).is_ok_and(|process| process.is_some());
    if let Err(error) = checked
        && is_running
    {
        note!("lowtide: the memory of the command will not be released: {error}");
    }
}
