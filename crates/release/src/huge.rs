//! Huge pages of which a release has dropped a part.
//!
//! RSS falls at once when a part of a huge page is dropped, but the system regains nothing until
//! the kernel splits the page, which it defers (`deferred_split_folio`). `MADV_COLD` from outside
//! splits it. That also makes the rest of the page the first candidate for reclaim, so it is used
//! only if at least half of the page is free.

use std::fs;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use lowtide_heap::memory::Memory;
use lowtide_heap::ranges;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::target::Target;

/// Size of a huge page where pages have 4 KiB, in bytes. Only such a huge page is dropped by one
/// operation.
pub(crate) const HUGE: u64 = 2 << 20;
const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";

/// Returns the size of the huge pages of this machine, in bytes: 2 MiB with pages of 4 KiB, 32 MiB
/// with 16 KiB, 512 MiB with 64 KiB.
pub(crate) fn huge_page_bytes() -> u64 {
    let bytes = setting("hpage_pmd_size").and_then(|text| text.trim().parse().ok());
    bytes.filter(|bytes: &u64| bytes.is_power_of_two()).unwrap_or(HUGE)
}

/// The huge pages of a heap, before a release.
#[derive(Debug)]
pub(crate) struct HeapHugePages {
    /// Size of a huge page, in bytes.
    size: u64,
    /// Runs of whole huge pages.
    runs: Vec<Range<u64>>,
}

impl HeapHugePages {
    /// Finds the huge pages in some areas.
    pub(crate) fn find(memory: &ProcessMemory, areas: &[Range<u64>]) -> Self {
        let areas = if is_off() { &[] } else { areas };
        let huge = |area: &Range<u64>| memory.huge(area.clone()).ok().flatten().unwrap_or_default();
        let size = huge_page_bytes();
        let whole = |run: Range<u64>| run.start.next_multiple_of(size)..run.end - run.end % size;
        let runs = areas.iter().flat_map(huge).map(whole).filter(|run| run.start < run.end);
        Self { size, runs: runs.collect() }
    }

    /// Makes the kernel split those that are at least half empty by now. Returns their free bytes.
    pub(crate) fn split(&self, target: &Target, memory: &ProcessMemory) -> u64 {
        // Kernels that have no pidfds do not have the call either.
        let Ok(pidfd) = target.pidfd() else { return 0 };
        let mut bytes = 0;
        let size = self.size;
        let pages = |run: &Range<u64>| run.clone().step_by(size as usize);
        for page in self.runs.iter().flat_map(pages).map(|start| start..start + size) {
            let rest = memory.resident(page.clone());
            let resident = ranges::bytes(&rest);
            if resident > 0 && resident <= size / 2 && cool(&pidfd, &rest) {
                bytes += size - resident;
            }
        }
        bytes
    }

    /// Returns how many of their bytes are in no huge page any more.
    pub(crate) fn gone_bytes(&self, memory: &ProcessMemory) -> u64 {
        let size = |run: &Range<u64>| run.end - run.start;
        let still = |run: &Range<u64>| memory.huge_bytes(run.clone()).ok().flatten().unwrap_or(0);
        self.runs.iter().map(|run| size(run).saturating_sub(still(run))).sum()
    }

    /// Returns a note about the system's settings, if these may undo a part of the release of an
    /// allocator's heap.
    pub(crate) fn note(&self, target: &Target, allocator: &AllocatorKind) -> Option<String> {
        let permission = Permission {
            has_huge: !self.runs.is_empty(),
            is_for_all: setting("enabled")?.contains("[always]"),
            is_disabled: target.status().is_ok_and(|status| status.thp_disabled),
            fills: setting("khugepaged/max_ptes_none")?.trim().parse().ok()?,
            pages: self.size / rustix::param::page_size() as u64,
        };
        permission.note(allocator)
    }
}

/// What permits khugepaged to make huge pages of a heap.
struct Permission {
    /// The heap has had some.
    has_huge: bool,
    /// The system permits them everywhere (`always`), not only where a program asks for them.
    /// khugepaged comes late: a heap without huge pages may have some a minute later.
    is_for_all: bool,
    /// The process has excluded itself.
    is_disabled: bool,
    /// The number of pages of a huge page that may be missing (`max_ptes_none`).
    fills: u64,
    /// The number of pages of a huge page.
    pages: u64,
}

