//! Writes a record as it happens. A line is handed to the kernel at once, so that a killed run loses
//! at most the line that was being written.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lowtide_model::record::v1::{Header, Holds, Line, Machine, SCHEMA};

use crate::clock::clock;

/// One file of a record, shared by those who write to it.
#[derive(Debug, Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
    header: Arc<Header>,
    begun: Instant,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    file: Mutex<File>,
    failure: Mutex<Option<String>>,
}

impl Recorder {
    /// Begins a file with its header. Times count from here.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(path: &Path, holds: Holds, machine: &Machine) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(path)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = Header {
            schema: SCHEMA.to_owned(),
            holds,
            lowtide_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_s: rounded(now.as_secs_f64()),
            machine: machine.clone(),
            source: None,
            clock: clock(),
        };
        let recorder = Self {
            shared: Arc::new(Shared {
                path: path.to_owned(),
                file: Mutex::new(file),
                failure: Mutex::new(None),
            }),
            header: Arc::new(header.clone()),
            begun: Instant::now(),
        };
        recorder.write(&Line::Header(Box::new(header)));
        match recorder.failure() {
            None => Ok(recorder),
            Some(failure) => Err(io::Error::other(failure)),
        }
    }

    /// Appends a line. When that fails, the failure is kept, and nothing more is written: a line
    /// behind a torn one could not be read.
    pub fn write(&self, line: &Line) {
        let mut failure = lock(&self.shared.failure);
        if failure.is_some() {
            return;
        }
        let written = serde_json::to_vec(line).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            lock(&self.shared.file).write_all(&bytes)
        });
        if let Err(error) = written {
            *failure = Some(format!("{}: {error}", self.shared.path.display()));
        }
    }

    /// Why the record could not be written, if so.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }

    /// Notes that something else that belongs to the record could not be written.
    pub fn fail(&self, because: String) {
        lock(&self.shared.failure).get_or_insert(because);
    }

    /// Seconds from the beginning of the record to a moment.
    pub fn time_of(&self, moment: Instant) -> f64 {
        rounded(moment.saturating_duration_since(self.begun).as_secs_f64())
    }

    /// Seconds from the beginning of the record to now.
    pub fn now(&self) -> f64 {
        self.time_of(Instant::now())
    }

    /// The first line of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The moment at which the record began.
    pub fn begun(&self) -> Instant {
        self.begun
    }
}

/// Microseconds are enough, and keep the lines short.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

/// A thread that panicked while it held the lock leaves nothing half done that we would read.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_model::record::{read_lines, v1::LoadSample};

    #[test]
    fn two_records_of_one_machine_are_laid_over_each_other_by_their_clock() {
        let home = tempfile::tempdir().unwrap();
        let begin = |name: &str| {
            Recorder::create(&home.path().join(name), Holds::Load, &Machine::default()).unwrap()
        };
        let (first, second) = (begin("first"), begin("second"));
        let sample = |t_s| Line::LoadSample(LoadSample { t_s, ..LoadSample::default() });
        let now = Instant::now();
        first.write(&sample(first.time_of(now)));
        second.write(&sample(second.time_of(now)));
        let read = |name: &str| {
            let file = File::open(home.path().join(name)).unwrap();
            let records = read_lines(std::io::BufReader::new(file)).unwrap();
            let Line::LoadSample(sample) = records.lines[0] else { panic!("{records:?}") };
            (records.header, sample.t_s)
        };
        let ((first, at), (mut second, again)) = (read("first"), read("second"));
        // Somebody sets the time of day in between.
        second.started_unix_s += 3600.0;
        assert!((again + second.seconds_behind(&first) - at).abs() < 0.01, "{at} {again}");
        second.clock = None;
        assert!(second.seconds_behind(&first) > 3590.0);
    }
}
