//! The ledgers (memory by owner) at the moments by which a trial is judged.
//!
//! A ledger costs too much to be taken at every tick. It is taken when a moment is announced, when
//! memory has changed, and periodically. A ledger whose RSS differs much from that of a moment does
//! not belong to it. Of the ledgers with a similar RSS, the last one before the load belongs to the
//! baseline, the first one to the peak (memory that was freed later may still be resident), and the
//! last one to the settled moment. For a command that does not announce the end of its load, it
//! must be recent, or from the last phase that it announced: memory that is freed changes its
//! owner, and may stay resident. If a load reports that all its requests are over while its
//! connections are still open, the first ledger after that belongs to this moment, unless another
//! event came before it.

use lowtide_model::ledger::Owner;
use lowtide_model::pins::{BlockSummary, PinSummary};

use crate::metrics::{AtEvents, TrialMetrics, rise};
use lowtide_record::TrialRecord;
use lowtide_record::v1::{Event, LedgerReading};

/// Maximum difference between the RSS of a ledger and that of its moment: as a part of it,
const NEAR: f64 = 0.1;
/// or of the rise,
const NEAR_RISE: f64 = 0.05;
/// or in bytes.
const NEAR_BYTES: f64 = 1_048_576.0;
/// Maximum age of the settled ledger of a command that does not announce the end of its load: in
/// seconds,
const RECENT_S: f64 = 1.0;
/// or as a part of the time since the peak.
const RECENT: f64 = 0.5;

/// Returns the ledgers at the moments of a trial; `figures` are its metrics by RSS.
pub fn ledgers<'t>(trial: &'t TrialRecord, figures: &TrialMetrics) -> AtEvents<&'t LedgerReading> {
    let rise = rise(figures.start, figures.peak).unwrap_or(0) as f64;
    let near = |target: Option<u64>, from: f64, to: f64| {
        let near = target.map(|target| {
            let target = target as f64;
            (target, (target * NEAR).max(rise * NEAR_RISE).max(NEAR_BYTES))
        });
        trial.ledgers.iter().filter(move |l| {
            let is_near = near.is_some_and(|(t, near)| (l.rss_bytes as f64 - t).abs() <= near);
            is_near && l.t_s >= from && l.t_s <= to
        })
    };
    // A ledger starts shortly before the mark of its moment.
    const MOMENT_S: f64 = 0.05;
    let (all, none) = (f64::INFINITY, f64::NEG_INFINITY);
    let span = figures.settle_span;
    let begin = figures.load_begin + MOMENT_S;
    let load_is_first = span.is_none_or(|(from, _)| figures.load_begin < from);
    let from = if load_is_first { figures.load_begin } else { none };
    let end = span.map_or(all, |(_, to)| to);
    let settled = span.and_then(|(from, to)| {
        let recent = to - RECENT_S.max((to - from) * RECENT);
        let phase = trial.marks.iter().rfind(|m| m.mark == Event::Phase && m.t_s <= to);
        let known = phase.map_or(recent, |m| recent.min(m.t_s - MOMENT_S));
        let from = if load_is_first { from } else { known.max(from) };
        near(figures.settled, from, to).next_back()
    });
    AtEvents {
        baseline: near(figures.baseline, none, begin).next_back(),
        peak: near(figures.peak, from, end).next(),
        drained: drained(trial),
        settled,
    }
}

/// Returns what pinned memory at the settled moment: from its ledger, or from one before it since
/// the load, whose fragmented memory is about the same.
pub(crate) fn settled_pins<'t>(
    trial: &'t TrialRecord,
    settled: &LedgerReading,
    load_begin_s: f64,
) -> Option<&'t PinSummary> {
    alike(trial, settled, load_begin_s, Owner::Fragmented).find_map(|reading| reading.pins.as_ref())
}

/// Returns the blocks in use at the settled moment: from its ledger, or from one before it since
/// the load, whose allocated memory is about the same.
pub(crate) fn settled_blocks<'t>(
    trial: &'t TrialRecord,
    settled: &LedgerReading,
    load_begin_s: f64,
) -> Option<&'t BlockSummary> {
    alike(trial, settled, load_begin_s, Owner::Allocated)
        .find_map(|reading| reading.blocks.as_ref())
}

/// Returns the ledgers since the load, from the settled one back, as long as the memory of an owner
/// is about the same.
fn alike<'t>(
    trial: &'t TrialRecord,
    settled: &LedgerReading,
    load_begin_s: f64,
    owner: Owner,
) -> impl Iterator<Item = &'t LedgerReading> {
    let (t_s, bytes) = (settled.t_s, settled.ledger.bytes(owner) as f64);
    let is_alike = move |reading: &&LedgerReading| {
        let difference = (reading.ledger.bytes(owner) as f64 - bytes).abs();
        difference <= (bytes * NEAR).max(NEAR_BYTES)
    };
    let since_load = trial.ledgers.iter().filter(move |reading| reading.t_s >= load_begin_s);
    let until = since_load.filter(move |reading| reading.t_s <= t_s);
    until.rev().take_while(is_alike)
}

