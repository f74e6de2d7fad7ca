//! The memory of a process, read without making any of its pages resident; or that of a core.

pub(crate) mod charged;
mod file_pages;
pub(crate) mod page_cache;
mod zero_page;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::bytes;
use rustix::ioctl::{Opcode, Updater, opcode};

pub use file_pages::FilePages;
use zero_page::ZeroPages;

use crate::core_file::CoreFile;

/// Maximum number of pages per scan. The kernel holds the lock of the process's mappings meanwhile,
/// and a thread that maps or unmaps memory waits: 8 MiB of small pages take about 0.1 ms.
const MOST_PAGES: u64 = 2048;

/// Minimum and maximum size of the address range per scan, in bytes; it grows while scans are fast.
/// Empty page tables are passed under the same lock.
const SMALLEST_WINDOW: u64 = 64 << 20;
const LARGEST_WINDOW: u64 = 64 << 30;
const QUICK: Duration = Duration::from_micros(50);

/// The memory of a process, held by descriptors: it never becomes that of another process with the
/// same PID, or of another program that the process executes.
///
/// It is read through `mem`, although `process_vm_readv` is faster: that call pins the pages, for
/// which the kernel copies each anonymous page that a `fork` left shared (`gup_must_unshare` in
/// mm/gup.c), so that an inspection of a pre-forking server would make it larger.
///
/// The memory of a core is read in the same way. Which of its pages were resident is not known: its
/// pages with content count as resident, and all that it has is readable.
#[derive(Debug)]
pub struct ProcessMemory {
    place: Place,
    page: u64,
    /// Whether the kernel scans page tables itself (`PAGEMAP_SCAN`, from Linux 6.7 on).
    scans: AtomicBool,
    /// The locked ranges, in order and disjoint.
    locked: Vec<Range<u64>>,
}

/// The place from which memory is read.
#[derive(Debug)]
enum Place {
    Process {
        /// Absent if only the page map may be read.
        memory: Option<File>,
        pagemap: File,
    },
    Core(Arc<CoreFile>),
}

/// Consecutive pages of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pages {
    /// Their addresses.
    pub range: Range<u64>,
    /// Their kind.
    pub kind: PageKind,
}

/// The kind of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Resident and anonymous.
    Anonymous,
    /// Resident, backed by a file or shared memory.
    File,
    /// Swapped out.
    Swapped,
}

