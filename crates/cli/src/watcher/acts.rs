//! Follows the log of `lowtide run` or `lowtide attach`, for the acts on one process.
//!
//! The log is read from its start, and then as it grows. When its path leads to another file, as
//! after a rotation, that file is read next. Lines that are not acts on the process are skipped.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lowtide_model::act::{Act, SCHEMA};
use lowtide_probe::process::Units;
use lowtide_probe::target::Target;
use lowtide_record::files;
use rustix::time::{ClockId, clock_gettime};

/// Maximum length of a line, in bytes. An act has less than a tenth of it; a longer line is
/// skipped.
const MAX_LINE: usize = 64 << 10;
/// Maximum number of bytes per poll: an old log must not delay the samples.
const MAX_READ: u64 = 4 << 20;

/// An act on the process.
#[derive(Debug, PartialEq)]
pub(crate) struct LoggedAct {
    /// Time since its end by the wall clock, in seconds.
    pub(crate) age_s: f64,
    pub(crate) act: Act,
}

/// A log that is followed.
#[derive(Debug)]
pub(crate) struct ActFollower {
    path: PathBuf,
    file: File,
    /// The offset of the first unread line.
    offset: u64,
    /// Whether the offset is inside a line that is too long.
    is_in_long_line: bool,
    pid: u32,
    /// Start of the process, in seconds since the machine booted.
    started_s: f64,
}

