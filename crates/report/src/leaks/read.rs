//! Reads the record of `lowtide leaks`: JSON Lines of reports, one for each snapshot, and the
//! result as the last.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use lowtide_model::leaks::LeakReport;

/// Maximum size of a record, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Reads a record; `None` if the file is not the record of a search for leaks. An incomplete last
/// line is ignored.
pub fn read(path: &Path) -> Option<Vec<LeakReport>> {
    let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|m| m.is_file()))?;
    let mut reports: Vec<LeakReport> = Vec::new();
    for line in BufReader::new(file.take(MAX_BYTES)).lines() {
        match line.ok().and_then(|line| serde_json::from_str::<LeakReport>(&line).ok()) {
            Some(report) if report.schema == LeakReport::SCHEMA => reports.push(report),
            _ => break,
        }
    }
    (!reports.is_empty()).then_some(reports)
}
