//! The policy that releases when the load has fallen, and learns from the pages that come back.
//!
//! - **When.** A process is *quiet* when its CPU use and its page faults have fallen and its memory
//!   does not grow. When it has been quiet for a certain time (the *patience*), its memory is
//!   released. If memory is short, it need not be quiet. A process whose load does not fall, but
//!   whose memory has stopped growing, is *steady*. Its memory is released after a longer time.
//! - **Whether.** The policy does not act without news: growth, CPU time or closed files and
//!   sockets since the last act. A release with too small a predicted gain stops no thread. After
//!   several of these, the amount of news that the next one requires doubles.
//! - **Learning.** The gain of a release is the returned memory, multiplied by the time until it is
//!   resident again, minus the part that a later release would have gained too. The cost is the CPU
//!   time of the release and of the pages that came back. Both are compared by the price of a core
//!   and of memory. If the cost is higher, the patience doubles. It is then at least the time for
//!   which memory must stay returned so that the gain equals the cost. If the gain is higher, the
//!   patience halves. Waiting for as long as an act costs is the classic solution of the ski rental
//!   problem: it costs at most twice as much as the best decision.

use std::collections::VecDeque;

use crate::{Action, LastRelease, Policy, ProcessState, Reason, ReleaseRequest, Returned, Usage};

/// Value of a core for a second, in bytes × seconds. Clouds rent a core for the price of 7.5
/// (Google E2) to 9.1 GB (AWS Fargate).
const CORE_SECOND_BYTE_S: f64 = 8.0 * (1_u64 << 30) as f64;
/// CPU time of memory that comes back, in seconds per byte: measured 1.6 to 1.9 µs per page of
/// 4 KiB. Larger pages come back in fewer faults, and so for less; that was not measured. With
/// them, this errs on the side of fewer releases.
const REFAULT_S_PER_BYTE: f64 = 1.75e-6 / 4096.0;

/// Initial time of quiet before a release, in seconds.
const MIN_PATIENCE_S: f64 = 0.3;
/// Minimum time after a release until it counts as right, in seconds.
const MIN_EVIDENCE_S: f64 = 1.0;
/// Maximum time of quiet or of steadiness before a release, in seconds.
const MAX_PATIENCE_S: f64 = 600.0;
/// Initial time of steadiness before a release, in seconds.
const MIN_STEADY_S: f64 = 10.0;

/// Span over which rates are measured, in seconds.
const WINDOW_S: f64 = 0.35;
/// Maximum time between two states, in seconds, if anything has changed. After a longer one, the
/// rates in between are unknown: the machine was suspended, or lowtide was stopped or busy.
const MAX_GAP_S: f64 = 3.0;
/// Maximum CPU use of a quiet process, in cores, whatever it was before.
const QUIET_CORES: f64 = 0.03;
/// Maximum CPU use of a quiet process, as a share of the recent peak.
const QUIET_SHARE: f64 = 0.25;
/// Time in which a peak of CPU use loses half its weight, in seconds.
const PEAK_HALF_LIFE_S: f64 = 60.0;
/// Maximum rate of page faults of a quiet process, in faults per second, for each GiB of RSS but at
/// least one.
const QUIET_FAULTS: f64 = 2000.0;
/// Minimum growth of RSS in the window of a process that is not quiet, as a share of RSS, but at
/// least [`MIN_GROWTH`].
const GROWTH_SHARE: f64 = 0.005;
const MIN_GROWTH: u64 = 1 << 20;

