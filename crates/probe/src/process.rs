//! One process, held by descriptors so that a reused PID cannot be mistaken for it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};

use lowtide_model::bytes::{Mapped, Proportional, Resident, Swapped};
use lowtide_model::sample::{Reading, SlowReading};

use crate::proc::directory::ProcessDirectory;
use crate::proc::rollup::Rollup;
use crate::proc::stat::Stat;
use crate::proc::status::Status;
use crate::proc::{is_gone, reread};

/// A process that is read repeatedly.
#[derive(Debug)]
pub struct ProcReader {
    /// PID.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    directory: ProcessDirectory,
    stat: File,
    /// The directory of its descriptors, if it may be opened.
    descriptors: Option<OwnedFd>,
    /// The value of `status` when `stat` last changed.
    status: Option<(StatKey, Status)>,
    /// The last count of its descriptors: time, cost and result.
    counted: Option<(Instant, Duration, u64)>,
}

/// Maximum share of the time for counting descriptors, as a divisor.
const COUNT_SHARE: u32 = 200;

/// Maximum number of bytes that are read of a command line: a process can declare all of its memory
/// as one (`PR_SET_MM_MAP`).
const LONGEST_COMMAND: u64 = 128 << 10;

/// The fields of `stat` that must be unchanged for the parts of RSS to be unchanged as well.
type StatKey = (u64, u64, u64, u64, (u64, u64));

fn key(stat: &Stat) -> StatKey {
    (stat.rss_pages, stat.vsz_bytes, stat.minor_faults, stat.major_faults, stat.image)
}

/// The kernel's units of measure.
#[derive(Debug, Clone, Copy)]
pub struct Units {
    /// Number of clock ticks per second.
    pub ticks_per_s: f64,
    /// Size of a page, in bytes.
    pub page_bytes: u64,
}

impl Units {
    /// Returns the units of this machine.
    pub fn of_this_machine() -> Self {
        Self {
            ticks_per_s: rustix::param::clock_ticks_per_second() as f64,
            page_bytes: rustix::param::page_size() as u64,
        }
    }
}

