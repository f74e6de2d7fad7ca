//! The record of a study, a load or `lowtide watch`: its format, its writer and its reader.
//!
//! A record is JSON Lines, appended as events happen. Recording and reporting share this format and
//! nothing else. A study's record is a directory:
//!
//! ```text
//! study.jsonl                    header, plan, one line as each trial starts and ends
//! trials/001-glibc.jsonl         header, trial, then processes, samples, marks, loads, end
//! trials/001-glibc.log           the subject's output
//! ```
//!
//! A load writes a file of its own (`lowtide load -o`): header, plan of the load, then samples,
//! marks (`load_begin`, `drained`, `closed`, `load_end`) and a line for each round. It writes the
//! same lines to the file that [`LOAD_SAMPLES`] names; a study reads them from there.
//!
//! Every file starts with a [`v1::Header`] and can be read alone. A file whose last line is torn
//! (the writer was killed, the disk was full) is read up to that line. A line of an unknown kind is
//! skipped, so that a new kind needs no new version. An unknown version is refused.
//!
//! For example, the writer of a load:
//!
//! ```no_run
//! use lowtide_record::{LOAD_SAMPLES, Recorder};
//! use lowtide_record::v1::{FileKind, Line, LoadSample, Machine};
//!
//! # fn main() -> std::io::Result<()> {
//! if let Some(path) = std::env::var_os(LOAD_SAMPLES) {
//!     let recorder = Recorder::create(path.as_ref(), FileKind::Load, &Machine::default())?;
//!     let t_s = recorder.now();
//!     recorder.write(&Line::LoadSample(LoadSample { t_s, round: 1, ..LoadSample::default() }));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Times, resuming, and parts
//!
//! - Every header has the time of its start, by the wall clock and by the monotonic clock of the
//!   boot. Two records of one boot are aligned by the latter (`Header::seconds_behind`).
//! - Resuming only appends: another `trial_begin` with the same number (readers use the last one),
//!   and a new file `trials/NNN-LABEL-attempt-2.jsonl`. `study.jsonl` is locked while a study
//!   writes it.
//! - A part of a study (`--shard I/N`, [`shard`]) is a record like any other. Its trials keep their
//!   numbers in the whole study. It has whole repeats, so that both trials of each compared pair
//!   come from one machine. `lowtide-report` merges the parts, and they are analyzed like one
//!   study.
//!
//! `schemas/lowtide.record.1.json` describes every line.

pub mod black_box;
pub mod bounds;
mod clock;
pub mod files;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod phase;
pub mod plan;
mod read;
mod recorder;
pub mod shard;
mod single;
pub mod v1;

pub use clock::clock;
pub use read::{
    LoadRecord, ReadError, Records, StudyRecord, TrialRecord, read_line, read_lines, read_load,
    read_study, read_trial,
};
pub use recorder::Recorder;
pub use single::SingleTrial;

/// The environment variable with the path of the file to which a load writes its header, samples
/// and marks, when a study has started the load. The file does not exist yet. The load writes line
/// by line, so that the study can read each line as it comes. The study copies the lines into the
/// record of its trial, runs the hooks of the marks, and removes the file.
pub const LOAD_SAMPLES: &str = "LOWTIDE_LOAD_SAMPLES";