/// Minimum RSS for a release, in bytes: a smaller process can have little more than [`MIN_GAIN`].
const MIN_RSS: u64 = 4 << 20;
/// Minimum gain of a release after a load, in bytes and as a share of RSS.
const MIN_GAIN: u64 = 1 << 20;
const MIN_GAIN_SHARE: f64 = 0.03;
/// Minimum gain of a release from a steady process, as a share of RSS.
const STEADY_GAIN_SHARE: f64 = 0.2;
/// CPU time of the process that counts as news, in seconds: two clock ticks.
const NEWS_CPU_S: f64 = 0.02;
/// CPU time of the process that counts as news after an act that found too little, as a multiple of
/// the CPU time of that act.
const NEWS_FACTOR: f64 = 10.0;
/// Maximum CPU time of such an act for which the first one requires no more news than any act, in
/// seconds. A program may rest in the middle of its work, and then free all memory in less time
/// than the walk took.
const CHEAP_MISS_S: f64 = 0.05;
/// Decrease of RSS without a release that counts as news, as a share of RSS, but at least
/// [`MIN_GAIN`]: the process has freed memory.
const SHRUNK_SHARE: f64 = 0.001;
/// Time of quiet after which any change since the last act counts as news, in seconds. It doubles
/// with each act that found too little, except for the first.
const LATE_S: f64 = 10.0;
/// The same as a multiple of the CPU time of an act that found too little: half a percent of a
/// core.
const LATE_FACTOR: f64 = 200.0;
/// Maximum number of times that it doubles.
const MAX_LATE_DOUBLINGS: u32 = 6;
/// Time of work after which acts that found too little are forgotten, in seconds.
const WORK_S: f64 = 1.0;
/// Number of acts in succession that may find too little. After these, the amount of news that the
/// next one requires doubles each time.
const FREE_MISSES: u32 = 3;
/// Maximum number of times that the required news doubles.
const MAX_DOUBLINGS: u32 = 10;
/// Share of the released memory that must have come back before the release counts as wrong.
const BACK_SHARE: f64 = 0.25;
/// Minimum size of a release from which the policy learns, as a share of the typical release: a
/// smaller one costs as much as a larger one.
const TYPICAL_SHARE: f64 = 0.25;
/// Weight that the typical release keeps with each further release.
const TYPICAL_DECAY: f64 = 0.9;
/// Minimum time between two acts, in seconds.
const MIN_INTERVAL_S: f64 = 1.0;
/// Minimum time between two acts, as a multiple of the CPU time of the last one: the heap of a
/// process that frees slowly must not be walked constantly.
const INTERVAL_FACTOR: f64 = 5.0;
/// Time until the next attempt after the budget delayed an act, in seconds.
const HELD_BACK_S: f64 = 5.0;
/// Minimum number of closed files that counts as news, and the same as a share of the open files.
const MIN_CLOSED: u64 = 4;
const CLOSED_SHARE: f64 = 0.1;
/// Minimum time between two acts while memory is short, in seconds.
const SHORT_INTERVAL_S: f64 = 5.0;

/// Releases when the load has fallen and the gain is worth the cost.
#[derive(Debug)]
pub(crate) struct AdaptivePolicy {
    /// States of the last [`WINDOW_S`], and one before it.
    window: VecDeque<ProcessState>,
    /// The peak of CPU use, in cores. It decays.
    peak_cores: f64,
    quiet_since_s: Option<f64>,
    /// Time since which the process is not quiet, in seconds.
    busy_since_s: Option<f64>,
    /// Time since which the memory has not grown, and its size then.
    steady: Option<(f64, u64)>,
    patience_s: f64,
    steady_patience_s: f64,
    /// Typical number of bytes that a release returns, by the largest recent ones. The policy does
    /// not learn from much smaller ones.
    typical_bytes: f64,
    /// Number of acts in succession that found too little to release.
    misses: u32,
    /// The state at the last act; `None` before the first.
    acted: Option<ProcessState>,
    /// The state at the previous act, for an act that is held back.
    acted_before: Option<ProcessState>,
    not_before_s: f64,
    learnt: Option<Lesson>,
}

/// The last release, as far as the policy has learnt from it.
#[derive(Debug, Clone, Copy)]
struct Lesson {
    id: u64,
    /// Patiences before the release.
    patience_s: f64,
    steady_patience_s: f64,
}

impl Default for AdaptivePolicy {
    fn default() -> Self {
        Self {
            window: VecDeque::new(),
            peak_cores: 0.0,
            quiet_since_s: None,
            busy_since_s: None,
            steady: None,
            patience_s: MIN_PATIENCE_S,
            steady_patience_s: MIN_STEADY_S,
            typical_bytes: 0.0,
            misses: 0,
            acted: None,
            acted_before: None,
            not_before_s: f64::NEG_INFINITY,
            learnt: None,
        }
    }
}