/// Returns the first ledger that started in the last round between the end of all requests and the
/// next event.
fn drained(trial: &TrialRecord) -> Option<&LedgerReading> {
    let drained = trial.marks.iter().rfind(|m| m.mark == Event::Drained)?.t_s;
    let closed = trial.marks.iter().filter(|m| m.mark == Event::Closed).map(|m| m.t_s);
    let acts = trial.acts.iter().map(|a| a.t_s);
    let next = closed.chain(acts).filter(|t| *t > drained).fold(f64::INFINITY, f64::min);
    trial.ledgers.iter().find(|l| l.t_s >= drained && l.t_s < next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metric, measure};
    use lowtide_model::ledger::Ledger;
    use lowtide_model::pins::PinSummary;
    use lowtide_record::fixtures::{MIB, trial};
    use lowtide_record::v1::{Event, HookRun, Outcome};

    #[test]
    fn each_event_uses_the_ledger_nearest_in_time() {
        let course = |t: f64| match t {
            t if t < 2.05 => 10.0,
            t if t < 10.05 => 110.0,
            _ => 60.0,
        };
        let mut trial = trial("glibc", 1, true)
            .with_samples(0.0, 20.0, course)
            .with_mark(0.0, Event::Start, None)
            .with_mark(2.0, Event::Baseline, None)
            .with_mark(2.0, Event::LoadBegin, Some(1))
            .with_mark(10.0, Event::LoadEnd, Some(1))
            .with_mark(20.0, Event::Settled, Some(1))
            .ended(20.1, Outcome::Done);
        for (t_s, mib) in [(1.9, 10), (5.0, 109), (10.5, 80), (19.9, 60)] {
            let mut ledger = Ledger::default();
            ledger.add(Owner::Allocated, mib * MIB);
            let (rss_bytes, heap) = (mib * MIB, None);
            trial.ledgers.push(LedgerReading {
                t_s,
                processes: 1,
                rss_bytes,
                ledger,
                managers: Vec::new(),
                heap,
                pins: None,
                blocks: None,
            });
        }
        let mib = |reading: Option<&LedgerReading>| reading.map(|l| l.ledger.total() / MIB);
        let figures = measure(&trial, Metric::Rss);
        let found = ledgers(&trial, &figures);
        assert_eq!(
            (mib(found.baseline), mib(found.peak), mib(found.settled)),
            (Some(10), Some(109), Some(60))
        );
        assert_eq!(found.drained, None);
        trial.ledgers.retain(|l| l.t_s > 10.0 && l.t_s < 15.0);
        let found = ledgers(&trial, &figures);
        assert_eq!(found, AtEvents::default());
    }

    #[test]
    fn a_ledger_from_before_memory_was_freed_is_not_that_of_the_settled_moment() {
        let course = |t: f64| if t < 0.5 { 10.0 } else { 55.0 };
        let mut trial = trial("glibc", 1, false)
            .with_samples(0.0, 3.0, course)
            .with_mark(0.0, Event::Start, None)
            .with_mark(3.0, Event::Exit, None)
            .ended(3.1, Outcome::Done);
        let reading = |t_s: f64, owner: Owner| {
            let mut ledger = Ledger::default();
            ledger.add(owner, 55 * MIB);
            LedgerReading {
                t_s,
                processes: 1,
                rss_bytes: 55 * MIB,
                ledger,
                managers: Vec::new(),
                heap: None,
                pins: None,
                blocks: None,
            }
        };
        trial.ledgers = vec![reading(0.8, Owner::Allocated)];
        let figures = measure(&trial, Metric::Rss);
        assert_eq!(ledgers(&trial, &figures).settled, None);
        trial.ledgers.push(reading(2.5, Owner::Reclaimable));
        let settled = ledgers(&trial, &figures).settled.map(|l| l.t_s);
        assert_eq!(settled, Some(2.5));
    }

    #[test]
    fn what_pins_memory_when_settled_may_be_known_from_a_ledger_shortly_before() {
        let mut trial = trial("glibc", 1, true);
        for (t_s, fragmented_mib, pinned_bytes) in
            [(1.0, 40, 1), (5.0, 90, 2), (12.0, 40, 3), (13.0, 41, 0), (14.0, 40, 0), (15.0, 40, 4)]
        {
            let mut ledger = Ledger::default();
            ledger.add(Owner::Fragmented, fragmented_mib * MIB);
            let pins = PinSummary { pinned_bytes, ..PinSummary::default() };
            trial.ledgers.push(LedgerReading {
                t_s,
                processes: 1,
                rss_bytes: fragmented_mib * MIB,
                ledger,
                managers: Vec::new(),
                heap: None,
                pins: Some(pins).filter(|pins| pins.pinned_bytes > 0),
                blocks: None,
            });
        }
        let of = |place: usize| {
            let settled = &trial.ledgers[place];
            settled_pins(&trial, settled, 2.0).map(|pins| pins.pinned_bytes)
        };
        assert_eq!((of(4), of(5)), (Some(3), Some(4)));
        trial.ledgers[2].pins = None;
        let settled = &trial.ledgers[4];
        assert_eq!(settled_pins(&trial, settled, 2.0), None, "the heap was another one before");
    }

    #[test]
    fn the_drained_ledger_is_read_before_the_hooks_of_that_event_run() {
        let mut trial = trial("glibc", 1, true)
            .with_mark(5.0, Event::Drained, Some(1))
            .with_mark(15.0, Event::Drained, Some(2))
            .with_mark(19.0, Event::Closed, Some(2));
        for (t_s, mib) in [(5.1, 1), (15.1, 2), (17.1, 3), (19.1, 4)] {
            let mut ledger = Ledger::default();
            ledger.add(Owner::Allocated, mib * MIB);
            trial.ledgers.push(LedgerReading {
                t_s,
                processes: 1,
                rss_bytes: mib * MIB,
                ledger,
                managers: Vec::new(),
                heap: None,
                pins: None,
                blocks: None,
            });
        }
        let reported = |trial: &TrialRecord| drained(trial).map(|l| l.rss_bytes / MIB);
        assert_eq!(reported(&trial), Some(2));
        trial.acts.push(HookRun {
            t_s: 15.05,
            wall_s: 1.0,
            at: "drained".to_owned(),
            name: "release".to_owned(),
            round: Some(2),
            succeeded: true,
            report: None,
        });
        assert_eq!(reported(&trial), None);
    }
}
