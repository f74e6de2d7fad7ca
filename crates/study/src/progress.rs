//! How far a study is, for whoever shows it.

use std::path::PathBuf;

use lowtide_record::v1::Outcome;

use crate::eta::TimeLeft;

/// Whoever wants to see how far a study is.
pub trait StudyObserver {
    /// Something has gone on.
    fn see(&mut self, progress: StudyEvent);
}

/// How far a study is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StudyEvent {
    /// The record is made.
    Begin {
        /// Its directory.
        record: PathBuf,
        /// How many trials there are in it, when all are done.
        trials: u32,
        /// How many of them were done before.
        done: u32,
    },
    /// A trial begins.
    TrialBegin {
        /// Its treatment.
        label: String,
        /// Which repeat, from 1.
        repeat: u32,
        /// How much time is left from here.
        left: TimeLeft,
    },
    /// The trial does something else.
    Step(String),
    /// Something that people should know, and that does not end the trial.
    Note(String),
    /// It was interrupted, and the cleanup goes on.
    CleaningUp,
    /// The last reading.
    Reading {
        /// Resident bytes of the subject.
        rss_bytes: u64,
        /// Its established connections.
        connections: u64,
    },
    /// A trial has ended.
    TrialEnd {
        /// How.
        outcome: Outcome,
    },
}
