//! Sentences about the end of a process.

use lowtide_model::black_box::{BlackBoxReport, Dominant};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::ledger::Owner;
use lowtide_model::number::HumanCount;
use lowtide_record::black_box::{Cause, EndLine};

use super::dominant::OTHER_PROCESS;
use super::timeline::Timeline;

/// Share of a limit from which it counts as reached if the record breaks off there.
const REACHED: f64 = 0.9;
/// Minimum change after the last ledger that a note names, as a part of RSS.
const NOTABLE: f64 = 0.1;

/// Returns the conclusion in a sentence or two.
/// `common` is what the process shared with one of the others since a fork, in bytes.
pub(super) fn summary(report: &BlackBoxReport, timeline: &Timeline, common: u64) -> String {
    let mut text = cause(report, timeline);
    let whole = whole(report);
    let held = |dominant: &Dominant| held(dominant, report, whole, common);
    text += &report.dominant.as_ref().map(held).unwrap_or_default();
    let is_most = report.dominant.as_ref().is_some_and(|held| is_most(held.bytes, whole));
    let of_group = of_group(report).or_else(|| largest(report).filter(|_| !is_most));
    text += &of_group.unwrap_or_default();
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

fn cause(report: &BlackBoxReport, timeline: &Timeline) -> String {
    let end = timeline.end();
    match end.cause {
        Cause::OomKill | Cause::GroupOomKill => oom_kill(report, &end),
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
        Cause::Peak => peak(report, timeline),
    }
}

fn oom_kill(report: &BlackBoxReport, end: &EndLine) -> String {
    let whom = match &report.victim {
        None if end.cause == Cause::OomKill => "this process".to_owned(),
        None => "this or another process of its cgroup, which is not known,".to_owned(),
        Some(victim) => match (&victim.name, victim.pid) {
            (Some(name), Some(pid)) => {
                format!("{name} (PID {pid}), another process of its cgroup,")
            }
            _ => "another process of its cgroup, it is not known which,".to_owned(),
        },
    };
    let why = match &report.limit {
        Some(limit) => match &limit.path {
            Some(path) => {
                format!("the cgroup {path} reached its limit of {}", Human(limit.limit_bytes))
            }
            None => {
                format!("the machine had no memory left ({} in all)", Human(limit.limit_bytes))
            }
        },
        None => "which limit was reached is not known".to_owned(),
    };
    format!("The kernel killed {whom} for lack of memory: {why}")
}

/// Describes a process whose end is not recorded. If the record breaks off, lowtide was killed, or
/// records on: then the last reading is no sign that the process has lived on.
fn peak(report: &BlackBoxReport, timeline: &Timeline) -> String {
    let peak = report.peak.as_ref().map(|peak| format!(", {} at its peak", Human(peak.rss_bytes)));
    let rss = format!("RSS was {}{}", Human(report.last.rss()), peak.unwrap_or_default());
    if timeline.has_end() {
        return format!("It was running at the last reading; {rss}");
    }
    let reached = report
        .limit
        .as_ref()
        .filter(|limit| limit.used_bytes as f64 >= limit.limit_bytes as f64 * REACHED);
    let reached = reached.map(|limit| {
        let whose = limit
            .path
            .as_ref()
            .map_or_else(|| "the machine".to_owned(), |path| format!("the cgroup {path}"));
        format!("{whose} had used {} of {}", Human(limit.used_bytes), Human(limit.limit_bytes))
    });
    let killed = timeline
        .has_kill()
        .then(|| "the kernel had killed a process of its cgroup for lack of memory".to_owned());
    let seen: Vec<String> = reached.into_iter().chain(killed).collect();
    if seen.is_empty() {
        return format!("Its end is not in the record: it was running at the last reading; {rss}");
    }
    format!(
        "Its end is not in the record: at the last reading, {}, so the kernel may have killed it, or the \
         lowtide that recorded it; {rss}",
        seen.join(", and ")
    )
}

/// Returns whether the kernel has killed this process or another of its cgroup.
fn is_oom(report: &BlackBoxReport) -> bool {
    [Cause::OomKill, Cause::GroupOomKill].iter().any(|cause| report.cause == cause.name())
}

/// Returns the memory of which the dominant part is a part, in bytes: the limit after an OOM kill,
/// otherwise RSS.
fn whole(report: &BlackBoxReport) -> u64 {
    let limit = report.limit_bytes.filter(|_| is_oom(report));
    limit.unwrap_or(report.last.rss())
}

fn is_most(bytes: u64, whole: u64) -> bool {
    bytes.saturating_mul(2) > whole
}

/// Names the largest process of the cgroup, where no part is most of the limit.
fn largest(report: &BlackBoxReport) -> Option<String> {
    let other = report.others.first().filter(|_| is_oom(report))?;
    let (name, pid, before_s) = (other.name.as_ref()?, other.pid?, report.others_before_s?);
    let (own, of_other) = (report.last.rss(), other.bytes.rss());
    let other = format!(
        "{name} (PID {pid}), had an RSS of {} {} before the end",
        Human(of_other),
        HumanSeconds(before_s)
    );
    Some(if of_other > own {
        format!(". The largest process of the cgroup, {other}; this process had {}", Human(own))
    } else {
        format!(
            ". This process was the largest of the cgroup, with an RSS of {}; the next one, {other}",
            Human(own)
        )
    })
}

/// Describes the growth of the cgroup, if much of it was not of the process.
fn of_group(report: &BlackBoxReport) -> Option<String> {
    let (growth, limit) = (report.group_growth?, report.limit.as_ref()?);
    let is_large = growth.bytes as f64 >= limit.limit_bytes as f64 * NOTABLE;
    let is_own = growth.own_bytes as f64 >= growth.bytes as f64 * (1.0 - NOTABLE);
    if !is_large || is_own || !is_oom(report) {
        return None;
    }
    let own = match growth.own_bytes {
        0 => "this process did not grow".to_owned(),
        bytes if bytes < 0 => format!("this process shrank by {}", Human(bytes.unsigned_abs())),
        bytes => format!("this process by {}", Human(bytes.unsigned_abs())),
    };
    let mut text = format!(
        ". In the last {}, the cgroup grew by {}, and {own}",
        HumanSeconds(growth.elapsed_s),
        Human(growth.bytes.unsigned_abs())
    );
    if let (Some(largest), Some(before_s)) = (report.others.first(), report.others_before_s)
        && let (Some(name), Some(pid)) = (&largest.name, largest.pid)
    {
        text += &format!(
            "; the largest other process, {name} (PID {pid}), had an RSS of {} {} before the end",
            Human(largest.bytes.rss()),
            HumanSeconds(before_s)
        );
    }
    Some(text)
}

/// Describes what held most of the memory, or else the largest part of the process. `whole` is all
/// memory of which it is a part.
fn held(dominant: &Dominant, report: &BlackBoxReport, whole: u64, common: u64) -> String {
    let about = if dominant.estimated { "≈" } else { "" };
    let bytes = format!("{about}{}", Human(dominant.bytes));
    let part = match (is_most(dominant.bytes, whole), dominant.owner.as_str()) {
        (true, _) if dominant.bytes > whole && is_oom(report) => format!(
            "Most of it, {bytes} when it was read (more than the limit: not all of it counted there at that moment),"
        ),
        (true, _) => format!("Most of it, {bytes},"),
        (false, OTHER_PROCESS | "shared_unmapped" | "kernel") => format!("{bytes} of it"),
        (false, _) => format!("The largest part of this process, {bytes},"),
    };
    let common = match common {
        0 => String::new(),
        bytes => format!(
            "; at least {} more is in both this process and one of them, or charged elsewhere",
            Human(bytes)
        ),
    };
    let name = dominant.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    match dominant.owner.as_str() {
        "unknown" => {
            let since = match report.ledger {
                Some(_) => "that came after the last inspection",
                None => "that no inspection has seen",
            };
            format!(". {part} was anonymous memory of this process {since}: its owner is not known")
        }
        OTHER_PROCESS if dominant.name.is_none() => {
            format!(". {part} was in processes below the same limit that are not recorded{common}")
        }
        OTHER_PROCESS => {
            format!(". {part} was in other processes of its cgroup{name}{common}")
        }
        "shared_unmapped" => {
            format!(". {part} was shared memory, or files in tmpfs, that no process maps")
        }
        "kernel" => format!(". {part} was kernel memory, such as page tables, sockets or pipes"),
        owner => format!(". {part} was {}{name}", owner_name(owner)),
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
    if let Some(limit) = report.limit.as_ref().filter(|_| is_oom(report)) {
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