impl Permission {
    /// Describes how khugepaged undoes a release, and what prevents that.
    fn note(&self, allocator: &AllocatorKind) -> Option<String> {
        let Self { has_huge, is_for_all, is_disabled, fills, pages } = *self;
        // glibc's heaps grow in steps that are smaller than a huge page. The mappings of others
        // have huge pages from the beginning, unless the allocator has excluded them (`thp:never`).
        let may_have = has_huge || is_for_all && *allocator == AllocatorKind::Glibc;
        // With fewer, a new huge page is mostly memory that the process has already.
        if is_disabled || fills < pages / 2 || !may_have {
            return None;
        }
        let why = match has_huge {
            true => "the heap has huge pages",
            false => "the system permits huge pages in every heap",
        };
        let own = match allocator {
            // The C library asks for huge pages; it cannot ask for none.
            AllocatorKind::Glibc if !is_for_all => "GLIBC_TUNABLES=glibc.malloc.hugetlb=0 or ",
            AllocatorKind::Jemalloc => "MALLOC_CONF=thp:never or ",
            _ => "",
        };
        Some(format!(
            "{why}, and khugepaged makes new ones even if up to {fills} of {pages} pages are missing. A part may come back \
             (--watch 2m shows how much): {own}a smaller number in {SETTINGS}/khugepaged/max_ptes_none prevents that"
        ))
    }
}

/// Returns whether the system has no transparent huge pages.
pub(crate) fn is_off() -> bool {
    setting("enabled").is_some_and(|text| text.contains("[never]"))
}

/// Reads a setting of transparent huge pages.
fn setting(name: &str) -> Option<String> {
    fs::read_to_string(format!("{SETTINGS}/{name}")).ok()
}

/// Calls `process_madvise(MADV_COLD)` (Linux 5.10); returns whether it had an effect.
#[expect(unsafe_code, reason = "a system call on another process that rustix does not have")]
fn cool(pidfd: &OwnedFd, ranges: &[Range<u64>]) -> bool {
    let vectors: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: range.start as *mut libc::c_void,
            iov_len: (range.end - range.start) as usize,
        })
        .collect();
    let handle = libc::c_long::from(pidfd.as_raw_fd());
    let advice = libc::c_long::from(libc::MADV_COLD);
    // SAFETY: the kernel reads `vectors.len()` vectors from the slice, which outlives the call. The
    // addresses in them are of the other process, and MADV_COLD changes no contents. Each argument
    // is as large as a `long`, as which the variadic `syscall` reads it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            handle,
            vectors.as_ptr(),
            vectors.len(),
            advice,
            0_usize,
        )
    };
    done > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_named_only_if_it_prevents_new_huge_pages() {
        let of = |kind: &AllocatorKind, is_for_all| {
            let permission = Permission {
                has_huge: true,
                is_for_all,
                is_disabled: false,
                fills: 511,
                pages: 512,
            };
            permission.note(kind).unwrap()
        };
        assert!(of(&AllocatorKind::Glibc, false).contains("glibc.malloc.hugetlb=0"));
        assert!(!of(&AllocatorKind::Glibc, true).contains("hugetlb"));
        assert!(of(&AllocatorKind::Jemalloc, true).contains("thp:never"));
        assert!(of(&AllocatorKind::Gperftools, true).contains(": a smaller number in"));
    }

    #[test]
    fn memory_may_come_back_only_where_the_system_and_the_process_permit_huge_pages() {
        let is_announced = |has_huge, is_for_all, is_disabled, fills| {
            let permission = Permission { has_huge, is_for_all, is_disabled, fills, pages: 512 };
            permission.note(&AllocatorKind::Glibc).is_some()
        };
        assert!(is_announced(true, false, false, 511));
        assert!(is_announced(false, true, false, 511));
        assert!(!is_announced(false, false, false, 511));
        assert!(!is_announced(true, true, true, 511));
        assert!(!is_announced(true, true, false, 0));
        let excluded = Permission {
            has_huge: false,
            is_for_all: true,
            is_disabled: false,
            fills: 511,
            pages: 512,
        };
        assert_eq!(excluded.note(&AllocatorKind::Jemalloc), None);
    }
}
