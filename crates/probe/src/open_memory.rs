//! Files that exist only in memory, which a process has open and does not map. RSS does not count
//! them, but they are charged to a cgroup, and stay in memory as long as they are open.

use std::collections::{HashMap, HashSet};

use lowtide_model::open_memory::OpenMemory;

use crate::cgroup::descriptors::Descriptors;
use crate::cgroup::tmpfs::{bytes_of, file_in_memory};
use crate::mounts::FileSystem;
use crate::proc::maps::{FileId, Mapping};

/// Maximum number of descriptors that are read.
const MAX_DESCRIPTORS: usize = 100_000;

/// Returns the open files of a process on tmpfs, and its memfds, without those that it maps. `None`
/// if there are too many descriptors to read all of them.
pub(crate) fn open_memory(pid: u32, maps: &[Mapping]) -> Option<OpenMemory> {
    let descriptors = Descriptors::read_most(&[pid], MAX_DESCRIPTORS);
    descriptors.is_complete.then(|| sum(unmapped(&descriptors, maps)))
}

/// Returns the link and the bytes of each file in memory that is not mapped.
fn unmapped<'d>(
    descriptors: &'d Descriptors,
    maps: &[Mapping],
) -> impl Iterator<Item = (&'d str, u64)> {
    let mut known: HashSet<FileId> = maps.iter().map(|mapping| mapping.file).collect();
    descriptors.files(FileSystem::SharedMemory).filter_map(move |descriptor| {
        let stat = file_in_memory(&descriptor.path(), |mount| descriptor.is_on(mount))?;
        let file = FileId::of_stat(&stat);
        known.insert(file).then(|| (descriptor.link.as_str(), bytes_of(&stat)))
    })
}

/// Adds up files: the link and the bytes of each.
fn sum<'l>(files: impl Iterator<Item = (&'l str, u64)>) -> OpenMemory {
    let mut all = OpenMemory::default();
    let mut by_name: HashMap<&str, u64> = HashMap::new();
    for (link, bytes) in files {
        all.files += 1;
        all.bytes += bytes;
        *by_name.entry(link.strip_suffix(" (deleted)").unwrap_or(link)).or_default() += bytes;
    }
    all.name = name_of(&by_name, all.bytes);
    all
}

/// Returns the name that has most of the bytes; without one, the beginning of all names.
fn name_of(by_name: &HashMap<&str, u64>, all_bytes: u64) -> Option<String> {
    let (largest, bytes) = by_name.iter().max_by_key(|(name, bytes)| (**bytes, **name))?;
    if bytes * 2 > all_bytes {
        return Some((*largest).to_owned());
    }
    let common = by_name.keys().fold(*largest, |begin, name| {
        let equal = begin.chars().zip(name.chars()).take_while(|(a, b)| a == b);
        &begin[..equal.map(|(char, _)| char.len_utf8()).sum()]
    });
    let is_telling = !matches!(common, "" | "/");
    is_telling.then(|| format!("{common}*"))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
    use rustix::io::write;

    use super::*;
    use crate::proc::maps;

    #[test]
    fn files_in_memory_count_unless_they_are_mapped() {
        const NAME: &str = "lowtide-open-memory";
        let pid = std::process::id();
        let own = |maps: &[Mapping]| {
            let descriptors = Descriptors::read_most(&[pid], MAX_DESCRIPTORS);
            let named = unmapped(&descriptors, maps).filter(|(link, _)| link.contains(NAME));
            named.map(|(_, bytes)| bytes).sum::<u64>()
        };
        let file = memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8 << 20).unwrap();
        write(&file, &vec![1; 1 << 20]).unwrap();
        let copy = file.try_clone().unwrap();
        assert_eq!(own(&[]), 1 << 20, "the copy of a descriptor is the same file");
        let found = open_memory(pid, &[]).unwrap();
        assert!(found.files >= 1 && found.bytes >= 1 << 20, "{found:?}");
        let mut maps = maps::parse("7f0000000000-7f0000001000 rw-s 00000000 00:00 0\n").unwrap();
        maps[0].file = FileId::of_stat(&fstat(&copy).unwrap());
        assert_eq!(own(&maps), 0);
    }

    #[test]
    #[ignore = "needs root, for a mount namespace (unshare of util-linux)"]
    fn an_open_file_on_a_tmpfs_that_the_process_does_not_see_counts() {
        let script = "exec 9<>/dev/shm/lowtide-$$; rm /dev/shm/lowtide-$$; exec unshare --mount sh -c \
                      'umount -l /dev/shm; head -c 1048576 /dev/zero >&9; exec sleep 1000'";
        let child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let child = lowtide_testing::Running::from(child);
        let found = lowtide_testing::until("its file", || {
            open_memory(child.id(), &[]).filter(|found| found.bytes >= 1 << 20)
        });
        assert_eq!((found.files, found.bytes), (1, 1 << 20));
        assert!(found.name.is_some_and(|name| name.starts_with("/dev/shm/lowtide-")));
    }

    #[test]
    fn files_of_one_name_are_added_up_and_the_largest_name_is_reported() {
        let files = [("/memfd:a (deleted)", 30), ("/dev/shm/b", 50), ("/memfd:a (deleted)", 40)];
        let found = sum(files.into_iter());
        let expected = OpenMemory { files: 3, bytes: 120, name: Some("/memfd:a".to_owned()) };
        assert_eq!(found, expected);
    }

    #[test]
    fn many_names_are_reported_by_what_they_have_in_common() {
        let named = |files: &[(&str, u64)]| sum(files.iter().copied()).name;
        let frames =
            [("/memfd:frame1 (deleted)", 8), ("/memfd:frame2", 8), ("/memfd:fra\u{20ac}", 8)];
        assert_eq!(named(&frames).as_deref(), Some("/memfd:fra*"));
        assert_eq!(named(&[("/dev/shm/a", 8), ("/run/b", 8)]), None);
        assert_eq!(named(&[]), None);
    }
}
