//! `lowtide attach`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lowtide_policy::PolicyKind;
use lowtide_probe::mapped::read_local_files_only;
use lowtide_probe::proc::oom_score_adj;
use lowtide_probe::process::ProcReader;
use lowtide_probe::sampler::Sampler;
use lowtide_probe::target::Target;
use lowtide_release::ReleaseError;
use lowtide_supervise::black_box::BoxSize;
use lowtide_supervise::{Scope, Supervisor};

use crate::args::AttachArgs;
use crate::console::interrupt;
use crate::console::output::{Output, note};
use crate::failure::exit::{Exit, Failure};
use crate::failure::rerun::Rerun;
use crate::failure::target_error::{as_root, failure};
use crate::select::selector::Selector;
use crate::supervision::{ActReporter, Printed, SupervisionRecord, is_lowtide, options, prepare};

/// Minimum RSS of a process with `--all`, in bytes.
const MIN_RSS_OF_ALL: u64 = 256 << 20;
/// Minimum `oom_score_adj` of a process with `--all`: processes below it are protected from the OOM
/// killer, too.
const MIN_OOM_SCORE_ADJ: i32 = -900;

pub(crate) fn run(args: &AttachArgs, output: &Output) -> Result<Exit, Failure> {
    let is_recorded = args.policy.black_box.is_some();
    if args.policy.policy == PolicyKind::None && !is_recorded {
        return Err(Failure::usage(
            "--policy: none releases nothing: choose adaptive, pressure or periodic=30s, or record with --black-box DIR",
        ));
    }
    if args.min_rss.is_some() && args.selector.is_by_number() {
        return Err(Failure::usage(
            "--min-rss: it applies to selectors, but processes are given by PID: omit it",
        ));
    }
    if args.policy.policy.needs_preload() {
        return Err(Failure::usage(
            "--policy: the policy `freed` requires a library that is preloaded when the program starts: start the program with lowtide run",
        )
        .next(format!("lowtide run -p {} -- CMD", args.policy.policy)));
    }
    prepare()?;
    if args.selector.is_all() && !args.remote_files {
        read_local_files_only();
    }
    if args.selector.is_by_number() {
        check_permission(&args.selector, args.policy.policy)?;
    }
    let mut reporter =
        ActReporter::open(&args.policy, Printed::All, output.json.then_some(*output))?;
    let black_box = reporter.start_black_box(&args.policy, BoxSize::Full)?;
    if let Some(path) = &args.policy.output {
        reporter.record(record(args, path)?);
    }
    let options = options(
        &args.policy,
        args.allocators.0.clone(),
        args.dry_run,
        None,
        interrupt::flag(),
        black_box.as_ref(),
    );
    let scope = scope(args);
    if !output.json {
        report_own(&args.selector);
        let dry = if args.dry_run { ", and nothing is released (--dry-run)" } else { "" };
        let recorded = if is_recorded { ", with a black box" } else { "" };
        note!("lowtide: policy {}{dry}{recorded}; Ctrl-C ends it", args.policy.policy);
    }
    Supervisor::new(options, scope, &mut reporter).run();
    drop(black_box);
    if args.policy.policy != PolicyKind::None {
        reporter.end();
    }
    Ok(Exit::Done)
}

/// Reports the number of selected processes that are lowtide itself: they are left out.
fn report_own(selector: &Selector) {
    if selector.is_all() || selector.is_by_number() {
        return;
    }
    let own = std::process::id();
    let found = selector.matching().unwrap_or_default();
    let count = found.into_iter().filter(|pid| *pid != own && is_lowtide(*pid)).count();
    if count > 0 {
        note!("lowtide: {count} of the selected processes are lowtide itself, and are left out");
    }
}

