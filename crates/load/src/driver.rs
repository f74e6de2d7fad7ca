//! The event loop. It owns the clock and the sockets, starts requests and connections that are due,
//! and gives up those that take too long.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lowtide_model::load::{LoadReport, LoadRound, SCHEMA};
use mio::{Events, Poll, Token};

use crate::RunError;
use crate::clock::Clock;
use crate::failure::RequestFailure;
use crate::observer::{Event, LoadEvent, LoadObserver, LoadState};
use crate::pacer::Pacer;
use crate::plan::LoadSpec;
use crate::pool::ConnectionPool;
use crate::protocol::Ticks;
use crate::resolved_target::ResolvedTarget;
use crate::shape::{Shape, Step};
use crate::tally::{LoadTally, RoundCounts};
use crate::timer::Timer;

/// Maximum number of requests that start on a connection in a row before others have their turn.
const MAX_REQUESTS_PER_TURN: u64 = 256;
/// Maximum number of turns before the loop reads responses.
const MAX_TURNS: usize = 64;
/// Maximum number of events per poll.
const MAX_EVENTS: usize = 1024;
/// Number of failed connections, all from the start, after which the load is aborted.
const MAX_FAILED_CONNECTIONS: usize = 8;
/// Start of the round while there is none: no request starts later, so that none counts for a
/// round.
const NO_ROUND: Ticks = Ticks(u32::MAX);
const TIMER: Token = Token(usize::MAX);

/// Runs a plan.
pub(crate) struct Driver<'a> {
    plan: &'a LoadSpec,
    targets: &'a [ResolvedTarget],
    poll: Poll,
    events: Events,
    timer: Timer,
    pool: ConnectionPool<'a>,
    tally: LoadTally,
    clock: Clock,
    observer: &'a mut dyn LoadObserver,
    interrupt: &'a AtomicBool,
    interrupted: bool,
    rounds: Vec<LoadRound>,
    notes: Vec<String>,
    round: u32,
    round_started: Duration,
    in_round: bool,
    /// The index of the round after which background requests run that are not reported yet.
    round_before_trickle: Option<usize>,
    next_sample: Duration,
    next_upkeep: Duration,
}

/// The state of a step while it runs.
struct StepRun<'s> {
    shape: &'s Shape,
    pacer: Pacer,
    /// As a time since the start of the run.
    started: Duration,
    /// When the step ends, if it ends by time.
    end: Option<Duration>,
}

impl StepRun<'_> {
    fn is_pause(&self) -> bool {
        matches!(self.shape, Shape::Idle { .. })
    }
}

impl<'a> Driver<'a> {
    pub(crate) fn new(
        plan: &'a LoadSpec,
        targets: &'a [ResolvedTarget],
        observer: &'a mut dyn LoadObserver,
        interrupt: &'a AtomicBool,
    ) -> Result<Self, RunError> {
        let poll = Poll::new()?;
        let timer = Timer::new(poll.registry(), TIMER)?;
        let registry = poll.registry().try_clone()?;
        let first = targets.first().ok_or_else(|| io::Error::other("a plan without a target"))?;
        let pool =
            ConnectionPool::new(plan.connections, plan.streams, first, registry, plan.is_bare());
        Ok(Self {
            plan,
            targets,
            poll,
            events: Events::with_capacity(MAX_EVENTS),
            timer,
            pool,
            tally: LoadTally::default(),
            clock: Clock::start(),
            observer,
            interrupt,
            interrupted: false,
            rounds: Vec::new(),
            notes: Vec::new(),
            round: 0,
            round_started: Duration::ZERO,
            in_round: false,
            round_before_trickle: None,
            next_sample: Duration::ZERO,
            next_upkeep: Duration::ZERO,
        })
    }

    pub(crate) fn run(mut self) -> Result<LoadReport, RunError> {
        let steps = self.plan.shape.steps();
        for (at, step) in steps.iter().enumerate() {
            if is_pause(step) {
                self.start_pause(step.shape);
            } else if step.round != self.round {
                self.start_round(step)?;
            }
            if !self.interrupted {
                self.step(step.shape)?;
            }
            if self.interrupted {
                break;
            }
            let next = steps.get(at + 1);
            if !is_pause(step) && next.is_none_or(|next| is_pause(next) || next.round != self.round)
            {
                self.end_round();
            }
        }
        self.finish()
    }

