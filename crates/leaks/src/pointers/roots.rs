//! Memory outside of blocks from which a program reaches them.

use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use lowtide_heap::ranges::{joined, overlaps, union, without};
use lowtide_probe::core_file::CoreFile;
use lowtide_probe::detect::{self, Claim, Stack};
use lowtide_probe::inspect::BlockWalk;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task;
use lowtide_probe::target::Target;

use super::registers::RegisterWatch;
use super::waiting::ThreadWords;

/// Number of bytes below a stack pointer that are also searched: the thread may have called further
/// functions since.
const BELOW_POINTER: u64 = 16 << 10;
/// Maximum number of words that are read from `/proc` instead of memory, and maximum size of one
/// file that has such words.
const MAX_WORDS: usize = 1 << 20;
const MAX_TEXT: u64 = 1 << 20;
/// Maximum number of threads whose registers are read, and of files that are searched for an epoll
/// instance.
const MAX_THREADS: usize = 16 << 10;
const MAX_FILES: usize = 64 << 10;
/// Maximum size of shared memory that is searched.
const MAX_SHARED: u64 = 1 << 30;
/// Maximum size of inaccessible memory that is searched on kernels that do not scan page tables, in
/// bytes.
const MAX_RESERVATION: u64 = 16 << 30;
/// How the names of shared memory begin. It is searched whatever its protection: a program may
/// write to it through another mapping, or protect it after it has written to it.
const MEMORY: [&str; 8] = [
    "/dev/shm/",
    "/dev/zero",
    "/dev/hugepages",
    "/dev/ashmem",
    "/memfd:",
    "/secretmem",
    "/SYSV",
    "/anon_hugepage",
];
/// How the names of mappings of devices begin, and of memory that drivers share.
const DEVICES: [&str; 6] = ["/dev/", "/sys/", "/proc/", "/dmabuf", "/i915", "/drm mm object"];

/// The memory and words in which a program can have pointers to blocks.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// Memory outside of blocks, in order and disjoint.
    pub ranges: Vec<Range<u64>>,
    /// Memory that the program has obtained since the walk, in order and disjoint. It is not in
    /// `ranges`. It may contain new blocks, or any other memory with pointers.
    pub new: Vec<Range<u64>>,
    /// The stacks of threads, in order.
    pub stacks: Vec<Claim<Stack>>,
    /// The data of the C library, in order.
    pub c_library: Vec<Range<u64>>,
    /// The words of threads. The stacks that were copied are not in `ranges`.
    pub threads: ThreadWords,
    /// Words from other sources: the user data of epoll instances and timers.
    pub words: Vec<u64>,
    /// Reasons why other pointers cannot be seen.
    pub hidden: Vec<String>,
}

impl Roots {
    /// Finds the roots of a process after a walk of its heap. `unknown` are parts of the heap that
    /// could not be read. `registers` are those at context switches. The mappings are read again:
    /// the program may have obtained memory since the walk.
    pub(crate) fn find(
        target: &Target,
        memory: &ProcessMemory,
        walk: &BlockWalk,
        unknown: &[Range<u64>],
        registers: &mut RegisterWatch,
    ) -> Self {
        let mut roots = Self::default();
        roots.add_files(target);
        roots.add_timers(target);
        if target.status().is_ok_and(|status| status.swap_bytes > 0) {
            roots.hidden.push("part of its memory is swapped out".to_owned());
        }
        let read_maps = || target.maps().unwrap_or_else(|_| walk.maps.clone());
        let pointers = detect::stack_pointers(target.pid);
        roots.stacks = detect::stacks(memory, &walk.detected, &read_maps(), &pointers);
        roots.read_threads(target, memory, registers, &pointers);
        // Reading many threads takes long, and the program obtains memory meanwhile.
        roots.with_memory(&read_maps(), memory, walk, (&pointers, unknown))
    }

    /// Finds the roots in a core, which has all registers, and no open files or timers.
    pub(crate) fn of_core(
        core: &CoreFile,
        memory: &ProcessMemory,
        walk: &BlockWalk,
        unknown: &[Range<u64>],
    ) -> Self {
        let mut roots = Self::default();
        let (threads, pointers) = (core.threads(), core.stack_pointers());
        roots.stacks = detect::stacks(memory, &walk.detected, &walk.maps, &pointers);
        roots.threads.words =
            threads.iter().flat_map(|thread| &thread.registers).copied().collect();
        roots.hidden.push("a core has no open files and timers".to_owned());
        roots.with_memory(&walk.maps, memory, walk, (&pointers, unknown))
    }

