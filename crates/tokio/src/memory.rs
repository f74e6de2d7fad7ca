//! The memory size of this process.

/// Returns the bytes of resident anonymous memory: heap, stacks and the like, without files and
/// shared memory. `None` if `/proc` is not available.
pub(crate) fn anonymous_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut fields = text.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(resident.saturating_sub(shared) * page_bytes())
}

#[expect(unsafe_code, reason = "a function of the C library")]
fn page_bytes() -> u64 {
    // SAFETY: it only reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_memory_counts_as_anonymous() {
        const BYTES: usize = 64 << 20;
        let before = anonymous_bytes().unwrap_or(0);
        let block = std::hint::black_box(vec![1_u8; BYTES]);
        let after = anonymous_bytes().unwrap_or(0);
        // The kernel counts in batches, for each processor.
        assert!(after - before > BYTES as u64 / 4 * 3, "{before} {after}");
        drop(block);
    }
}
