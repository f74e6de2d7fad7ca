//! Huge pages of which a release has dropped a part.
//!
//! RSS falls at once when a part of a huge page is dropped, but the system regains nothing until the kernel splits
//! the page, which it defers (`deferred_split_folio`). `MADV_COLD` from outside splits it. That also makes the rest of
//! the page the first candidate for reclaim, so it is used only if at least half of the page is free.

use std::fs;
use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::target::Target;

/// Size of a huge page on x86-64, in bytes.
pub(crate) const HUGE: u64 = 2 << 20;
const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";

/// The huge pages of a heap, before a release.
#[derive(Debug)]
pub(crate) struct HugePages {
    /// Runs of whole huge pages.
    runs: Vec<Range<u64>>,
}

impl HugePages {
    /// Finds the huge pages in some areas.
    pub(crate) fn find(memory: &LiveMemory, areas: &[Range<u64>]) -> Self {
        let areas = if is_off() { &[] } else { areas };
        let huge = |area: &Range<u64>| memory.huge(area.clone()).ok().flatten().unwrap_or_default();
        let whole = |run: Range<u64>| run.start.next_multiple_of(HUGE)..run.end - run.end % HUGE;
        let runs = areas.iter().flat_map(huge).map(whole).filter(|run| run.start < run.end);
        Self { runs: runs.collect() }
    }

    /// Makes the kernel split those that are at least half empty by now. Returns their free bytes.
    pub(crate) fn split(&self, target: &Target, memory: &LiveMemory) -> u64 {
        let mut bytes = 0;
        let pages = |run: &Range<u64>| run.clone().step_by(HUGE as usize);
        for page in self.runs.iter().flat_map(pages).map(|start| start..start + HUGE) {
            let rest = memory.resident(page.clone());
            let resident: u64 = rest.iter().map(|run| run.end - run.start).sum();
            if resident > 0 && resident <= HUGE / 2 && cool(target, &rest) {
                bytes += HUGE - resident;
            }
        }
        bytes
    }

    /// Returns a note about the system's settings, if these may undo a part of the release.
    pub(crate) fn note(&self) -> Option<String> {
        let fills = setting("khugepaged/max_ptes_none")?.trim().parse::<u64>().ok()?;
        (!self.runs.is_empty() && fills > 255).then(|| {
            format!(
                "the heap has huge pages, and khugepaged makes new ones of pages of which up to {fills} of \
                 512 are missing ({SETTINGS}/khugepaged/max_ptes_none): a part may come back; --watch 60s \
                 shows how much"
            )
        })
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

/// Calls `process_madvise(MADV_COLD)`; returns whether it had an effect.
#[expect(unsafe_code, reason = "a system call on another process that rustix does not have")]
fn cool(target: &Target, ranges: &[Range<u64>]) -> bool {
    use std::os::fd::AsRawFd;
    let vectors: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: range.start as *mut libc::c_void,
            iov_len: (range.end - range.start) as usize,
        })
        .collect();
    let handle = libc::c_long::from(target.handle().as_raw_fd());
    let advice = libc::c_long::from(libc::MADV_COLD);
    // SAFETY: the kernel reads `vectors.len()` vectors from the slice, which outlives the call. The addresses
    // in them are of the other process, and MADV_COLD changes no contents. Each argument is as large as a
    // `long`, as which the variadic `syscall` reads it.
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
