//! The progress of a study, for observers.

use std::path::PathBuf;

use lowtide_record::v1::Outcome;

use crate::eta::TimeLeft;

/// An observer of the progress of a study.
pub trait StudyObserver {
    /// Receives an event.
    fn see(&mut self, progress: StudyEvent);
}

/// An event in the progress of a study.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StudyEvent {
    /// The record was created.
    Begin {
        /// Its directory.
        record: PathBuf,
        /// Total number of its trials.
        trials: u32,
        /// Number of trials that were done before.
        done: u32,
    },
    /// A trial starts.
    TrialBegin {
        /// Its treatment.
        label: String,
        /// Its repeat, from 1.
        repeat: u32,
        /// The remaining time.
        left: TimeLeft,
    },
    /// The trial starts another step.
    Step(String),
    /// A note for the user, which does not end the trial.
    Note(String),
    /// It was interrupted, and the cleanup continues.
    CleaningUp,
    /// The last sample.
    Reading {
        /// Resident bytes of the subject.
        rss_bytes: u64,
        /// Its established connections.
        connections: u64,
    },
    /// A trial has ended.
    TrialEnd {
        /// Its outcome.
        outcome: Outcome,
    },
}
