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
//! Every file begins with a [`v1::Header`], so that each can be read alone. A file whose last line is
//! torn (the writer was killed, the disk was full) is read up to there. A line of a kind that is
//! not known is passed over, so that kinds can be added without a new version; a version that is
//! not known is refused.

mod read;
pub mod v1;

pub use read::{ReadError, Records, StudyRecord, TrialRecord, read_lines, read_study, read_trial};
