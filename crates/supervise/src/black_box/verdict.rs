//! Decides why a process has ended, from counters that were read before and after.

use lowtide_model::counters::GroupBytes;
use lowtide_record::black_box::{Cause, ExitStatus, KernelLine};

use super::groups::is_path_of;

pub(super) const SIGKILL: u32 = 9;
/// Share of its limit from which a group can be the one that was full.
const FULL: f64 = 0.9;
/// What the kernel log says of a kill because of a limit, and of one for lack of memory of the
/// whole machine.
pub(super) const LIMIT: &str = "CONSTRAINT_MEMCG";
pub(super) const NO_LIMIT: &str = "CONSTRAINT_NONE";
/// What is said of a process that was not killed although its cgroup had a kill.
const ANOTHER: &str = "the kernel has killed another process of its cgroup for lack of memory";

/// What is known about an end.
#[derive(Debug, Clone, Default)]
pub(super) struct EndEvidence {
    /// Its exit status, if it could be read.
    pub(super) status: Option<ExitStatus>,
    /// Number of kills in its group that no other process accounts for; `None` if the counter could
    /// not be read after the end.
    pub(super) kills: Option<u64>,
    /// Whether that counter was ever read.
    pub(super) has_counter: bool,
    /// What the kernel log says.
    pub(super) kernel: Option<KernelLine>,
    /// Whether the kernel log has all recent kills.
    pub(super) has_log: bool,
    /// Number of other recorded processes of the group that ended at the same time, and that may
    /// have been killed.
    pub(super) others: usize,
    /// Whether its group had no other process before its end, and has none after it.
    pub(super) was_alone: bool,
}

/// Returns the cause, and what is uncertain about it. An OOM kill of this process must be proven:
/// by the kernel log, or by SIGKILL and the kernel's count if no other process can account for it.
pub(super) fn cause(evidence: &EndEvidence) -> (Cause, Vec<String>) {
    let is_killed = match evidence.status {
        Some(ExitStatus::Signal(signal)) => signal == SIGKILL,
        Some(ExitStatus::Code(_)) => false,
        None => true,
    };
    let by_status = match evidence.status {
        Some(ExitStatus::Signal(_)) => Cause::Signal,
        _ => Cause::Exit,
    };
    let mut notes = Vec::new();
    if evidence.status.is_none() {
        notes.push("its exit status could not be read".to_owned());
    }
    match evidence.kills {
        // A count of zero objects to the log: that may name an earlier process with this PID.
        None | Some(1..) if is_killed && evidence.kernel.is_some() => (Cause::OomKill, Vec::new()),
        Some(1..) if !is_killed || evidence.has_log => {
            notes.push(ANOTHER.to_owned());
            (by_status, notes)
        }
        Some(kills) if kills > 0 => by_count(evidence, kills, notes),
        None if is_killed => {
            let why = if evidence.has_counter {
                "was removed before its count of OOM kills was read"
            } else {
                "has no count of OOM kills that lowtide can read"
            };
            let log =
                if evidence.has_log { "; the kernel log names no OOM kill of it" } else { "" };
            notes.push(format!("its cgroup {why}: whether the kernel killed it for lack of memory is not known{log}"));
            (by_status, notes)
        }
        _ => (by_status, notes),
    }
}

/// Decides by the kernel's count alone, of a process that SIGKILL has or may have ended.
fn by_count(evidence: &EndEvidence, kills: u64, mut notes: Vec<String>) -> (Cause, Vec<String>) {
    let is_only_one = match evidence.status {
        Some(_) => kills > evidence.others as u64,
        None => evidence.was_alone,
    };
    if is_only_one {
        if evidence.status.is_none() {
            notes.push("the kernel's count of OOM kills in its cgroup rose when it ended, and it was the only process there".to_owned());
        }
        return (Cause::OomKill, notes);
    }
    if evidence.others > 0 {
        notes.push(format!(
            "of its cgroup, {} ended at the same time: the kernel's count does not show which of them was killed",
            match evidence.others {
                1 => "another process".to_owned(),
                others => format!("{others} other processes"),
            }
        ));
    }
    (Cause::GroupOomKill, notes)
}