impl ProcessMemory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// Fails if it may not be read (which requires permission to trace it), or if the process has
    /// ended.
    pub fn open(pid: u32) -> io::Result<Self> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        Self::of_process(pid, Some(memory))
    }

    /// Opens only the page map of a process, if its memory may not be read (`CAP_PERFMON` without
    /// `CAP_SYS_PTRACE`): its pages are listed, and nothing can be read.
    ///
    /// # Errors
    /// Fails if not even that may be read, or if the process has ended.
    pub fn pages_only(pid: u32) -> io::Result<Self> {
        Self::of_process(pid, None)
    }

    fn of_process(pid: u32, memory: Option<File>) -> io::Result<Self> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let page = rustix::param::page_size() as u64;
        Ok(Self::new(Place::Process { memory, pagemap }, page))
    }

    /// Returns the memory of a core.
    pub fn of_core(core: Arc<CoreFile>) -> Self {
        let page = core.page_bytes();
        Self::new(Place::Core(core), page)
    }

    fn new(place: Place, page: u64) -> Self {
        Self { place, page, scans: AtomicBool::new(true), locked: Vec::new() }
    }

    /// Returns the page map of a process.
    ///
    /// # Errors
    /// Fails for a core, which has none.
    fn pagemap(&self) -> io::Result<&File> {
        match &self.place {
            Place::Process { pagemap, .. } => Ok(pagemap),
            Place::Core(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn core(&self) -> Option<&CoreFile> {
        match &self.place {
            Place::Process { .. } => None,
            Place::Core(core) => Some(core),
        }
    }

    /// Returns whether a process still uses this memory: one that ends, or executes another
    /// program, leaves it.
    pub fn is_in_use(&self) -> bool {
        match &self.place {
            // The page map of unused memory is empty; any other has an entry for address 0.
            Place::Process { pagemap, .. } => matches!(pagemap.read_at(&mut [0; 8], 0), Ok(8)),
            Place::Core(_) => true,
        }
    }

    /// Returns the same memory, which becomes unreadable as soon as `interrupt` is set: a walk over
    /// it then ends.
    pub fn until<'m>(&'m self, interrupt: &'m AtomicBool) -> Interruptible<'m> {
        Interruptible { memory: self, interrupt }
    }

    /// Sets the locked ranges, in order and disjoint.
    pub fn set_locked(&mut self, locked: Vec<Range<u64>>) {
        self.locked = locked;
    }

    /// Returns whether the kernel passes over empty page tables fast (`PAGEMAP_SCAN`), as far as it
    /// is known.
    pub fn scans(&self) -> bool {
        self.scans.load(Ordering::Relaxed)
    }

    /// Returns the same memory without the use of `PAGEMAP_SCAN`, as on kernels that lack it.
    #[must_use]
    pub fn without_scan(self) -> Self {
        self.scans.store(false, Ordering::Relaxed);
        self
    }

    /// Returns the pages between two addresses that are resident or swapped out, in order. Pages
    /// that were only ever read are mapped to the zero page; the kernel does not count them either.
    ///
    /// # Errors
    /// Fails if the kernel does not provide them.
    pub fn pages(&self, range: Range<u64>) -> io::Result<Vec<Pages>> {
        let range = self.whole_pages(range);
        if let Some(core) = self.core() {
            return Ok(core.pages(range));
        }
        self.scanned(|| self.scan(&range)).unwrap_or_else(|| self.entries(&range))
    }

    /// Makes the kernel scan the page tables.
    fn scan(&self, range: &Range<u64>) -> io::Result<Vec<Pages>> {
        let mut found = Vec::new();
        self.scan_for(range, PRESENT | SWAPPED, PRESENT | SWAPPED | FILE, |region| {
            found.push(Pages {
                range: region.start..region.end,
                kind: match region.categories {
                    c if c & SWAPPED != 0 => PageKind::Swapped,
                    c if c & FILE != 0 => PageKind::File,
                    _ => PageKind::Anonymous,
                },
            });
        })?;
        Ok(found)
    }

    /// Makes the kernel scan for pages of any of these categories, except the zero page, and report
    /// which of the categories of interest they have.
    ///
    /// The category for file pages costs more than all others: the kernel must check the page
    /// itself.
    fn scan_for(
        &self,
        range: &Range<u64>,
        any_of: u64,
        of_interest: u64,
        mut each: impl FnMut(&Region),
    ) -> io::Result<()> {
        let pagemap = self.pagemap()?;
        let mut regions = [Region::EMPTY; 256];
        let mut start = range.start;
        let mut window = SMALLEST_WINDOW;
        while start < range.end {
            regions.fill(Region::EMPTY);
            let end = range.end.min(start.saturating_add(window));
            let begin = Instant::now();
            let mut request = ScanRequest {
                size: size_of::<ScanRequest>() as u64,
                start,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                max_pages: MOST_PAGES,
                category_inverted: PFNZERO,
                category_mask: PFNZERO,
                category_anyof_mask: any_of,
                return_mask: of_interest,
                ..ScanRequest::default()
            };
            // SAFETY: `SCAN` is the number of PAGEMAP_SCAN, whose argument is a `struct
            // pm_scan_arg`; `ScanRequest` has its layout (linux/fs.h). The kernel writes at most
            // `vec_len` elements to `vec`, which points to as many `Region`s that outlive the call.
            #[expect(unsafe_code, reason = "an ioctl that rustix does not have")]
            unsafe {
                let updater = Updater::<SCAN, ScanRequest>::new(&mut request);
                rustix::ioctl::ioctl(pagemap.as_fd(), updater)?;
            }
            regions.iter().take_while(|r| r.end > r.start).for_each(&mut each);
            if request.walk_end <= start {
                break;
            }
            start = request.walk_end;
            // Empty ranges are crossed in growing windows, and ranges with pages in small ones.
            window = match begin.elapsed() {
                took if took < QUICK => window.saturating_mul(4).min(LARGEST_WINDOW),
                _ => SMALLEST_WINDOW,
            };
        }
        Ok(())
    }

    /// Does the same as [`Memory::resident`], on a kernel that scans.
    fn scan_resident(&self, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut runs = Vec::new();
        self.scan_for(range, PRESENT, PRESENT, |region| add(&mut runs, region.start..region.end))?;
        Ok(runs)
    }

    /// Returns the resident anonymous pages between two addresses, in order.
    ///
    /// # Errors
    /// Fails if the kernel does not provide them.
    pub fn anonymous(&self, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let pages = self.pages(range)?.into_iter();
        let anonymous = pages.filter(|pages| pages.kind == PageKind::Anonymous);
        Ok(anonymous.map(|pages| pages.range).collect())
    }

    /// Returns the pages between two addresses that are mapped as huge pages, in order; `None` on
    /// kernels that do not scan.
    ///
    /// # Errors
    /// Fails if the kernel does not provide them.
    pub fn huge(&self, range: Range<u64>) -> io::Result<Option<Vec<Range<u64>>>> {
        let range = self.whole_pages(range);
        let scan = || {
            let mut runs = Vec::new();
            // The scan includes all present pages, so that small pages count towards its limit.
            self.scan_for(&range, PRESENT, PRESENT | HUGE, |region| {
                if region.categories & HUGE != 0 {
                    add(&mut runs, region.start..region.end);
                }
            })?;
            Ok(runs)
        };
        self.scanned(scan).transpose()
    }

    /// Returns the bytes between two addresses that are in huge pages; `None` on kernels that do
    /// not scan.
    ///
    /// # Errors
    /// Fails if the kernel does not provide them.
    pub fn huge_bytes(&self, range: Range<u64>) -> io::Result<Option<u64>> {
        let runs = self.huge(range)?;
        Ok(runs.map(|runs| bytes(&runs)))
    }

    /// Makes the kernel scan, unless it is known that it cannot.
    fn scanned<T>(&self, scan: impl FnOnce() -> io::Result<T>) -> Option<io::Result<T>> {
        if !self.scans.load(Ordering::Relaxed) || self.core().is_some() {
            return None;
        }
        match scan() {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTTY.raw_os_error()) => {
                self.scans.store(false, Ordering::Relaxed);
                None
            }
            other => Some(other),
        }
    }

    fn whole_pages(&self, range: Range<u64>) -> Range<u64> {
        let end = range.end.checked_next_multiple_of(self.page).unwrap_or(range.end);
        range.start - range.start % self.page..end
    }

    /// Returns the number of the physical page at an address, 0 if it may not be read
    /// (`CAP_SYS_ADMIN`); `None` if no page is present there.
    pub(crate) fn page_number(&self, address: u64) -> Option<u64> {
        const NUMBER: u64 = (1 << 55) - 1;
        let mut entry = [0; 8];
        self.pagemap().ok()?.read_exact_at(&mut entry, address / self.page * 8).ok()?;
        let entry = u64::from_le_bytes(entry);
        (entry >> 63 == 1).then_some(entry & NUMBER)
    }

    /// Returns the parts of some ranges of present pages that only this process maps, in order. The
    /// kernel holds the lock of the mappings for 2 MiB of pages at a time.
    ///
    /// # Errors
    /// Fails if the page map cannot be read.
    pub(crate) fn exclusive(&self, ranges: &[Range<u64>]) -> io::Result<Vec<Range<u64>>> {
        const AT_ONCE: u64 = 32 << 10;
        let pagemap = self.pagemap()?;
        let mut runs = Vec::new();
        let mut bytes = vec![0; AT_ONCE as usize * 8];
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let wanted = ((range.end - at) / self.page).min(AT_ONCE) as usize;
                let length = pagemap.read_at(&mut bytes[..wanted * 8], at / self.page * 8)?;
                if length < 8 {
                    break;
                }
                for entry in bytes[..length - length % 8].chunks_exact(8) {
                    let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
                    if entry >> 63 & entry >> 56 & 1 == 1 {
                        add(&mut runs, at..at + self.page);
                    }
                    at += self.page;
                }
            }
        }
        Ok(runs)
    }

    /// Reads the entries of the page map one by one, as kernels before 6.7 require.
    fn entries(&self, range: &Range<u64>) -> io::Result<Vec<Pages>> {
        const AT_ONCE: usize = 32 << 10;
        let pagemap = self.pagemap()?;
        let mut found: Vec<Pages> = Vec::new();
        let pages = usize::try_from((range.end - range.start) / self.page).unwrap_or(AT_ONCE);
        let mut bytes = vec![0; pages.min(AT_ONCE) * 8];
        let zeros = ZeroPages::of_this_machine();
        let mut at = range.start;
        while at < range.end {
            let wanted =
                usize::try_from((range.end - at) / self.page).unwrap_or(AT_ONCE).min(AT_ONCE);
            let length = pagemap.read_at(&mut bytes[..wanted * 8], at / self.page * 8)?;
            if length < 8 {
                break;
            }
            for entry in bytes[..length - length % 8].chunks_exact(8) {
                let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
                let is_own = u64::from(!zeros.hold(entry));
                let kind = match (entry >> 63 & is_own, entry >> 62 & 1, entry >> 61 & 1) {
                    (1, _, 1) => Some(PageKind::File),
                    (1, _, _) => Some(PageKind::Anonymous),
                    (_, 1, _) => Some(PageKind::Swapped),
                    _ => None,
                };
                if let Some(kind) = kind {
                    match found.last_mut().filter(|p| p.range.end == at && p.kind == kind) {
                        Some(last) => last.range.end = at + self.page,
                        None => found.push(Pages { range: at..at + self.page, kind }),
                    }
                }
                at += self.page;
            }
        }
        Ok(found)
    }
}

