//! The reader of records, on any bytes.

use crate::{read_line, read_lines, read_load, read_study, read_trial};

/// Reads a record as each of its kinds.
pub fn record(bytes: &[u8]) {
    bytes.split(|byte| *byte == b'\n').for_each(|line| drop(read_line(line)));
    let read = || read_lines(bytes).ok();
    let _ = read().map(read_study);
    let _ = read().map(read_trial);
    let _ = read().map(read_load);
}

#[cfg(test)]
mod tests {
    #[test]
    fn damaged_records_are_read_or_rejected() {
        lowtide_model::fuzzing::run_seeds("record", 300, super::record);
    }
}
