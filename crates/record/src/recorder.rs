//! Writes a record as events happen. Each line is passed to the kernel at once, so that a killed
//! run loses at most the line that was being written.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::read_line;
use crate::v1::{FileKind, Header, Line, Machine, SCHEMA};

use crate::clock::clock;
use crate::files;

/// One file of a record, shared by its writers.
#[derive(Debug, Clone)]
pub struct Recorder {
    shared: Arc<Writer>,
    header: Arc<Header>,
    begun: Instant,
}

#[derive(Debug)]
struct Writer {
    path: PathBuf,
    file: Mutex<File>,
    failure: Mutex<Option<String>>,
}

impl Recorder {
    /// Creates a file and writes its header. Times count from here.
    ///
    /// # Errors
    /// Fails if it cannot be created.
    pub fn create(path: &Path, holds: FileKind, machine: &Machine) -> io::Result<Self> {
        let file = files::create_new(path)?;
        hold(&file)?;
        let header = Header {
            schema: SCHEMA.to_owned(),
            holds,
            lowtide_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_s: unix_now(),
            machine: machine.clone(),
            source: None,
            clock: clock(),
        };
        let recorder = Self {
            shared: Arc::new(Writer {
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

    /// Resumes a file that was started before. Drops a torn last line: neither it nor the lines
    /// after it could be read. Times continue to count from the original start.
    ///
    /// # Errors
    /// Fails if it cannot be read or written, if its first line is not a lowtide header, or if
    /// another process is writing to it ([`io::ErrorKind::WouldBlock`]).
    pub fn resume(path: &Path) -> io::Result<Self> {
        let mut file = files::open_existing(path)?;
        hold(&file)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64)?;
        }
        let first = text[..whole].split(|byte| *byte == b'\n').next().and_then(read_line);
        let Some(Line::Header(header)) = first else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it does not begin with a header",
            ));
        };
        let now = Header { clock: clock(), started_unix_s: unix_now(), ..*header.clone() };
        let passed = Duration::try_from_secs_f64(now.seconds_behind(&header)).unwrap_or_default();
        let begun = Instant::now();
        let shared =
            Writer { path: path.to_owned(), file: Mutex::new(file), failure: Mutex::new(None) };
        Ok(Self {
            shared: Arc::new(shared),
            header: Arc::new(*header),
            begun: begun.checked_sub(passed).unwrap_or(begun),
        })
    }

    /// Appends a line. If that fails, the failure is kept and nothing more is written: a line after
    /// a torn one could not be read.
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

    /// Returns the reason why the record could not be written, if there is one.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }

    /// Records a failure to write something else that belongs to the record.
    pub fn fail(&self, because: String) {
        lock(&self.shared.failure).get_or_insert(because);
    }

    /// Returns the time from the start of the record to a moment, in seconds.
    pub fn time_of(&self, moment: Instant) -> f64 {
        rounded(moment.saturating_duration_since(self.begun).as_secs_f64())
    }

    /// Returns the time since the start of the record, in seconds.
    pub fn now(&self) -> f64 {
        self.time_of(Instant::now())
    }

    /// Returns the first line of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the moment at which the record started.
    pub fn begun(&self) -> Instant {
        self.begun
    }
}

/// Locks a file against other writers until it is closed or lowtide ends.
fn hold(file: &File) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(io::ErrorKind::WouldBlock.into()),
        // Some file systems have no locks.
        Err(_) | Ok(()) => Ok(()),
    }
}

fn unix_now() -> f64 {
    rounded(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64())
}

/// Rounds to microseconds: they are precise enough and keep the lines short.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

/// Locks a mutex. Poisoning is ignored: a thread that panicked leaves nothing incomplete that would
/// be read.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_lines;
    use crate::v1::LoadSample;

    #[test]
    fn two_records_from_one_machine_are_aligned_by_the_monotonic_clock() {
        let home = tempfile::tempdir().unwrap();
        let begin = |name: &str| {
            Recorder::create(&home.path().join(name), FileKind::Load, &Machine::default()).unwrap()
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
        // The wall clock is set in between.
        second.started_unix_s += 3600.0;
        // The hour must not be included.
        assert!((again + second.seconds_behind(&first) - at).abs() < 1.0, "{at} {again}");
        second.clock = None;
        assert!(second.seconds_behind(&first) > 3590.0);
    }

    #[test]
    fn a_file_is_resumed_after_its_last_complete_line_and_by_one_writer() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("record");
        let sample = |t_s| Line::LoadSample(LoadSample { t_s, ..LoadSample::default() });
        let first = Recorder::create(&path, FileKind::Load, &Machine::default()).unwrap();
        first.write(&sample(1.0));
        let busy = Recorder::resume(&path).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::WouldBlock);
        let ended = first.now();
        drop(first);
        File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"kind\":\"mark\",")
            .unwrap();
        let second = Recorder::resume(&path).unwrap();
        // Its clock continues and does not restart.
        assert!(second.now() >= ended, "{} {ended}", second.now());
        second.write(&sample(2.0));
        let read = read_lines(std::io::BufReader::new(File::open(&path).unwrap())).unwrap();
        assert_eq!(read.lines, [sample(1.0), sample(2.0)]);
        assert_eq!(read.header, *second.header());
        std::fs::write(home.path().join("foreign"), "hello\n").unwrap();
        let foreign = Recorder::resume(&home.path().join("foreign")).unwrap_err();
        assert_eq!(foreign.kind(), io::ErrorKind::InvalidData);
    }
}