impl Memory for ProcessMemory {
    fn page_bytes(&self) -> u64 {
        self.page
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        if let Some(core) = self.core() {
            return core.read(address, buffer);
        }
        let end = address.saturating_add(buffer.len() as u64);
        // A page that is not present must stay so: reading it would make it present.
        let resident = self.resident(address..end);
        let present = match resident.first() {
            Some(first) if first.start <= address => first.end.min(end) - address,
            _ => return 0,
        };
        let part = &mut buffer[..usize::try_from(present).unwrap_or(0)];
        self.read_resident(address, part)
    }

    fn read_resident(&self, address: u64, buffer: &mut [u8]) -> usize {
        match &self.place {
            Place::Process { memory: Some(memory), .. } => {
                memory.read_at(buffer, address).unwrap_or(0)
            }
            Place::Process { memory: None, .. } => 0,
            Place::Core(core) => core.read(address, buffer),
        }
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let range = self.whole_pages(range);
        if let Some(core) = self.core() {
            return core.content(range);
        }
        if let Some(runs) = self.scanned(|| self.scan_resident(&range)) {
            return runs.unwrap_or_default();
        }
        let mut runs = Vec::new();
        let pages = self.entries(&range).unwrap_or_default();
        for pages in pages.into_iter().filter(|p| p.kind != PageKind::Swapped) {
            add(&mut runs, pages.range);
        }
        runs
    }

