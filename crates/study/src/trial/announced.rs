//! What a subject announces by the lines that it prints.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use lowtide_analysis::metrics::JUDGED_PHASES;
use lowtide_record::Recorder;
use lowtide_record::v1::{Event, Line, Mark};

use super::moments::Moments;
use super::sampling::Requests;
use crate::output::Listener;
use crate::plan::Plan;
use crate::ready::Ready;
use crate::timeline::Phase;

/// What was announced so far: set by the thread that reads, read by the one that waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Announced {
    flags: Arc<Flags>,
    /// Each phase is read at once, so that its figures are those of its moment.
    pub(super) requests: Requests,
    /// Each phase may be a moment at which something is to be done.
    pub(super) moments: Moments,
}

#[derive(Debug, Default)]
struct Flags {
    ready: AtomicBool,
    load_end: AtomicBool,
    phases: Mutex<BTreeSet<String>>,
}

impl Announced {
    /// Whether the line was printed that says that it is ready.
    pub(super) fn is_ready(&self) -> bool {
        self.flags.ready.load(Ordering::Relaxed)
    }

    /// Whether it has begun the phase `load_end`.
    pub(super) fn load_has_ended(&self) -> bool {
        self.flags.load_end.load(Ordering::Relaxed)
    }

    /// The first phase that decides over a figure and was never announced.
    pub(super) fn missing<'p>(&self, plan: &'p Plan) -> Option<&'p Phase> {
        let seen = self.flags.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let judged = plan.phases.iter().filter(|p| JUDGED_PHASES.contains(&p.name.as_str()));
        judged.into_iter().find(|phase| !seen.contains(&phase.name))
    }

    /// What is done with each line; `None` when no line means anything.
    pub(super) fn listener(&self, plan: &Plan, recorder: &Recorder) -> Option<Listener> {
        let ready = match &plan.course.ready {
            Some(Ready::Log(regex)) => Some(regex.clone()),
            _ => None,
        };
        let phases = plan.phases.clone();
        if ready.is_none() && phases.is_empty() {
            return None;
        }
        let recorder = recorder.clone();
        let Self { flags, requests, moments } = self.clone();
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
                requests.read_soon();
                moments.note(&phase.name, None);
                let mut seen = flags.phases.lock().unwrap_or_else(PoisonError::into_inner);
                seen.insert(phase.name.clone());
                drop(seen);
                if phase.name == "load_end" {
                    flags.load_end.store(true, Ordering::Relaxed);
                }
            }
        }))
    }
}