impl ProcReader {
    /// Opens a process; `None` if it has ended.
    ///
    /// # Errors
    /// Fails if `/proc` cannot be read for another reason.
    pub fn open(pid: u32) -> io::Result<Option<(Self, Stat)>> {
        let open = || -> io::Result<(Self, Stat)> {
            let directory = ProcessDirectory::open(pid)?;
            let stat = directory.file("stat")?;
            let first = Stat::parse(&reread(&stat, &mut Vec::new())?)?;
            let start_ticks = first.start_ticks;
            let descriptors = open_directory(&directory, "fd").ok();
            Ok((
                Self {
                    pid,
                    start_ticks,
                    directory,
                    stat,
                    descriptors,
                    status: None,
                    counted: None,
                },
                first,
            ))
        };
        match open() {
            Ok((_, stat)) if stat.has_ended() => Ok(None),
            Ok(found) => Ok(Some(found)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the metrics of every tick; `None` if the process has ended.
    ///
    /// # Errors
    /// Fails if `/proc` cannot be read for another reason.
    pub fn read(
        &mut self,
        units: Units,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Option<(Reading, Stat)>> {
        match self.try_read(units, buffer) {
            Ok((_, stat)) if stat.has_ended() => Ok(None),
            Ok(read) => Ok(Some(read)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn try_read(&mut self, units: Units, buffer: &mut Vec<u8>) -> io::Result<(Reading, Stat)> {
        let stat = Stat::parse(&reread(&self.stat, buffer)?)?;
        let status = match &self.status {
            Some((same, status)) if *same == key(&stat) => *status,
            _ => {
                let status = self.status(buffer)?;
                self.status = Some((key(&stat), status));
                status
            }
        };
        let reading = Reading {
            rss_bytes: Resident(status.rss_bytes()),
            anon_bytes: Resident(status.anon_bytes),
            file_bytes: Resident(status.file_bytes),
            shared_bytes: Resident(status.shared_bytes),
            vsz_bytes: Mapped(stat.vsz_bytes),
            swap_bytes: Swapped(status.swap_bytes),
            minor_faults: stat.minor_faults,
            major_faults: stat.major_faults,
            cpu_s: stat.cpu_ticks as f64 / units.ticks_per_s,
            threads: stat.threads,
            open_files: self.open_files(),
        };
        Ok((reading, stat))
    }

    /// Reads `status`: the parts of RSS, swap, and the owner.
    ///
    /// # Errors
    /// Fails if it cannot be read, also if the process has ended.
    pub fn status(&self, buffer: &mut Vec<u8>) -> io::Result<Status> {
        Ok(Status::parse(&reread(&self.directory.file("status")?, buffer)?)?)
    }

    /// Returns whether it has ended, as far as that is visible.
    pub(crate) fn has_ended(&self, buffer: &mut Vec<u8>) -> bool {
        let stat = reread(&self.stat, buffer).ok().and_then(|text| Stat::parse(&text).ok());
        stat.is_none_or(|stat| stat.has_ended())
    }

    /// Returns the number of open descriptors; `None` if that may not be read.
    ///
    /// From 6.2 on, Linux reports it as the size of the directory. Before, the entries are counted;
    /// the longer that takes, the less often it is done.
    fn open_files(&mut self) -> Option<u64> {
        let held = self.descriptors.as_ref()?;
        let stat = statx(held, "", AtFlags::EMPTY_PATH, StatxFlags::SIZE).ok()?;
        if stat.stx_size > 0 {
            return Some(stat.stx_size);
        }
        if let Some((end, cost, count)) = self.counted
            && end.elapsed() < cost * COUNT_SHARE
        {
            return Some(count);
        }
        let begin = Instant::now();
        let count = self.descriptors().ok()?.len() as u64;
        self.counted = Some((Instant::now(), begin.elapsed(), count));
        Some(count)
    }

    /// Returns the numbers of the open descriptors.
    pub(crate) fn descriptors(&self) -> io::Result<Vec<u32>> {
        let entries = rustix::fs::Dir::read_from(open_directory(&self.directory, "fd")?)?;
        let numbers =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok());
        Ok(numbers.collect())
    }

    /// Returns the inode of a descriptor's socket; `None` if it is something else, or was closed.
    pub(crate) fn socket_inode(&self, descriptor: u32) -> Option<u32> {
        let path = format!("fd/{descriptor}");
        let mut buffer = [0_u8; 64];
        let length =
            rustix::fs::readlinkat_raw(&self.directory, path, buffer.as_mut_slice()).ok()?;
        let text = std::str::from_utf8(buffer.get(..length)?).ok()?;
        text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    }

    /// Returns its network namespace, as an inode.
    pub(crate) fn network_namespace(&self) -> Option<u64> {
        let stat = statx(&self.directory, "ns/net", AtFlags::empty(), StatxFlags::INO).ok()?;
        Some(stat.stx_ino)
    }

    /// Reads the slow metrics; `None` if they may not be read, or if the process has ended.
    pub(crate) fn read_slow(&self) -> Option<SlowReading> {
        let rollup = Rollup::parse(&self.directory.text("smaps_rollup").ok()?).ok()?;
        Some(SlowReading {
            pss_bytes: Proportional(rollup.pss_bytes),
            lazyfree_bytes: Resident(rollup.lazyfree_bytes),
            anon_huge_bytes: Resident(rollup.anon_huge_bytes),
        })
    }

    /// Reads the text of one of its files under `/proc`.
    pub(crate) fn read_text(&self, name: &str) -> io::Result<String> {
        self.directory.text(name)
    }

    /// Returns its command line; empty if it has ended or has none.
    pub fn command(&self) -> Vec<String> {
        let mut bytes = Vec::new();
        if let Ok(file) = self.directory.file("cmdline") {
            let _ = file.take(LONGEST_COMMAND).read_to_end(&mut bytes);
        }
        // A process that has written its title there (setproctitle) has left zeros after it.
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let text = &bytes[..end];
        if text.is_empty() {
            return Vec::new();
        }
        text.split(|b| *b == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    /// Returns its command line, or its short name in brackets if it has none.
    pub fn command_or(&self, name: &str) -> Vec<String> {
        match self.command() {
            command if command.is_empty() => vec![format!("[{name}]")],
            command => command,
        }
    }
}

fn open_directory(directory: &ProcessDirectory, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_matches_that_of_the_procfs_crate() {
        // The child sleeps, so that nothing changes between two readings.
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let other = procfs::process::Process::new(child.id() as i32).unwrap();
        while other.stat().unwrap().comm != "sleep" || other.stat().unwrap().state != 'S' {
            std::thread::yield_now();
        }
        let (mut process, _) = ProcReader::open(child.id()).unwrap().unwrap();
        let units = Units::of_this_machine();
        let (reading, stat) = process.read(units, &mut Vec::new()).unwrap().unwrap();
        let other_pss =
            || other.smaps_rollup().unwrap().memory_map_rollup.0[0].extension.map["Pss"];
        // Other processes may map or unmap the same files meanwhile. A reading counts if the other
        // reader returns the same before and after it.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let (slow, pss) = loop {
            let before = other_pss();
            let slow = process.read_slow().unwrap();
            if before == other_pss() {
                break (slow, before);
            }
            assert!(std::time::Instant::now() < deadline, "its PSS never stays as it is");
        };
        let status = other.status().unwrap();
        let expected = other.stat().unwrap();
        let open = other.fd_count().unwrap() as u64;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(reading.rss_bytes.0, status.vmrss.unwrap() * 1024);
        assert_eq!(reading.anon_bytes.0, status.rssanon.unwrap() * 1024);
        assert_eq!(reading.vsz_bytes.0, status.vmsize.unwrap() * 1024);
        assert_eq!(process.start_ticks, expected.starttime);
        assert_eq!(stat.parent as i32, expected.ppid);
        assert_eq!(reading.open_files, Some(open));
        assert_eq!(slow.pss_bytes.0, pss, "{slow:?}");
    }

    #[test]
    fn reading_a_process_that_has_ended_is_not_an_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let found = ProcReader::open(child.id()).unwrap();
        child.wait().unwrap();
        if let Some((mut process, _)) = found {
            let gone = process.read(Units::of_this_machine(), &mut Vec::new()).unwrap();
            assert!(gone.is_none());
        }
        assert!(ProcReader::open(child.id()).unwrap().is_none());
    }

    #[test]
    fn sockets_are_identified_among_the_file_descriptors() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (process, _) = ProcReader::open(std::process::id()).unwrap().unwrap();
        use std::os::fd::AsRawFd;
        let number = socket.as_raw_fd() as u32;
        assert!(process.descriptors().unwrap().contains(&number));
        assert!(process.socket_inode(number).is_some());
        assert_eq!(process.socket_inode(u32::MAX), None);
    }
}