    fn locked(&self) -> &[Range<u64>] {
        &self.locked
    }

    fn wait(&self, time: Duration) -> bool {
        let changes = self.core().is_none();
        if changes {
            thread::sleep(time);
        }
        changes
    }
}

/// Memory that is readable until it is interrupted.
#[derive(Debug)]
pub struct Interruptible<'m> {
    memory: &'m ProcessMemory,
    interrupt: &'m AtomicBool,
}

impl Memory for Interruptible<'_> {
    fn page_bytes(&self) -> u64 {
        self.memory.page_bytes()
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        if self.is_over() { 0 } else { self.memory.read(address, buffer) }
    }

    fn read_resident(&self, address: u64, buffer: &mut [u8]) -> usize {
        if self.is_over() { 0 } else { self.memory.read_resident(address, buffer) }
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if self.is_over() { Vec::new() } else { self.memory.resident(range) }
    }

    fn locked(&self) -> &[Range<u64>] {
        self.memory.locked()
    }

    fn wait(&self, time: Duration) -> bool {
        !self.is_over() && self.memory.wait(time)
    }

    fn is_over(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }
}

/// Appends pages to a list, and merges them with the last run if they are adjacent.
fn add(runs: &mut Vec<Range<u64>>, pages: Range<u64>) {
    match runs.last_mut().filter(|last| last.end == pages.start) {
        Some(last) => last.end = pages.end,
        None => runs.push(pages),
    }
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Default)]
struct ScanRequest {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

impl Region {
    const EMPTY: Self = Self { start: 0, end: 0, categories: 0 };
}

/// `PAGEMAP_SCAN`.
const SCAN: Opcode = opcode::read_write::<ScanRequest>(b'f', 16);
/// `PAGE_IS_…`.
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const PFNZERO: u64 = 1 << 5;
const HUGE: u64 = 1 << 6;

#[cfg(test)]
mod tests {
    use super::*;

