//! What a subject announces by the lines that it prints.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lowtide_model::record::v1::{Line, Mark, Moment};

use super::sampling::Requests;
use crate::plan::Plan;
use crate::ready::Ready;
use crate::recorder::Recorder;

/// What was announced so far: set by the thread that reads, read by the one that waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Announced {
    flags: Arc<Flags>,
    /// Each phase is read at once, so that its figures are those of its moment.
    pub(super) requests: Requests,
}

#[derive(Debug, Default)]
struct Flags {
    ready: AtomicBool,
    load_end: AtomicBool,
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

    /// What is done with each line.
    pub(super) fn listener(
        &self,
        plan: &Plan,
        recorder: &Recorder,
    ) -> impl FnMut(&str, Instant) + Send + 'static {
        let ready = match &plan.course.ready {
            Some(Ready::Log(regex)) => Some(regex.clone()),
            _ => None,
        };
        let phases = plan.phases.clone();
        let recorder = recorder.clone();
        let Self { flags, requests } = self.clone();
        move |line: &str, at: Instant| {
            if ready.as_ref().is_some_and(|regex| regex.is_match(line)) {
                flags.ready.store(true, Ordering::Relaxed);
            }
            for phase in phases.iter().filter(|phase| phase.line.is_match(line)) {
                recorder.write(&Line::Mark(Mark {
                    t_s: recorder.time_of(at),
                    mark: Moment::Phase,
                    round: None,
                    name: Some(phase.name.clone()),
                }));
                requests.read_soon();
                if phase.name == "load_end" {
                    flags.load_end.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}
