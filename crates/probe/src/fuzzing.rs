//! The parsers of what the kernel and files say about a process, on any bytes.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use crate::core_file::CoreFile;
use crate::inspect::inspect_core;
use crate::mapped::MappedFile;
use crate::proc::cgroup::Groups;
use crate::proc::maps::{self, Mapping};
use crate::proc::rollup::Rollup;
use crate::proc::stat::Stat;
use crate::proc::status::Status;
use crate::program::{ObjectFacts, symbol};

/// Parses mappings, at once and line by line.
pub fn maps(bytes: &[u8]) {
    let read: Option<Vec<Mapping>> = maps::read(bytes).collect::<io::Result<_>>().ok();
    if let Ok(text) = std::str::from_utf8(bytes) {
        let parsed = maps::parse(text).ok();
        assert_eq!(parsed, read);
    }
    // No mapping is longer than the addresses.
    read.iter().flatten().for_each(|mapping| assert!(mapping.size() <= mapping.end));
}

/// Parses the small files of `/proc/PID`.
pub fn status(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = Status::parse(&text).map(|status| status.rss_bytes());
    let _ = Stat::parse(&text).map(|stat| (stat.is_kernel_thread(), stat.has_ended()));
    let _ = Rollup::parse(&text);
    let _ = Groups::parse(&text);
}

/// Reads a program or library.
///
/// # Panics
/// Panics if no file in memory can be created.
#[expect(clippy::expect_used, reason = "it is a part of tests")]
pub fn elf(bytes: &[u8]) {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("elf", flags).expect("a file"));
    file.write_all(bytes).expect("memory");
    let file = MappedFile::from(file);
    let _ = ObjectFacts::read(&file);
    let _ = symbol(&file, "malloc");
}

/// Reads the core of a process, and walks its heaps.
///
/// # Panics
/// Panics if no file in memory can be created.
#[expect(clippy::expect_used, reason = "it is a part of tests")]
pub fn core(bytes: &[u8]) {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("core", flags).expect("a file"));
    file.write_all(bytes).expect("memory");
    let Ok(core) = CoreFile::from_file(file) else { return };
    let is_sorted = core.maps().windows(2).all(|two| two[0].end <= two[1].start);
    assert!(is_sorted && core.content_bytes() <= bytes.len() as u64);
    let walk = inspect_core(&Arc::new(core), None);
    assert!(walk.observation.rss_bytes <= bytes.len() as u64);
}

#[cfg(test)]
mod tests {
    use lowtide_model::fuzzing::run_seeds;

    #[test]
    fn damaged_mappings_are_parsed_or_rejected() {
        run_seeds("maps", 300, super::maps);
    }

    #[test]
    fn damaged_files_of_proc_are_parsed_or_rejected() {
        run_seeds("status", 300, super::status);
    }

    #[test]
    fn damaged_cores_are_read_or_rejected() {
        run_seeds("core", 300, super::core);
    }

    #[test]
    fn damaged_programs_are_read_or_rejected() {
        run_seeds("elf", 100, super::elf);
    }
}