    /// Adds the memory of some mappings that is outside of blocks. `pointers` are the stack
    /// pointers of the threads, in order.
    fn with_memory(
        mut self,
        maps: &[Mapping],
        memory: &ProcessMemory,
        walk: &BlockWalk,
        (pointers, unknown): (&[u64], &[Range<u64>]),
    ) -> Self {
        // Structures of the allocator point to headers of free chunks. A header overlaps the end of
        // the block before it, so these pointers would make lost blocks reachable.
        let mut heaps = heaps_with_blocks(walk);
        heaps.extend_from_slice(&walk.heaps.structures);
        heaps.extend_from_slice(&self.threads.copied);
        let elsewhere = union(heaps);
        self.c_library = of_c_library(maps, walk);
        let known = of_no_file(&walk.maps);
        for mapping in maps {
            let scope = SearchScope::of(mapping, memory.scans());
            if scope != SearchScope::Whole {
                self.hidden.extend(scope.reason());
                continue;
            }
            let used = used_part(mapping, pointers);
            let is_of_file = mapping.has_file() && !is_shared(mapping);
            for part in without(used, &elsewhere) {
                match is_of_file {
                    true => self.ranges.extend(written_pages(memory, part)),
                    // Nothing is allocated in memory that the program cannot access.
                    false if mapping.permissions.starts_with("---") => self.ranges.push(part),
                    false => {
                        let new = without(part.clone(), &known);
                        self.ranges.extend(without(part, &new));
                        self.new.extend(new);
                    }
                }
            }
        }
        self.ranges.extend_from_slice(unknown);
        self.ranges = union(self.ranges);
        self
    }

    /// Returns when a root at an address is followed, if several lead to a block: the variables of
    /// the program and its libraries first, then those of the C library, because the buffers of
    /// its streams are not cleared and hold old pointers, and stacks last, for the same reason.
    pub(crate) fn turn(&self, at: u64) -> usize {
        if self.is_in_stack(at) {
            return 2;
        }
        usize::from(overlaps(at..at + 1, &self.c_library).next().is_some())
    }

    /// Returns whether an address is in the stack of a thread.
    pub(crate) fn is_in_stack(&self, at: u64) -> bool {
        let place = self.stacks.partition_point(|stack| stack.range.end <= at);
        self.stacks.get(place).is_some_and(|stack| stack.range.contains(&at))
    }

    /// Reads the words of the threads: see [`ThreadWords`].
    fn read_threads(
        &mut self,
        target: &Target,
        memory: &ProcessMemory,
        registers: &mut RegisterWatch,
        pointers: &[u64],
    ) {
        let mut threads = task::threads(target.pid).unwrap_or_default();
        if threads.len() > MAX_THREADS {
            self.hidden.push("it has too many threads for their registers to be read".to_owned());
            threads.truncate(MAX_THREADS);
        }
        self.threads = ThreadWords::read(&threads, memory, registers, &self.stacks, pointers);
    }

    /// Reads at most [`MAX_TEXT`] bytes of a file of the kernel.
    fn text(&mut self, path: &Path) -> Option<String> {
        let mut text = String::new();
        let file = File::open(path).ok()?;
        file.take(MAX_TEXT).read_to_string(&mut text).ok()?;
        if text.len() as u64 == MAX_TEXT {
            self.hidden.push("it has too many events for all of them to be read".to_owned());
        }
        Some(text)
    }

    /// Adds the user data of timers.
    fn add_timers(&mut self, target: &Target) {
        let timers = self.text(Path::new(&target.path("timers"))).unwrap_or_default();
        self.words.extend(timer_words(&timers));
    }

    /// Adds the user data of epoll instances, and notes an `io_uring`, whose requests cannot be
    /// read.
    fn add_files(&mut self, target: &Target) {
        let Ok(entries) = fs::read_dir(target.path("fdinfo")) else {
            self.hidden.push("its open files could not be read".to_owned());
            return;
        };
        for (place, entry) in entries.filter_map(Result::ok).enumerate() {
            if place == MAX_FILES {
                self.hidden
                    .push("it has too many open files for all of them to be read".to_owned());
                break;
            }
            let name = entry.file_name();
            let link = target.path(&format!("fd/{}", name.to_string_lossy()));
            let link = fs::read_link(link).unwrap_or_default();
            let link = link.to_string_lossy();
            if link.contains("[io_uring]") {
                self.hidden.push("it uses io_uring, which keeps pointers in the kernel".to_owned());
            } else if link.contains("[eventpoll]")
                && let Some(text) = self.text(&entry.path())
            {
                self.words.extend(epoll_words(&text));
                self.words.sort_unstable();
                self.words.dedup();
            }
            if self.words.len() > MAX_WORDS {
                self.hidden.push("it has too many events for all of them to be read".to_owned());
                break;
            }
        }
        self.hidden.dedup();
    }
}