impl ActFollower {
    /// Opens the log, to follow the acts on a process.
    ///
    /// # Errors
    /// Fails if the log cannot be opened, or is not a regular file.
    pub(crate) fn open(path: &Path, target: &Target) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: files::open_read(path)?,
            offset: 0,
            is_in_long_line: false,
            pid: target.pid,
            started_s: target.start_ticks as f64 / Units::of_this_machine().ticks_per_s,
        })
    }

    /// Returns the acts that were logged since the last call, in the order of the log. If there are
    /// many, the next calls return the rest.
    pub(crate) fn poll(&mut self) -> Vec<LoggedAct> {
        let mut acts = Vec::new();
        if self.read(&mut acts) {
            return acts;
        }
        if let Some(next) = self.next_file() {
            // Between the last read and the rotation, the old file may have grown.
            self.read(&mut acts);
            (self.file, self.offset, self.is_in_long_line) = (next, 0, false);
            self.read(&mut acts);
        }
        acts
    }

    /// Returns the file to which the path leads, if it is not the open one.
    fn next_file(&self) -> Option<File> {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let open = identity(self.file.metadata().ok()?);
        if identity(fs::symlink_metadata(&self.path).ok()?) == open {
            return None;
        }
        let next = files::open_read(&self.path).ok()?;
        (identity(next.metadata().ok()?) != open).then_some(next)
    }

    /// Reads the complete lines. Returns whether there were any. An incomplete line is read again
    /// later: its writer removes a partial line if the rest could not be written.
    fn read(&mut self, acts: &mut Vec<LoggedAct>) -> bool {
        let before = self.offset;
        let Ok(bytes) = self.new_bytes() else { return false };
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if line.last() == Some(&b'\n') {
                let is_whole = !std::mem::take(&mut self.is_in_long_line);
                acts.extend(
                    (is_whole && line.len() <= MAX_LINE).then(|| self.parse(line)).flatten(),
                );
            } else if line.len() > MAX_LINE || self.is_in_long_line {
                self.is_in_long_line = true;
            } else {
                break;
            }
            self.offset += line.len() as u64;
        }
        self.offset != before
    }

    fn new_bytes(&mut self) -> io::Result<Vec<u8>> {
        let length = self.file.metadata()?.len();
        if length < self.offset {
            // The log was truncated, for example by a rotation that copies it.
            (self.offset, self.is_in_long_line) = (0, false);
        }
        let count = length.saturating_sub(self.offset).min(MAX_READ);
        let mut bytes = vec![0; usize::try_from(count).unwrap_or_default()];
        let count = self.file.read_at(&mut bytes, self.offset)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Returns the act of a line, if it concerns the process. An act before the start of the
    /// process concerns an earlier process with its PID, as in a container that was restarted.
    fn parse(&self, line: &[u8]) -> Option<LoggedAct> {
        let act: Act = serde_json::from_slice(line).ok()?;
        if act.schema != SCHEMA || act.pid != self.pid {
            return None;
        }
        let time = humantime::parse_rfc3339(&act.time).ok()?;
        // An act in the future means that the clock was set back since then.
        let age_s = SystemTime::now().duration_since(time).unwrap_or_default().as_secs_f64();
        let now = clock_gettime(ClockId::Boottime);
        let process_age_s = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9 - self.started_s;
        (age_s <= process_age_s).then_some(LoggedAct { age_s, act })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use lowtide_model::act::ActEvent;
    use tempfile::TempDir;

    use super::*;
    use crate::tui::tests::act;

    const NONE: [u64; 0] = [];

    /// A log, and a follower of the acts on this process.
    struct Log {
        home: TempDir,
        path: PathBuf,
    }

    impl Log {
        fn new() -> (Self, ActFollower) {
            let home = tempfile::tempdir().unwrap();
            let path = home.path().join("acts.jsonl");
            fs::write(&path, "").unwrap();
            let target = Target::open(std::process::id()).unwrap();
            let follower = ActFollower::open(&path, &target).unwrap();
            (Self { home, path }, follower)
        }

        fn append(&self, bytes: impl AsRef<[u8]>) {
            let mut file = File::options().create(true).append(true).open(&self.path).unwrap();
            file.write_all(bytes.as_ref()).unwrap();
        }
    }

    fn line(id: u64) -> String {
        line_of(id, std::process::id(), SystemTime::now())
    }

    fn line_of(id: u64, pid: u32, time: SystemTime) -> String {
        let time = humantime::format_rfc3339_millis(time).to_string();
        let act = Act { id, pid, time, ..act(ActEvent::Act, "the load has fallen") };
        serde_json::to_string(&act).unwrap() + "\n"
    }

    fn ids(follower: &mut ActFollower) -> Vec<u64> {
        follower.poll().iter().map(|logged| logged.act.id).collect()
    }

    #[test]
    fn existing_and_appended_acts_are_returned() {
        let (log, mut follower) = Log::new();
        assert_eq!(ids(&mut follower), NONE);
        log.append(line(1) + &line(2));
        assert_eq!(ids(&mut follower), [1, 2]);
        assert_eq!(ids(&mut follower), NONE);
        log.append(line(3));
        let acts = follower.poll();
        assert_eq!((acts.len(), acts[0].act.id), (1, 3));
        assert!(acts[0].age_s >= 0.0);
    }

    #[test]
    fn acts_on_other_or_earlier_processes_are_skipped() {
        let (log, mut follower) = Log::new();
        let now = SystemTime::now();
        let own = std::process::id();
        log.append(line_of(1, own + 1, now));
        log.append(line_of(2, own, now - Duration::from_secs(40 * 365 * 86_400)));
        log.append(line_of(3, own, now + Duration::from_secs(5)));
        let acts = follower.poll();
        // The clock may have been set back since the act.
        assert_eq!((acts.len(), acts[0].act.id, acts[0].age_s), (1, 3, 0.0));
    }

    #[test]
    fn an_incomplete_line_is_returned_once_it_is_complete_and_skipped_if_removed() {
        let (log, mut follower) = Log::new();
        let (first, second) = (line(1), line(2));
        log.append(&first[..50]);
        assert_eq!(ids(&mut follower), NONE);
        log.append(&first[50..]);
        assert_eq!(ids(&mut follower), [1]);
        log.append(&second[..50]);
        assert_eq!(ids(&mut follower), NONE);
        // The disk was full: the writer removes the partial line.
        let file = File::options().write(true).open(&log.path).unwrap();
        file.set_len(first.len() as u64).unwrap();
        log.append(line(3));
        assert_eq!(ids(&mut follower), [3]);
    }

    #[test]
    fn after_a_rotation_the_old_log_is_finished_before_the_new_one_is_read() {
        let (log, mut follower) = Log::new();
        log.append(line(1));
        assert_eq!(ids(&mut follower), [1]);
        log.append(line(2) + "{\"torn");
        fs::rename(&log.path, log.home.path().join("acts.jsonl.1")).unwrap();
        assert_eq!(ids(&mut follower), [2]);
        assert_eq!(ids(&mut follower), NONE, "there is no new log yet");
        log.append(line(3));
        assert_eq!(ids(&mut follower), [3]);
        log.append(line(4));
        assert_eq!(ids(&mut follower), [4]);
    }

    #[test]
    fn a_truncated_log_is_read_from_its_start() {
        let (log, mut follower) = Log::new();
        log.append(line(1) + &line(2));
        assert_eq!(ids(&mut follower), [1, 2]);
        fs::write(&log.path, line(3)).unwrap();
        assert_eq!(ids(&mut follower), [3]);
    }

    #[test]
    fn lines_that_are_not_acts_are_skipped() {
        let (log, mut follower) = Log::new();
        log.append(b"\n\0\xff\xfe\n{}\n[1]\nnull\n{\"schema\":\"lowtide.act/1\"}\n");
        log.append("[".repeat(10_000) + "\n");
        log.append(line(1).replace("lowtide.act/1", "lowtide.act/2"));
        log.append(line(2).replace("20", "twenty"));
        log.append(line(3));
        assert_eq!(ids(&mut follower), [3]);
    }

    #[test]
    fn an_overlong_line_is_skipped_across_polls() {
        let (log, mut follower) = Log::new();
        log.append(line(1));
        for _ in 0..5 {
            log.append(vec![b'x'; MAX_LINE / 2]);
            follower.poll();
        }
        log.append(line(2));
        let huge = vec![b'x'; MAX_READ as usize * 2 + 77];
        log.append([huge.as_slice(), b"\n", line(3).as_bytes()].concat());
        let mut found = Vec::new();
        while !found.contains(&3) {
            found.extend(ids(&mut follower));
        }
        // The second act ends the first huge line, and is not recognized.
        assert_eq!(found, [3]);
        assert_eq!(follower.offset, fs::metadata(&log.path).unwrap().len());
    }

    #[test]
    fn more_lines_than_one_poll_reads_are_all_returned() {
        let (log, mut follower) = Log::new();
        let count = 2 * MAX_READ / line(1).len() as u64;
        log.append((0..count).map(line).collect::<String>());
        let mut found = Vec::new();
        while found.len() < count as usize {
            let more = ids(&mut follower);
            assert!(!more.is_empty(), "{}", found.len());
            found.extend(more);
        }
        assert_eq!(found, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn only_a_regular_file_is_opened_and_no_link_is_followed() {
        let (log, mut follower) = Log::new();
        let target = Target::open(std::process::id()).unwrap();
        let link = log.home.path().join("link");
        symlink(&log.path, &link).unwrap();
        for path in [link.as_path(), log.home.path(), Path::new("/dev/null")] {
            assert!(ActFollower::open(path, &target).is_err(), "{path:?}");
        }
        // A link that is created later is not followed either.
        fs::rename(&log.path, log.home.path().join("real")).unwrap();
        symlink("real", &log.path).unwrap();
        assert_eq!(ids(&mut follower), NONE);
        fs::write(log.home.path().join("real"), line(1)).unwrap();
        assert_eq!(ids(&mut follower), [1], "the file that was opened first is still followed");
    }
}
