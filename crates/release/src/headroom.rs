//! The free memory in a target's memory cgroup, which a release needs for a moment.

use lowtide_probe::pressure::PressureSource;

use crate::refusal::Refusal;

/// Minimum free memory of the cgroup, in bytes. A release needs about 0.2 MiB for its code, its
/// block, page tables and a thread; the kernel charges memory in batches, and other threads
/// allocate meanwhile.
const MIN_HEADROOM: u64 = 1 << 20;

/// Checks that the memory cgroups of a process have room for a release: it must not be what exceeds
/// a limit.
///
/// # Errors
/// Fails if a group has too little free memory, file pages included.
pub(crate) fn check(pid: u32) -> Result<(), Refusal> {
    match PressureSource::for_process(pid).headroom_bytes() {
        Some(free_bytes) if free_bytes < MIN_HEADROOM => Err(Refusal::NoHeadroom { free_bytes }),
        _ => Ok(()),
    }
}