    fn start_round(&mut self, step: &Step<'_>) -> Result<(), RunError> {
        let before = std::mem::replace(&mut self.round, step.round);
        if before > 0 && self.target_of(before).url != self.target().url {
            // Connections to another target are closed once their background requests are answered.
            self.wait_for_answers()?;
            if self.interrupted {
                return Ok(());
            }
        }
        let now = self.read_clock();
        self.round_started = now;
        self.in_round = true;
        self.tally.round = RoundCounts::default();
        self.tally.round_started = self.tally.now;
        let target = self.target();
        self.pool.start_round(target, self.streams(step.shape), now);
        self.observer.observe(LoadEvent::Round { round: self.round, target: &target.url });
        self.mark(Event::LoadBegin);
        Ok(())
    }

    fn target(&self) -> &'a ResolvedTarget {
        self.target_of(self.round)
    }

    fn target_of(&self, round: u32) -> &'a ResolvedTarget {
        &self.targets[(round.max(1) as usize - 1) % self.targets.len()]
    }

    fn wait_for_answers(&mut self) -> Result<(), RunError> {
        while self.tally.in_flight > 0 && !self.interrupted {
            self.step(&Shape::Hold(self.upkeep_interval()))?;
        }
        Ok(())
    }

    /// Returns how many requests may be in flight on each connection. A burst that fits at once is
    /// divided evenly.
    fn streams(&self, shape: &Shape) -> usize {
        match shape {
            Shape::Burst(count) => {
                let share = count.div_ceil(self.plan.connections as u64);
                usize::try_from(share).unwrap_or(usize::MAX).clamp(1, self.plan.streams)
            }
            _ => self.plan.streams,
        }
    }

    fn end_round(&mut self) {
        self.read_clock();
        self.mark(Event::Drained);
        self.mark(Event::LoadEnd);
        self.in_round = false;
        let started = std::mem::replace(&mut self.tally.round_started, NO_ROUND);
        let counts = &self.tally.round;
        let mut round = counts.round(self.round, self.target().url.clone(), started);
        let lost_bodies = counts.has_lost_bodies();
        if self.plan.is_bare() {
            round.closed_while_held = Some(counts.closed_while_held);
            self.close_all();
        }
        self.take_notes(lost_bodies);
        self.observer.observe(LoadEvent::RoundEnd(&round));
        self.rounds.push(round);
    }

    fn take_notes(&mut self, lost_bodies: bool) {
        let (asked, connections) = (self.plan.streams, self.plan.connections);
        if let Some(permitted_streams) = self.pool.permitted_streams.take() {
            self.note(match permitted_streams {
                1 => {
                    "the server handles one request at a time on a connection, as HTTP/1.1 does; the \
                      others waited"
                        .to_owned()
                }
                few => format!(
                    "the server permits {few} streams on a connection, and {asked} were requested: \
                     {} requests were in flight at most, and the others waited",
                    few.saturating_mul(connections)
                ),
            });
        }
        let given_up = self.pool.given_up();
        if let Some(failure) = self.pool.last_failure.take().filter(|_| given_up > 0) {
            self.note(format!(
                "round {}: {given_up} of {connections} connections were given up after 3 failures in a \
                 row: {failure}",
                self.round
            ));
        }
        if lost_bodies {
            self.note("there were more different response bodies than lowtide counts".to_owned());
        }
    }

    /// Adds a note to the report, unless it is there already.
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Starts a pause after the last reported round.
    fn start_pause(&mut self, shape: &Shape) {
        self.end_trickle();
        if matches!(shape, Shape::Idle { trickle: Some(_), .. }) {
            self.round_before_trickle = self.rounds.len().checked_sub(1);
        }
    }

    /// Reports the background requests of the last pause, including those answered during the round
    /// after it.
    fn end_trickle(&mut self) {
        let trickle = std::mem::take(&mut self.tally.trickle);
        if let Some(number) = self.round_before_trickle.take() {
            self.rounds[number].between_rounds = Some(trickle.trickle());
        }
    }

    fn step(&mut self, shape: &Shape) -> Result<(), RunError> {
        let started = self.read_clock();
        let end = match shape {
            Shape::Hold(time) | Shape::Idle { time, .. } => Some(started + *time),
            _ => None,
        };
        let mut step = StepRun { shape, pacer: Pacer::new(shape), started, end };
        loop {
            self.start_due(&mut step);
            self.upkeep(&mut step)?;
            if self.is_over(&step) {
                return Ok(());
            }
            if self.interrupt.load(Ordering::Relaxed) {
                self.give_up();
                return Ok(());
            }
            self.wait(&step)?;
        }
    }

    fn is_over(&mut self, step: &StepRun<'_>) -> bool {
        let now = self.read_clock();
        match step.end {
            Some(end) => now >= end,
            None => step.pacer.is_done(now - step.started) && self.tally.round.in_flight() == 0,
        }
    }

    /// Returns the time since the start of the run.
    fn read_clock(&mut self) -> Duration {
        let now = self.clock.now();
        self.tally.now = self.clock.ticks(now);
        now
    }

    fn start_due(&mut self, step: &mut StepRun<'_>) {
        let now = self.read_clock();
        if step.pacer.due(now - step.started) == 0 {
            return;
        }
        match self.plan.is_bare() {
            true => self.connect_due(step, now),
            false => self.send_due(step, now),
        }
    }

    fn connect_due(&mut self, step: &mut StepRun<'_>, now: Duration) {
        for _ in 0..step.pacer.due(now - step.started).min(MAX_REQUESTS_PER_TURN) {
            // Each place has one connection per round.
            let number = self.tally.round.sent as usize;
            if number >= self.plan.connections {
                return step.pacer.stop();
            }
            let due = step.started + step.pacer.start(now - step.started);
            self.tally.start_bare();
            self.pool.connect(number, self.clock.ticks(due), &mut self.tally, now);
        }
    }

    fn send_due(&mut self, step: &mut StepRun<'_>, now: Duration) {
        self.pool.fill(self.wanted(step), &mut self.tally, now);
        for _ in 0..MAX_TURNS {
            let now = self.read_clock();
            let due = step.pacer.due(now - step.started).min(MAX_REQUESTS_PER_TURN);
            if due == 0 {
                return;
            }
            let Some((number, room)) = self.pool.next_ready() else { return };
            // Scheduled requests are spread evenly over the connections.
            let most = match step.pacer.next() {
                Some(_) => due.div_ceil(self.pool.ready() as u64 + 1),
                None => due,
            };
            for _ in 0..most.min(room as u64) {
                let due = step.started + step.pacer.start(now - step.started);
                match step.is_pause() {
                    true => self.tally.start_trickle(),
                    false => self.tally.start(),
                }
                self.pool.send(number, self.clock.ticks(due));
            }
            self.pool.flush(number, &mut self.tally, now);
        }
    }

    /// Returns how many connections the step needs.
    fn wanted(&self, step: &StepRun<'_>) -> usize {
        let all = self.plan.connections;
        match step.shape {
            Shape::Idle { .. } => 1,
            Shape::Burst(count) | Shape::Ramp { count, .. } => {
                usize::try_from(*count).unwrap_or(all).min(all)
            }
            _ => all,
        }
    }

    /// Samples the state, and handles late requests, idle connections and given-up places.
    fn upkeep(&mut self, step: &mut StepRun<'_>) -> Result<(), RunError> {
        let now = self.read_clock();
        if now >= self.next_sample {
            self.next_sample = now + self.plan.sample_interval;
            self.observer.observe(LoadEvent::State(self.state(step, now)));
        }
        self.give_up_hopeless(step)?;
        if now < self.next_upkeep {
            return Ok(());
        }
        self.next_upkeep = now + self.upkeep_interval();
        if let Some(by) = self.clock.rebase(now) {
            self.pool.rebase(by);
            if self.in_round {
                let started = &mut self.tally.round_started;
                *started = Ticks(started.0.saturating_sub(by.0));
            }
            self.read_clock();
        }
        if let Some(until) = now.checked_sub(self.plan.timeout) {
            self.pool.expire(self.clock.ticks(until), &mut self.tally, now);
            self.give_up_waiting(step, until);
        }
        if let Some(idle) = self.plan.idle_close.filter(|_| step.is_pause()) {
            let open_before = self.pool.open_count;
            self.pool.close_idle(now.saturating_sub(idle));
            if open_before > 0 && self.pool.open_count == 0 {
                self.mark(Event::Closed);
            }
        }
        Ok(())
    }

    /// Returns the interval of checks for late requests and idle connections: a tenth of the
    /// shortest timeout.
    fn upkeep_interval(&self) -> Duration {
        let shortest = self.plan.idle_close.map_or(self.plan.timeout, |d| d.min(self.plan.timeout));
        (shortest / 10).clamp(Duration::from_millis(1), Duration::from_millis(100))
    }

    /// Gives up requests that were due longer ago than the timeout and could not start.
    fn give_up_waiting(&mut self, step: &mut StepRun<'_>, until: Duration) {
        if step.is_pause() || self.plan.is_bare() {
            return;
        }
        while step.pacer.next().is_some_and(|due| step.started + due <= until) {
            let due = step.started + step.pacer.start(Duration::ZERO);
            self.tally.timed_out_unsent(self.clock.ticks(due));
        }
    }

    /// Fails the requests that have not started, if no connection can be made any more.
    ///
    /// # Errors
    ///
    /// Fails if no connection could ever be made, so that there is nothing to report.
    fn give_up_hopeless(&mut self, step: &mut StepRun<'_>) -> Result<(), RunError> {
        if step.is_pause() || step.end.is_some() || self.pool.last_failure.is_none() {
            return Ok(());
        }
        let wanted = self.wanted(step);
        if self.tally.answers == 0 && self.rounds.is_empty() {
            let wrong_protocol =
                self.pool.last_failure.filter(|failure| failure.is_wrong_protocol());
            let never = self.pool.failed(wanted.min(MAX_FAILED_CONNECTIONS), false);
            let never = never.filter(|_| !self.pool.was_ever_open);
            if let Some(failure) = wrong_protocol.or(never) {
                let target = self.target().url.clone();
                return Err(RunError::NoConnection { target, failure });
            }
        }
        if self.plan.is_bare() {
            return Ok(());
        }
        let failure = self.pool.failed(wanted, true);
        if let Some((failure, left)) = failure.zip(step.pacer.left()) {
            self.tally.failed_unsent(left, failure);
            step.pacer.stop();
        }
        Ok(())
    }

    /// Waits for the next event, due start, check or sample.
    fn wait(&mut self, step: &StepRun<'_>) -> Result<(), RunError> {
        let now = self.read_clock();
        let is_due = step.pacer.due(now - step.started) > 0;
        let at_once =
            self.pool.may_read_on() || (is_due && (self.plan.is_bare() || self.pool.is_ready()));
        if !at_once {
            let next = step.pacer.next().map(|due| step.started + due).filter(|due| *due > now);
            let times = [Some(self.next_upkeep), Some(self.next_sample), next, step.end];
            let first = times.into_iter().flatten().min().unwrap_or(now);
            self.timer.set(first, now)?;
        }
        match self.poll.poll(&mut self.events, at_once.then_some(Duration::ZERO)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for event in self.events.iter().filter(|event| event.token() != TIMER) {
            let now = self.clock.now();
            self.tally.now = self.clock.ticks(now);
            self.pool.handle_event(event.token().0, &mut self.tally, now);
        }
        let now = self.read_clock();
        self.pool.read_more(&mut self.tally, now);
        Ok(())
    }

    fn state(&self, step: &StepRun<'_>, now: Duration) -> LoadState {
        let counts = &self.tally.round;
        LoadState {
            round: self.round,
            in_flight: self.tally.in_flight,
            succeeded: counts.succeeded,
            failed: counts.failed,
            connections: self.pool.open_count,
            since_round: now - self.round_started,
            pause_left: step.end.filter(|_| step.is_pause()).map(|end| end.saturating_sub(now)),
        }
    }

    fn mark(&mut self, moment: Event) {
        self.observer.observe(LoadEvent::Mark { moment, round: self.round });
    }

    fn close_all(&mut self) {
        let open_before = self.pool.open_count;
        self.pool.close_all();
        if open_before > 0 {
            self.mark(Event::Closed);
        }
    }

    /// Ends the run early, after an interrupt.
    fn give_up(&mut self) {
        self.read_clock();
        self.interrupted = true;
        self.pool.give_up_all(RequestFailure::Interrupted, &mut self.tally);
        if self.in_round {
            self.end_round();
        }
    }

    fn finish(mut self) -> Result<LoadReport, RunError> {
        if !self.interrupted {
            // Background requests from before the last round may still be in flight.
            self.wait_for_answers()?;
            if !self.plan.linger.is_zero() {
                self.step(&Shape::Hold(self.plan.linger))?;
            }
            self.close_all();
        }
        self.end_trickle();
        Ok(LoadReport {
            schema: SCHEMA.to_owned(),
            client_peak_rss_bytes: peak_rss_bytes(),
            rounds: self.rounds,
            interrupted: self.interrupted,
            notes: self.notes,
        })
    }
}

fn is_pause(step: &Step<'_>) -> bool {
    matches!(step.shape, Shape::Idle { .. })
}

/// Returns the peak RSS of this process in bytes, or 0 if it cannot be read.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
