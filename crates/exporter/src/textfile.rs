//! Writes the metrics to a file, for node_exporter's textfile collector.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_record::files::{is_in_shared_directory, replace_for_all};

use crate::metrics::Exporter;

/// Time between two writes.
const INTERVAL: Duration = Duration::from_secs(15);
/// Time between two checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Checks that no other user can replace the file.
///
/// # Errors
/// Fails if other users may write to its directory, or if the directory cannot be read.
pub fn check(path: &Path) -> io::Result<()> {
    if is_in_shared_directory(path)? {
        return Err(io::Error::other("other users may replace files in its directory"));
    }
    Ok(())
}

/// Writes the metrics every 15 s until a signal arrives. The file is replaced as a whole. A write that fails is passed to `report`.
pub fn run(exporter: &Exporter, path: &Path, interrupt: &AtomicBool, report: impl Fn(&io::Error)) {
    let mut next = Instant::now();
    while !interrupt.load(Ordering::Relaxed) {
        if Instant::now() >= next && exporter.scan_age_s().is_some() {
            next = Instant::now() + INTERVAL;
            if let Err(error) = replace_for_all(path, exporter.text().as_bytes()) {
                report(&error);
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
}
