//! What is written of a run, and read again by `report`: JSON Lines, appended as it happens.
//!
//! Recording and reporting share this format and nothing else. A record is a directory:
//!
//! ```text
//! study.jsonl                    header, plan, one line as each trial begins and ends
//! trials/001-glibc.jsonl         header, trial, then processes, samples, marks, loads, end
//! trials/001-glibc.log           what the subject printed
//! ```
//!
//! A load writes a file of its own (`lowtide load -o`): header, what it was going to do, then samples,
//! marks (`load_begin`, `drained`, `closed`, `load_end`) and a line for each round. It writes the same
//! to the file that [`LOAD_SAMPLES`] names, which is how a study gets them.
//!
//! Every file begins with a [`v1::Header`], so that each can be read alone. A file whose last line is
//! torn (the writer was killed, the disk was full) is read up to there. A line of a kind that is
//! not known is passed over, so that kinds can be added without a new version; a version that is
//! not known is refused.

mod read;
pub mod v1;

pub use read::{
    LoadRecord, ReadError, Records, StudyRecord, TrialRecord, read_line, read_lines, read_load,
    read_study, read_trial,
};

/// The variable that names the file to which a load writes header, samples and marks while it runs, when
/// a study has started it. The file does not exist yet. Lines are handed to the kernel one by one, so
/// that they can be read as they come: the study takes them over into the record of its trial, acts on
/// the marks, and then removes the file.
pub const LOAD_SAMPLES: &str = "LOWTIDE_LOAD_SAMPLES";