impl Policy for AdaptivePolicy {
    fn decide(&mut self, state: &ProcessState) -> Action {
        self.learn(state);
        self.take_back(state.held_back_s);
        self.observe(state);
        let Some((reason, min_bytes)) = self.choose(state) else { return Action::None };
        self.acted_before = self.acted.replace(*state);
        let is_short = matches!(reason, Reason::Short(_));
        let keep_huge_pages = state.has_huge_pages && !is_short;
        Action::Release(ReleaseRequest { reason, min_bytes, keep_huge_pages })
    }
}

impl AdaptivePolicy {
    /// Forgets the last act if the budget held it back, and waits before the next attempt.
    fn take_back(&mut self, held_back_s: Option<f64>) {
        if let Some((acted, held_back_s)) = self.acted.zip(held_back_s)
            && acted.t_s <= held_back_s
            && self.not_before_s < held_back_s
        {
            self.acted = self.acted_before;
            self.not_before_s = held_back_s + HELD_BACK_S;
        }
    }

    /// Updates the rates and the times since which the process is quiet and steady.
    fn observe(&mut self, state: &ProcessState) {
        let is_gap = |before: &&ProcessState| {
            let has_changed = usage(before) != usage(state);
            has_changed && state.t_s - before.t_s > MAX_GAP_S
        };
        if self.window.back().filter(is_gap).is_some() {
            self.window.clear();
            (self.quiet_since_s, self.busy_since_s, self.steady) = (None, None, None);
        }
        self.window.push_back(*state);
        while self.window.get(1).is_some_and(|second| state.t_s - second.t_s >= WINDOW_S) {
            self.window.pop_front();
        }
        let first = self.window.front().copied().unwrap_or(*state);
        let span_s = state.t_s - first.t_s;
        if span_s < WINDOW_S {
            return;
        }
        let cores = (state.cpu_s - first.cpu_s).max(0.0) / span_s;
        let decay = 0.5_f64.powf((state.t_s - self.before(state)) / PEAK_HALF_LIFE_S);
        self.peak_cores = (self.peak_cores * decay).max(cores);
        let faults = state.minor_faults.saturating_sub(first.minor_faults) as f64 / span_s;
        let gib = (state.rss.0 as f64 / (1_u64 << 30) as f64).max(1.0);
        let growth = state.rss.0.saturating_sub(first.rss.0);
        let has_grown = growth > MIN_GROWTH.max(share(state.rss.0, GROWTH_SHARE));
        let is_quiet = !has_grown
            && cores <= QUIET_CORES.max(self.peak_cores * QUIET_SHARE)
            && faults <= QUIET_FAULTS * gib;
        self.quiet_since_s =
            is_quiet.then(|| self.quiet_since_s.unwrap_or(state.t_s - span_s / 2.0));
        self.busy_since_s = (!is_quiet).then(|| self.busy_since_s.unwrap_or(state.t_s));
        if self.busy_since_s.is_some_and(|since| state.t_s - since >= WORK_S) {
            self.misses = 0;
        }
        self.steady = match self.steady {
            // A limit that moves with it would never be crossed by slow growth.
            Some((since_s, rss))
                if !is_quiet && state.rss.0 <= rss + (rss / 50).max(MIN_GROWTH) =>
            {
                Some((since_s, rss))
            }
            // A process that rests now and then is only released while it rests.
            _ => Some((state.t_s, state.rss.0)),
        };
    }

    /// Returns the time of the state before the last one.
    fn before(&self, state: &ProcessState) -> f64 {
        let at = self.window.len().checked_sub(2);
        at.and_then(|at| self.window.get(at)).map_or(state.t_s, |before| before.t_s)
    }