/// Starts the record of a supervision of one process.
fn record(args: &AttachArgs, path: &Path) -> Result<SupervisionRecord, Failure> {
    let selected = match args.selector.is_by_number().then(|| args.selector.select()).transpose()? {
        Some(selected) if selected.len() == 1 => selected,
        _ => {
            return Err(Failure::usage(
                "--output: a record contains one process: name one PID, or use --log",
            ));
        }
    };
    let pid = selected.first().map_or(0, |selected| selected.pid);
    let process = ProcReader::open(pid).ok().flatten();
    let command = process.map_or_else(Vec::new, |(process, stat)| process.command_or(&stat.name));
    SupervisionRecord::start(path, Sampler::for_process(pid), args.policy.policy, command)
}

/// Checks that the processes exist and, if the policy releases memory, that at least one may be
/// traced.
fn check_permission(selector: &Selector, policy: PolicyKind) -> Result<(), Failure> {
    let (mut refused, again) = (None, Rerun::typed());
    for selected in selector.select()? {
        if is_lowtide(selected.pid) {
            let message =
                format!("process {} is lowtide itself: name another process", selected.pid);
            refused.get_or_insert(Failure::usage(message));
            continue;
        }
        let target = Target::open(selected.pid).map_err(|error| failure(&error, &again))?;
        if policy == PolicyKind::None {
            return Ok(());
        }
        match lowtide_release::check_permission(&target) {
            Err(error @ ReleaseError::NotPermitted { .. }) => {
                let failure = as_root(Failure::new(Exit::NotPermitted, error), &again);
                refused.get_or_insert(failure);
            }
            _ => return Ok(()),
        }
    }
    refused.map_or(Ok(()), Err)
}

/// Returns the processes that are supervised.
fn scope(args: &AttachArgs) -> Scope {
    let selector = args.selector.clone();
    let min_rss = args.min_rss.unwrap_or(if selector.is_all() { MIN_RSS_OF_ALL } else { 0 });
    if selector.is_by_number() {
        // A process must not be replaced by another one with the same PID.
        let begun: Vec<_> = selector.select().unwrap_or_default();
        return Scope::of_processes(move || {
            let alive = begun.iter().filter(|selected| selected.is_running());
            let alive: BTreeSet<u32> = alive.map(|selected| selected.pid).collect();
            let mut all = selector.with_subprocesses(alive);
            all.retain(|pid| !is_lowtide(*pid));
            Some(all)
        });
    }
    // Start times of the processes that the previous listing returned. They stay selected if a
    // release makes them smaller than `min_rss`. A process that one listing misses must be large
    // enough again.
    let mut admitted: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
    // Reading alone harms no process.
    let has_protected = selector.is_all() && args.policy.policy != PolicyKind::None;
    Scope::of_selection(move || {
        let found = selector.matching().ok()?;
        let is_wanted = |pid: &u32| !is_lowtide(*pid) && (!has_protected || !is_protected(*pid));
        admitted.retain(|_, (_, was_found)| std::mem::replace(was_found, false));
        let mut listed = BTreeSet::new();
        for pid in found {
            let Some((start, rss)) = start_and_rss(pid) else { continue };
            let is_known = admitted.get(&pid).is_some_and(|(known, _)| *known == start);
            if (is_known || rss >= min_rss) && is_wanted(&pid) {
                admitted.insert(pid, (start, true));
                listed.insert(pid);
            }
        }
        Some(listed)
    })
}

/// Returns the start time of a process, in clock ticks since boot, and its RSS in bytes.
fn start_and_rss(pid: u32) -> Option<(u64, u64)> {
    let page = rustix::param::page_size() as u64;
    let (process, stat) = ProcReader::open(pid).ok().flatten()?;
    Some((process.start_ticks, stat.rss_pages.saturating_mul(page)))
}

/// Returns whether `--all` leaves a process out: PID 1, and processes that the OOM killer must not
/// kill.
fn is_protected(pid: u32) -> bool {
    pid == 1 || oom_score_adj(pid).is_none_or(|score| score < MIN_OOM_SCORE_ADJ)
}