    /// Size in bytes for which an allocation is always a mapping of its own, with no page present
    /// yet (`DEFAULT_MMAP_THRESHOLD_MAX` is 32 MiB).
    const FRESH: usize = 40 << 20;

    fn ours() -> ProcessMemory {
        ProcessMemory::open(std::process::id()).unwrap()
    }

    #[test]
    fn reading_our_own_memory_returns_its_content() {
        let block: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        let mut read = vec![0; block.len()];
        assert_eq!(ours().read(block.as_ptr() as u64, &mut read), block.len());
        assert_eq!(read, block);
    }

    #[test]
    fn the_page_scan_and_the_page_map_entries_find_the_same_pages() {
        let block = vec![1_u8; 1 << 20];
        let range = block.as_ptr() as u64..block.as_ptr() as u64 + block.len() as u64;
        let memory = ours();
        let scanned = memory.pages(range.clone()).unwrap();
        let read = memory.entries(&(range.start & !4095..(range.end + 4095) & !4095)).unwrap();
        let total =
            |pages: &[Pages]| pages.iter().map(|p| p.range.end - p.range.start).sum::<u64>();
        assert!(total(&scanned) >= 1 << 20);
        assert_eq!(total(&scanned), total(&read));
        assert!(scanned.iter().all(|p| p.kind == PageKind::Anonymous));
    }

    #[test]
    fn a_page_that_was_only_read_does_not_count_as_resident() {
        let block = vec![0_u8; FRESH];
        let middle = &block[FRESH / 2];
        assert_eq!(*std::hint::black_box(middle), 0);
        let at = std::ptr::from_ref(middle) as u64;
        assert!(ours().resident(at..at + 1).is_empty());
        if ZeroPages::of_this_machine().are_known() {
            assert!(ours().without_scan().resident(at..at + 1).is_empty());
        }
    }

    #[test]
    fn reading_a_page_that_was_never_written_does_not_make_it_resident() {
        let block: Vec<u8> = Vec::with_capacity(FRESH);
        let middle = block.as_ptr() as u64 + FRESH as u64 / 2;
        let memory = ours();
        assert_eq!(memory.read(middle, &mut [0; 64]), 0);
        assert!(memory.resident(middle..middle + 4096).is_empty());
        drop(block);
    }
}