    /// Returns the reason for a release now and its minimum gain, if there is one.
    fn choose(&self, state: &ProcessState) -> Option<(Reason, u64)> {
        if state.t_s < self.not_before_s || state.rss.0 < MIN_RSS {
            return None;
        }
        let since_act = self.acted.map_or(f64::INFINITY, |acted| state.t_s - acted.t_s);
        let min_bytes = MIN_GAIN.max(share(state.rss.0, MIN_GAIN_SHARE));
        if let Some(shortage) = state.shortage() {
            // Memory that comes back soon makes the shortage worse.
            let wait_s = SHORT_INTERVAL_S * f64::from(1 << self.misses.min(7));
            let is_due = since_act >= wait_s.max(self.patience_s) && self.has_news(state);
            return is_due.then_some((Reason::Short(shortage), MIN_GAIN));
        }
        let last_cpu_s = state.last_release.map_or(0.0, |last| last.cpu_s);
        let interval_s = MIN_INTERVAL_S.max(last_cpu_s * INTERVAL_FACTOR);
        if since_act < interval_s || !self.has_news(state) {
            return None;
        }
        if self.quiet_since_s.is_some_and(|since| state.t_s - since >= self.patience_s) {
            return Some((Reason::LoadFell, min_bytes));
        }
        let is_steady =
            self.steady.is_some_and(|(since, _)| state.t_s - since >= self.steady_patience_s);
        let steady_bytes = MIN_GAIN.max(share(state.rss.0, STEADY_GAIN_SHARE));
        (is_steady && since_act >= self.steady_patience_s).then_some((Reason::Steady, steady_bytes))
    }

    /// Returns whether the process has done enough since the last act that there may be memory to
    /// release.
    fn has_news(&self, state: &ProcessState) -> bool {
        let Some(acted) = self.acted else { return true };
        let last = state.last_release;
        let rss_after = acted.rss.0;
        let has_grown = state.rss.0 > rss_after + MIN_GAIN.max(share(rss_after, MIN_GAIN_SHARE));
        let has_closed = match (acted.open_files, state.open_files) {
            (Some(before), Some(now)) => {
                before.saturating_sub(now) >= MIN_CLOSED.max(share(before, CLOSED_SHARE))
            }
            _ => false,
        };
        let has_shrunk =
            rss_after.saturating_sub(state.rss.0) >= MIN_GAIN.max(share(rss_after, SHRUNK_SHARE));
        let missed = last.filter(|last| last.returned_bytes == 0);
        let doublings = self.misses.saturating_sub(FREE_MISSES).min(MAX_DOUBLINGS);
        let doubled = f64::from(1 << doublings);
        let needed_s =
            NEWS_CPU_S.max(missed.map_or(0.0, |missed| self.news_after(missed.cpu_s))) * doubled;
        let has_freed = has_closed || has_shrunk;
        // Freed memory is stronger evidence than CPU time.
        let later = self.misses.saturating_sub(2 * FREE_MISSES).min(MAX_DOUBLINGS);
        let freed_s = MIN_INTERVAL_S * f64::from(1 << later);
        let late_s = LATE_S.max(missed.map_or(0.0, |missed| missed.cpu_s * LATE_FACTOR))
            * f64::from(1 << self.misses.saturating_sub(1).min(MAX_LATE_DOUBLINGS));
        let has_changed = usage(state) != usage(&acted);
        let is_late = self.quiet_since_s.is_some_and(|since| state.t_s - since >= late_s)
            && state.t_s - acted.t_s >= late_s;
        has_grown
            || (has_changed && is_late)
            || (has_freed && state.t_s - acted.t_s >= freed_s)
            || state.cpu_s - acted.cpu_s >= needed_s
    }

    /// Returns the CPU time that is news after an act that found too little and used this CPU time,
    /// both in seconds.
    fn news_after(&self, cpu_s: f64) -> f64 {
        let is_cheap = self.misses <= 1 && cpu_s <= CHEAP_MISS_S;
        if is_cheap { 0.0 } else { cpu_s * NEWS_FACTOR }
    }