/// Returns the group whose limit was reached: of those whose count has risen, the fullest. The
/// kernel log knows it by its path.
pub(super) fn limit(
    before: &[GroupBytes],
    after: &[GroupBytes],
    paths: &[String],
    kernel: Option<&KernelLine>,
) -> Option<usize> {
    if let Some(path) = kernel.and_then(|kernel| kernel.limit_group.as_ref()) {
        let found = paths.iter().position(|own| is_path_of(path, own));
        if found.is_some() {
            return found;
        }
    }
    if kernel.is_some_and(|kernel| kernel.constraint != LIMIT) {
        return None;
    }
    let fullness = |place: usize| before.get(place)?.fullness();
    let has_risen = |place: &usize| {
        let hits = |of: &[GroupBytes]| of.get(*place).and_then(|group| group.hits);
        hits(after).zip(hits(before)).is_some_and(|(now, then)| now > then)
    };
    let limited = (0..before.len()).filter(|place| fullness(*place).is_some());
    let (risen, mut full): (Vec<usize>, Vec<usize>) = limited.partition(has_risen);
    full.retain(|place| fullness(*place).is_some_and(|share| share >= FULL));
    let fullest = |of: Vec<usize>| {
        of.into_iter().max_by(|a, b| {
            let share = |place: &usize| fullness(*place).unwrap_or(0.0);
            share(a).total_cmp(&share(b))
        })
    };
    fullest(risen).or_else(|| fullest(full))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(status: Option<ExitStatus>, kills: Option<u64>) -> EndEvidence {
        EndEvidence { status, kills, has_counter: true, ..EndEvidence::default() }
    }

    #[test]
    fn an_oom_kill_needs_sigkill_and_the_kernels_count() {
        use ExitStatus::{Code, Signal};
        let cause_of = |status, kills| cause(&evidence(status, kills)).0;
        assert_eq!(cause_of(Some(Signal(9)), Some(1)), Cause::OomKill);
        assert_eq!(cause_of(Some(Signal(9)), Some(0)), Cause::Signal);
        assert_eq!(cause_of(Some(Signal(11)), Some(1)), Cause::Signal);
        assert_eq!(cause_of(Some(Code(0)), Some(1)), Cause::Exit);
        assert_eq!(cause_of(None, Some(1)), Cause::GroupOomKill);
        assert_eq!(cause_of(None, Some(0)), Cause::Exit);
        assert_eq!(cause_of(Some(Signal(9)), None), Cause::Signal);
    }

    #[test]
    fn what_is_uncertain_is_said() {
        let (_, notes) = cause(&evidence(Some(ExitStatus::Signal(9)), None));
        assert!(notes[0].contains("is not known"), "{notes:?}");
        let kernel = Some(KernelLine::default());
        let (cause, notes) = cause(&EndEvidence { kernel, ..evidence(None, None) });
        assert_eq!((cause, notes.len()), (Cause::OomKill, 0));
    }

    #[test]
    fn a_kill_that_another_process_may_account_for_is_not_ascribed_to_this_one() {
        use ExitStatus::{Code, Signal};
        let found = |changed: EndEvidence| {
            let (cause, notes) = cause(&changed);
            (cause, notes.join("; "))
        };
        let killed = || evidence(Some(Signal(9)), Some(1));
        let (by_other, notes) = found(EndEvidence { others: 1, ..killed() });
        assert_eq!(by_other, Cause::GroupOomKill);
        assert!(notes.contains("another process ended at the same time"), "{notes}");
        let both = EndEvidence { others: 1, kills: Some(2), ..killed() };
        assert_eq!(found(both), (Cause::OomKill, String::new()));
        // The log has all kills, and not this one.
        let (cause, notes) = found(EndEvidence { has_log: true, ..killed() });
        assert_eq!((cause, notes.as_str()), (Cause::Signal, ANOTHER));
        let (cause, _) = found(EndEvidence { has_log: true, ..evidence(None, Some(1)) });
        assert_eq!(cause, Cause::Exit);
        let logged = Some(KernelLine::default());
        let (cause, _) =
            found(EndEvidence { has_log: true, kernel: logged, others: 3, ..killed() });
        assert_eq!(cause, Cause::OomKill);
        let (cause, notes) = found(evidence(Some(Code(0)), Some(1)));
        assert_eq!((cause, notes.as_str()), (Cause::Exit, ANOTHER));
        // Without a status, only a process that was alone must be the one.
        let (cause, notes) = found(EndEvidence { was_alone: true, ..evidence(None, Some(1)) });
        assert_eq!(cause, Cause::OomKill);
        assert!(notes.contains("could not be read"), "{notes}");
    }

    #[test]
    fn the_limit_is_that_of_the_group_whose_count_has_risen() {
        let group = |kept, hits| GroupBytes {
            charged: kept,
            limit: Some(100),
            anon: kept,
            hits: Some(hits),
            ..GroupBytes::default()
        };
        let before = [group(97, 5), group(99, 1), group(20, 0)];
        let after = [group(0, 6), group(0, 1), group(0, 1)];
        let paths = ["/a/b", "/a", "/"].map(str::to_owned);
        assert_eq!(limit(&before, &after, &paths, None), Some(0));
        assert_eq!(limit(&before, &before, &paths, None), Some(1));
        assert_eq!(limit(&before[2..], &before[2..], &paths, None), None);
        // A burst from far below the limit.
        assert_eq!(limit(&before[2..], &after[2..], &paths, None), Some(0));
        let kernel = KernelLine {
            limit_group: Some("/x/a".to_owned()),
            constraint: LIMIT.to_owned(),
            ..KernelLine::default()
        };
        assert_eq!(limit(&before, &after, &paths, Some(&kernel)), Some(1));
        let wide = KernelLine { constraint: NO_LIMIT.to_owned(), ..KernelLine::default() };
        assert_eq!(limit(&before, &after, &paths, Some(&wide)), None);
        // Of many kills in a short time, the log names the limit of a few.
        let short = KernelLine { constraint: LIMIT.to_owned(), ..wide };
        assert_eq!(limit(&before, &after, &paths, Some(&short)), Some(0));
    }
}