/// Returns the data words of an epoll instance (`ep_show_fdinfo` in fs/eventpoll.c).
fn epoll_words(fdinfo: &str) -> impl Iterator<Item = u64> {
    fdinfo.lines().filter(|line| line.starts_with("tfd:")).filter_map(|line| {
        let (_, rest) = line.split_once("data:")?;
        u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()
    })
}

/// Returns the values that timers deliver (`show_timer` in fs/proc/base.c).
fn timer_words(timers: &str) -> impl Iterator<Item = u64> {
    timers.lines().filter_map(|line| {
        let (_, value) = line.strip_prefix("signal: ")?.split_once('/')?;
        u64::from_str_radix(value.trim().trim_start_matches("0x"), 16).ok()
    })
}

/// Returns the heaps whose blocks are known: other walked heaps are roots.
fn heaps_with_blocks(walk: &BlockWalk) -> Vec<Range<u64>> {
    let others = walk.heaps.without_blocks.iter().map(|claim| claim.range.clone());
    let others: Vec<Range<u64>> = others.collect();
    walk.heaps.areas.iter().flat_map(|area| without(area.clone(), &others)).collect()
}

/// Returns the accessible memory outside of file mappings.
fn of_no_file(maps: &[Mapping]) -> Vec<Range<u64>> {
    let accessible = maps.iter().filter(|m| !m.has_file() && !m.permissions.starts_with("---"));
    joined(accessible.map(|mapping| mapping.start..mapping.end).collect())
}

/// What to search of a mapping.
#[derive(Debug, PartialEq, Eq)]
enum SearchScope {
    Whole,
    /// It contains no pointers of the program.
    Nothing,
    /// It may contain pointers, and cannot be searched, for this reason.
    Hidden(String),
}

impl SearchScope {
    /// Decides by the kind of a mapping. `scans` is whether the kernel passes over empty page
    /// tables fast.
    fn of(mapping: &Mapping, scans: bool) -> Self {
        let name = mapping.name.as_str();
        let is_any = |names: &[&str]| names.iter().any(|start| name.starts_with(start));
        if is_any(&["[vvar", "[vdso]", "[vsyscall]", "[uprobes]"]) {
            return Self::Nothing;
        }
        if ["io_uring", "[aio]"].iter().any(|part| name.contains(part)) {
            let reason = "it uses asynchronous I/O, which keeps pointers in the kernel";
            return Self::Hidden(reason.to_owned());
        }
        let is_memory = is_any(&MEMORY);
        let is_writable = mapping.permissions.starts_with("rw");
        if !is_memory && is_any(&DEVICES) {
            // To read from a device can change its state.
            return match is_writable {
                true => {
                    Self::Hidden(format!("{name} is memory of a device, which is not searched"))
                }
                false => Self::Nothing,
            };
        }
        match is_shared(mapping) {
            true if !is_memory && !is_writable => Self::Nothing,
            true if mapping.size() > MAX_SHARED => {
                Self::Hidden(format!("{name} is too large to be searched"))
            }
            false if !scans && is_reservation(mapping) => Self::Nothing,
            _ => Self::Whole,
        }
    }

    /// Returns why pointers are hidden.
    fn reason(self) -> Option<String> {
        match self {
            Self::Hidden(reason) => Some(reason),
            Self::Whole | Self::Nothing => None,
        }
    }
}

fn is_shared(mapping: &Mapping) -> bool {
    mapping.permissions.ends_with('s')
}

/// Returns the mappings of the C library.
fn of_c_library(maps: &[Mapping], walk: &BlockWalk) -> Vec<Range<u64>> {
    let path = walk.detected.c_library_path.as_deref();
    let is_its = |mapping: &&Mapping| path.is_some_and(|path| Path::new(&mapping.name) == path);
    maps.iter().filter(is_its).map(|mapping| mapping.start..mapping.end).collect()
}