    /// Learns from the last release whether its gain was worth its cost.
    fn learn(&mut self, state: &ProcessState) {
        let Some(last) = state.last_release else { return };
        let lesson = match self.learnt {
            Some(lesson) if lesson.id == last.id => lesson,
            known => {
                // More memory of the previous release may have come back since the last state.
                let before = state.previous_release;
                if let Some((lesson, before)) = known.zip(before).filter(|(a, b)| a.id == b.id) {
                    self.take_lesson(lesson, &before);
                }
                self.misses =
                    if last.returned_bytes == 0 { self.misses.saturating_add(1) } else { 0 };
                let decayed = self.typical_bytes * TYPICAL_DECAY;
                self.typical_bytes = decayed.max(last.returned_bytes as f64);
                // Changes by the act itself are not news. Changes since then are.
                let Usage { rss, cpu_s, minor_faults, open_files } = last.usage;
                self.acted = Some(ProcessState { rss, cpu_s, minor_faults, open_files, ..*state });
                let (patience_s, steady_patience_s) = (self.patience_s, self.steady_patience_s);
                Lesson { id: last.id, patience_s, steady_patience_s }
            }
        };
        self.learnt = Some(lesson);
        self.take_lesson(lesson, &last);
    }

    /// Sets the patiences after a release, as far as its outcome is known.
    fn take_lesson(&mut self, lesson: Lesson, last: &LastRelease) {
        if last.returned_bytes == 0 {
            let doubled = lesson.steady_patience_s * 2.0;
            self.steady_patience_s = doubled.min(MAX_PATIENCE_S);
            return;
        }
        if (last.returned_bytes as f64) < self.typical_bytes * TYPICAL_SHARE {
            return;
        }
        let is_back = last.back.bytes as f64 > last.returned_bytes as f64 * BACK_SHARE;
        let (patience_s, steady_s) = match net_gain_s(last) {
            net if net < 0.0 && is_back => {
                ((lesson.patience_s * 2.0).max(break_even_s(last)), lesson.steady_patience_s * 4.0)
            }
            net if net < 0.0 || last.back.after_s < MIN_EVIDENCE_S => {
                (lesson.patience_s, lesson.steady_patience_s)
            }
            _ => (lesson.patience_s / 2.0, lesson.steady_patience_s / 2.0),
        };
        self.patience_s = patience_s.clamp(MIN_PATIENCE_S, MAX_PATIENCE_S);
        self.steady_patience_s = steady_s.clamp(MIN_STEADY_S, MAX_PATIENCE_S);
    }
}

/// Returns the gain of a release minus its cost, in seconds of a core, relative to a release
/// [`break_even_s`] later: what the later release would have gained does not count.
fn net_gain_s(last: &LastRelease) -> f64 {
    let Returned { after_s, bytes, away_byte_s } = last.back;
    let still_away = last.returned_bytes.saturating_sub(bytes) as f64;
    let back = bytes as f64;
    let mean_s = if bytes > 0 { (away_byte_s - still_away * after_s).max(0.0) / back } else { 0.0 };
    let even_s = break_even_s(last);
    let gain = still_away * after_s.min(even_s) + back * mean_s.min(even_s);
    // Memory that comes back after more than that costs as much with a later release.
    let share = if mean_s < even_s { back / last.returned_bytes.max(1) as f64 } else { 0.0 };
    gain / CORE_SECOND_BYTE_S - share * cost_s(last)
}

/// Returns the CPU time of a release, and of its pages if all of them come back, in seconds.
fn cost_s(last: &LastRelease) -> f64 {
    last.cpu_s + last.returned_bytes as f64 * REFAULT_S_PER_BYTE
}

/// Returns the time for which the memory of a release must be away to pay for it, in seconds.
fn break_even_s(last: &LastRelease) -> f64 {
    let even_s = cost_s(last) * CORE_SECOND_BYTE_S / last.returned_bytes.max(1) as f64;
    even_s.min(MAX_PATIENCE_S)
}

/// Returns the values that show whether a process has done anything.
fn usage(state: &ProcessState) -> (u64, f64, u64) {
    (state.rss.0, state.cpu_s, state.minor_faults)
}

fn share(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}

#[cfg(test)]
mod tests;
