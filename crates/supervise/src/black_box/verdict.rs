//! Decides why a process has ended, from counters that were read before and after.

use lowtide_model::counters::GroupBytes;
use lowtide_record::black_box::{Cause, ExitStatus, KernelLine};

const SIGKILL: u32 = 9;
/// Share of its limit from which a group can be the one that was full.
const FULL: f64 = 0.9;

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
    /// Whether the kernel log may be read.
    pub(super) has_log: bool,
    /// Number of other processes of the group that ended at the same time.
    pub(super) others: usize,
}

/// Returns the cause, and what is uncertain about it.
pub(super) fn cause(evidence: &EndEvidence) -> (Cause, Vec<String>) {
    let mut notes = Vec::new();
    let is_killed = match evidence.status {
        Some(ExitStatus::Signal(signal)) => signal == SIGKILL,
        Some(ExitStatus::Code(_)) => false,
        None => true,
    };
    // In a PID namespace, the log has other numbers: it counts only if the counter does not object.
    if evidence.kernel.is_some() && is_killed && evidence.kills != Some(0) {
        return (Cause::OomKill, notes);
    }
    let by_status = match evidence.status {
        Some(ExitStatus::Signal(_)) => Cause::Signal,
        _ => Cause::Exit,
    };
    match evidence.kills {
        Some(1..) if is_killed => {
            if evidence.status.is_none() {
                notes.push("its exit status could not be read: the kernel's count of OOM kills in its cgroup rose when it ended".to_owned());
            }
            if evidence.others > 0 {
                notes.push(format!(
                    "{} other processes of its cgroup ended at the same time: the kernel's count does not show which of them was killed",
                    evidence.others
                ));
            }
            (Cause::OomKill, notes)
        }
        Some(1..) => {
            notes.push(
                "the kernel has killed another process of its cgroup for lack of memory".to_owned(),
            );
            (by_status, notes)
        }
        _ => {
            if evidence.status.is_none() {
                notes.push("its exit status could not be read".to_owned());
            }
            if evidence.kills.is_none() && is_killed {
                let why = if evidence.has_counter {
                    "was removed before its count of OOM kills was read"
                } else {
                    "has no count of OOM kills that lowtide can read"
                };
                let log =
                    if evidence.has_log { "; the kernel log names no OOM kill of it" } else { "" };
                notes.push(format!("its cgroup {why}: whether the kernel killed it for lack of memory is not known{log}"));
            }
            (by_status, notes)
        }
    }
}

/// Returns the group whose limit was reached: of those whose count has risen, the fullest. The
/// kernel log knows it by its path.
pub(super) fn limit(
    before: &[GroupBytes],
    after: &[GroupBytes],
    paths: &[String],
    kernel: Option<&KernelLine>,
) -> Option<usize> {
    if let Some(kernel) = kernel {
        let path = kernel.limit_group.as_ref()?;
        // The log has the path from the root of all hierarchies, which a container does not see.
        let is_it = |own: &&String| path.ends_with(own.as_str()) && own.as_str() != "/";
        if let Some(found) = paths.iter().find(is_it) {
            return paths.iter().position(|own| own == found);
        }
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
        assert_eq!(cause_of(None, Some(1)), Cause::OomKill);
        assert_eq!(cause_of(None, Some(0)), Cause::Exit);
        assert_eq!(cause_of(Some(Signal(9)), None), Cause::Signal);
    }

    #[test]
    fn what_is_uncertain_is_said() {
        let (_, notes) = cause(&evidence(Some(ExitStatus::Signal(9)), None));
        assert!(notes[0].contains("is not known"), "{notes:?}");
        let (_, notes) = cause(&EndEvidence { others: 2, ..evidence(None, Some(1)) });
        assert_eq!(notes.len(), 2, "{notes:?}");
        let kernel = Some(KernelLine::default());
        let (cause, notes) = cause(&EndEvidence { kernel, ..evidence(None, None) });
        assert_eq!((cause, notes.len()), (Cause::OomKill, 0));
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
        let kernel = KernelLine { limit_group: Some("/x/a".to_owned()), ..KernelLine::default() };
        assert_eq!(limit(&before, &after, &paths, Some(&kernel)), Some(1));
        let wide = KernelLine::default();
        assert_eq!(limit(&before, &after, &paths, Some(&wide)), None);
    }
}
