//! Writes the metrics to a file, for node_exporter's textfile collector.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_record::files::check_unshared;

use crate::file_process::FileProcess;
use crate::metrics::Exporter;

/// Time between two writes.
const INTERVAL: Duration = Duration::from_secs(15);
/// Time between two checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Checks that no other user can replace the file.
///
/// # Errors
/// Fails if other users may change its directory, or if the directory cannot be examined.
pub fn check(path: &Path) -> io::Result<()> {
    check_unshared(path)
}

/// Writes the metrics every 15 s until a signal arrives. The file is replaced as a whole. A write
/// that fails is passed to `report`.
pub fn run(
    exporter: &Exporter,
    file: &mut FileProcess,
    interrupt: &AtomicBool,
    report: impl Fn(&io::Error),
) {
    let mut next = Instant::now();
    while !interrupt.load(Ordering::Relaxed) {
        if Instant::now() >= next && exporter.scan_age_s().is_some() {
            next = Instant::now() + INTERVAL;
            if let Err(error) = file.send(exporter.text().as_bytes()) {
                report(&error);
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
}
