//! Sentences about the end of a process.

use lowtide_model::black_box::{BlackBoxReport, Dominant};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::ledger::Owner;
use lowtide_model::number::HumanCount;
use lowtide_record::black_box::{Cause, End};

use super::timeline::Timeline;

/// Minimum change after the last ledger that a note names, as a part of RSS.
const NOTABLE: f64 = 0.1;

/// Returns the conclusion in a sentence or two.
pub(super) fn summary(report: &BlackBoxReport, end: &End) -> String {
    let mut text = cause(report, end);
    text += &report.dominant.as_ref().map(held).unwrap_or_default();
    if let Some(growth) = &report.growth
        && let Some(most) = growth.by.first().filter(|part| part.bytes > 1 << 20)
    {
        let name = most.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        text += &format!(
            ". The fastest growth was that of {}{name}: {} in {}, until the last inspection",
            owner_name(&most.owner),
            Human(most.bytes.unsigned_abs()),
            HumanSeconds(growth.elapsed_s)
        );
    }
    text + "."
}

fn cause(report: &BlackBoxReport, end: &End) -> String {
    let limit = report.limit.as_ref();
    match end.cause {
        Cause::OomKill => {
            let whom = match &report.victim {
                None => "this process".to_owned(),
                Some(victim) => match (&victim.name, victim.pid) {
                    (Some(name), Some(pid)) => {
                        format!("{name} (PID {pid}), another process of its cgroup,")
                    }
                    _ => "another process of its cgroup".to_owned(),
                },
            };
            let why = match limit {
                Some(limit) => match &limit.path {
                    Some(path) => format!(
                        "the cgroup {path} reached its limit of {}",
                        Human(limit.limit_bytes)
                    ),
                    None => format!(
                        "the machine had no memory left ({} in all)",
                        Human(limit.limit_bytes)
                    ),
                },
                None => "which limit was reached is not known".to_owned(),
            };
            format!("The kernel killed {whom} for lack of memory: {why}")
        }
        Cause::Signal => {
            let signal = report.signal.unwrap_or(0);
            let name = signal_name(signal).map(|name| format!(" ({name})")).unwrap_or_default();
            let oom = if signal == 9 {
                "; the kernel has not counted an OOM kill in its cgroup"
            } else {
                ""
            };
            let oom = if end.notes.is_empty() { oom } else { "" };
            format!(
                "Signal {signal}{name} ended it{oom}; RSS was {} at the last reading",
                Human(report.last.rss())
            )
        }
        Cause::Exit => {
            let code =
                report.exit_code.map(|code| format!(" with exit code {code}")).unwrap_or_default();
            format!("It ended{code}; RSS was {} at the last reading", Human(report.last.rss()))
        }
        Cause::Peak => {
            let peak =
                report.peak.as_ref().map(|peak| format!(", {} at its peak", Human(peak.rss_bytes)));
            format!(
                "It was running at the last reading; RSS was {}{}",
                Human(report.last.rss()),
                peak.unwrap_or_default()
            )
        }
    }
}

/// Describes what held most of the memory.
fn held(dominant: &Dominant) -> String {
    let about = if dominant.estimated { "≈" } else { "" };
    let bytes = format!("{about}{}", Human(dominant.bytes));
    let name = dominant.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    match dominant.owner.as_str() {
        "unknown" => format!(
            ". Most of it, {bytes}, was anonymous memory of this process that came after the last inspection: its owner is not known"
        ),
        "other_process" if dominant.name.is_none() => {
            format!(
                ". Most of it, {bytes}, was in processes below the same limit that are not recorded"
            )
        }
        "other_process" => {
            format!(". Most of it, {bytes}, was in other processes of its cgroup{name}")
        }
        "shared_unmapped" => {
            format!(
                ". Most of it, {bytes}, was shared memory, or files in tmpfs, that no process maps"
            )
        }
        "kernel" => format!(
            ". Most of it, {bytes}, was kernel memory, such as page tables, sockets or pipes"
        ),
        owner => format!(". Most of it, {bytes}, was {}{name}", owner_name(owner)),
    }
}

fn owner_name(key: &str) -> &str {
    let owner = Owner::ALL.into_iter().find(|owner| owner.key() == key);
    owner.map_or(key, |owner| match owner {
        Owner::Allocated => "memory in use by the program",
        Owner::Reclaimable => "freed memory in whole pages, which could have been returned",
        Owner::Fragmented => "freed memory on pages with blocks in use",
        Owner::Cached => "freed memory that is kept for one thread",
        Owner::Runtime => "memory of a runtime or another allocator",
        Owner::Shared => "shared memory",
        Owner::AnonymousOther => "memory that the program mapped itself",
        Owner::Unattributed => "memory whose owner could not be determined",
        other => other.name(),
    })
}

/// Returns the name of a signal on x86-64 and aarch64.
fn signal_name(signal: u32) -> Option<&'static str> {
    let names = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (5, "SIGTRAP"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (14, "SIGALRM"),
        (15, "SIGTERM"),
        (24, "SIGXCPU"),
        (25, "SIGXFSZ"),
        (31, "SIGSYS"),
    ];
    names.into_iter().find(|(number, _)| *number == signal).map(|(_, name)| name)
}

/// Returns what is uncertain about the record itself.
pub(super) fn notes(timeline: &Timeline, report: &BlackBoxReport, invalid: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if timeline.ledger().is_none() {
        let why = match report.recorded.ledgers {
            0 => "the process was never inspected successfully",
            _ => "no inspection of its last program is left",
        };
        notes.push(format!("{why}: only the kernel's counters are known"));
    }
    let rss = report.last.rss() as f64;
    if let (Some(after), Some(age_s)) = (report.after_ledger, report.last_full_ledger_age_s)
        && after.anon_bytes.unsigned_abs() as f64 > rss * NOTABLE
    {
        let what = if after.anon_bytes > 0 { "grew" } else { "shrank" };
        notes.push(format!(
            "the last inspection was {} before the end; anonymous memory then {what} by {}",
            HumanSeconds(age_s),
            Human(after.anon_bytes.unsigned_abs())
        ));
    }
    if let Some(limit) = report.limit.as_ref().filter(|_| report.cause == Cause::OomKill.name()) {
        let seen = limit.used_bytes as f64 / limit.limit_bytes.max(1) as f64;
        if seen < 1.0 - NOTABLE {
            notes.push(format!(
                "at the last reading, {} of the limit were in use: the rest came after it",
                Human(limit.used_bytes)
            ));
        }
    }
    if invalid > 0 {
        notes.push(format!("{} lines of the record could not be read", HumanCount(invalid)));
    }
    notes
}
