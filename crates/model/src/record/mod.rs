//! The record of a run, which `report` reads: JSON Lines, appended as events happen.
//!
//! Recording and reporting share this format and nothing else. A record is a directory:
//!
//! ```text
//! study.jsonl                    header, plan, one line as each trial begins and ends
//! trials/001-glibc.jsonl         header, trial, then processes, samples, marks, loads, end
//! trials/001-glibc.log           what the subject printed
//! ```
//!
//! A load writes a file of its own (`lowtide load -o`): header, its plan, then samples, marks
//! (`load_begin`, `drained`, `closed`, `load_end`) and a line for each round. It writes the same lines to
//! the file that [`LOAD_SAMPLES`] names, from which a study reads them.
//!
//! Every file begins with a [`v1::Header`], so that it can be read independently. If the last line of a
//! file is torn (the writer was killed, the disk was full), the file is read up to that line. Lines of an
//! unknown kind are skipped, so that kinds can be added without a new version. An unknown version is
//! rejected.

mod read;
pub mod v1;

pub use read::{
    LoadRecord, ReadError, Records, StudyRecord, TrialRecord, read_line, read_lines, read_load,
    read_study, read_trial,
};

/// The variable that names the file to which a load writes header, samples and marks while it runs, if a
/// study started it. The file does not exist yet. Lines are written to the kernel one by one, so that they
/// can be read immediately: the study copies them into the record of its trial, acts on the marks, and then
/// removes the file.
pub const LOAD_SAMPLES: &str = "LOWTIDE_LOAD_SAMPLES";