/// Returns whether a mapping only reserves addresses, as far as it can be known: checking which
/// pages of a large one are resident takes long before Linux 6.7.
fn is_reservation(mapping: &Mapping) -> bool {
    mapping.permissions.starts_with("---") && mapping.size() > MAX_RESERVATION
}

/// Returns the parts of a private file mapping on pages that the program or the loader has written,
/// or all of it if they are not known.
fn written_pages(memory: &ProcessMemory, range: Range<u64>) -> Vec<Range<u64>> {
    // A page can extend beyond the range.
    let Ok(written) = memory.anonymous(range.clone()) else { return vec![range] };
    overlaps(range, &written).collect()
}

/// Returns the part of a mapping that is in use. For the first thread's stack, this is the part
/// above its stack pointer, and [`BELOW_POINTER`] bytes below. Other mappings are searched
/// completely: several stacks may share one, and the stack pointer of a running thread is unknown.
fn used_part(mapping: &Mapping, pointers: &[u64]) -> Range<u64> {
    let own = pointers.iter().find(|pointer| mapping.contains(**pointer));
    match own.filter(|_| mapping.name == "[stack]") {
        Some(pointer) => pointer.saturating_sub(BELOW_POINTER).max(mapping.start)..mapping.end,
        None => mapping.start..mapping.end,
    }
}

#[cfg(test)]
mod tests {
    use lowtide_probe::proc::maps;

    use super::*;

    #[test]
    fn the_data_words_of_an_epoll_instance_are_parsed() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t2\n\
            tfd:        5 events:       19 data:     7f12a0001230  pos:0 ino:1 sdev:9\n\
            tfd:        6 events:       19 data:                6  pos:0 ino:1 sdev:9\n";
        assert_eq!(epoll_words(text).collect::<Vec<_>>(), [0x7f12_a000_1230, 6]);
    }

    #[test]
    fn whatever_may_hold_pointers_is_searched_or_hides_them() {
        let mapping = |line: &str| maps::parse(&format!("{line}\n")).unwrap().remove(0);
        let search = |line: &str| SearchScope::of(&mapping(line), false);
        let whole = [
            "7f0000000000-7f0000001000 rw-p 0 00:00 0",
            "7f0000000000-7f0040000000 ---p 0 00:00 0",
            "7f0000000000-7f0000001000 rw-s 0 08:01 77 /var/lib/data",
            "7f0000000000-7f0000001000 r--s 0 00:01 77 /memfd:pool (deleted)",
            "7f0000000000-7f0000001000 ---s 0 00:01 77 /dev/shm/pool",
            "7f0000000000-7f0000001000 rw-s 0 00:0f 77 /secretmem (deleted)",
        ];
        assert!(whole.iter().all(|line| search(line) == SearchScope::Whole));
        let nothing = [
            "7f0000000000-7f0000001000 r--s 0 08:01 77 /var/lib/data",
            "7f0000000000-7f0000001000 r--p 0 00:00 0 [vvar]",
            "7f0000000000-7f0000001000 --xp 0 00:00 0 [uprobes]",
            "7f0000000000-7fff00000000 ---p 0 00:00 0",
            "7f0000000000-7f0000001000 r--s 0 00:05 77 /dev/rtc0",
        ];
        assert!(nothing.iter().all(|line| search(line) == SearchScope::Nothing));
        let hidden = [
            "7f0000000000-7f0080000000 rw-s 0 00:01 77 /memfd:pool (deleted)",
            "7f0000000000-7f0000001000 rw-s 0 00:05 77 /dev/dri/card0",
            "7f0000000000-7f0000001000 rw-s 0 00:05 77 /sys/devices/pci0000:00/resource0",
            "7f0000000000-7f0000001000 rw-s 0 00:05 77 anon_inode:[io_uring]",
            "7f0000000000-7f0000001000 rw-s 0 00:05 77 /[aio] (deleted)",
        ];
        assert!(hidden.iter().all(|line| matches!(search(line), SearchScope::Hidden(_))));
        let reservation = mapping("7f0000000000-7fff00000000 ---p 0 00:00 0");
        assert_eq!(SearchScope::of(&reservation, true), SearchScope::Whole);
    }

    #[test]
    fn the_signal_values_of_timers_are_parsed() {
        let text = "ID: 0\nsignal: 34/000055d0c0ffee10\nnotify: thread/pid.12\nClockID: 0\nID: 1\n";
        assert_eq!(timer_words(text).collect::<Vec<_>>(), [0x55d0_c0ff_ee10]);
    }
}
