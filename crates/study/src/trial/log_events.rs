//! The events that a subject announces by lines of its output: its readiness, and its phases.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use lowtide_record::Recorder;
use lowtide_record::phase::MetricPhase;
use lowtide_record::v1::{Event, Line, Mark};

use super::hook_queue::HookQueue;
use super::sampling::SamplerHandle;
use crate::capture::LineListener;
use crate::plan::Plan;
use crate::ready::Ready;
use crate::timeline::Phase;

/// The events so far: set by the thread that reads the output, read by the one that waits for them.
#[derive(Debug, Clone, Default)]
pub(super) struct LogEvents {
    flags: Arc<EventFlags>,
    /// Each phase requests a sample immediately, so that its metrics are those of its moment.
    pub(super) sampler: SamplerHandle,
    /// Each phase may have hooks.
    pub(super) hook_queue: HookQueue,
}

#[derive(Debug, Default)]
struct EventFlags {
    ready: AtomicBool,
    load_end: AtomicBool,
    phases: Mutex<BTreeSet<String>>,
}

impl LogEvents {
    /// Returns whether the line that announces readiness was printed.
    pub(super) fn is_ready(&self) -> bool {
        self.flags.ready.load(Ordering::Relaxed)
    }

    /// Returns whether its phase `load_end` has started.
    pub(super) fn load_has_ended(&self) -> bool {
        self.flags.load_end.load(Ordering::Relaxed)
    }

    /// Returns the first phase that a metric depends on and that was not announced.
    pub(super) fn missing<'p>(&self, plan: &'p Plan) -> Option<&'p Phase> {
        let seen = self.flags.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let judged = plan.phases.iter().filter(|p| MetricPhase::parse(&p.name).is_some());
        judged.into_iter().find(|phase| !seen.contains(&phase.name))
    }

    /// Returns the listener to its output; `None` if no line has a meaning.
    pub(super) fn listener(&self, plan: &Plan, recorder: &Recorder) -> Option<LineListener> {
        let ready = match &plan.timeline.ready {
            Some(Ready::Log(regex)) => Some(regex.clone()),
            _ => None,
        };
        let phases = plan.phases.clone();
        if ready.is_none() && phases.is_empty() {
            return None;
        }
        let recorder = recorder.clone();
        let Self { flags, sampler, hook_queue } = self.clone();
        Some(Box::new(move |line: &str, at: Instant| {
            if ready.as_ref().is_some_and(|regex| regex.is_match(line)) {
                flags.ready.store(true, Ordering::Relaxed);
            }
            for phase in phases.iter().filter(|phase| phase.line.is_match(line)) {
                recorder.write(&Line::Mark(Mark {
                    t_s: recorder.time_of(at),
                    mark: Event::Phase,
                    round: None,
                    name: Some(phase.name.clone()),
                }));
                sampler.sample_moment();
                hook_queue.push(&phase.name, None);
                let mut seen = flags.phases.lock().unwrap_or_else(PoisonError::into_inner);
                seen.insert(phase.name.clone());
                drop(seen);
                if phase.name == MetricPhase::LoadEnd.name() {
                    flags.load_end.store(true, Ordering::Relaxed);
                }
            }
        }))
    }
}
