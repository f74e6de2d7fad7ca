//! The time stamp counter.

#![expect(unsafe_code, reason = "the time stamp counter, and whether it may be read")]

/// Returns whether the calling thread may read the counter (`PR_SET_TSC`).
pub(crate) fn may_read_counter() -> bool {
    let mut answer = 0;
    let at: *mut libc::c_int = &raw mut answer;
    // SAFETY: PR_GET_TSC writes an int to the address, which is that of `answer`.
    let done = unsafe { libc::prctl(libc::PR_GET_TSC, at) };
    done == 0 && answer == libc::PR_TSC_ENABLE
}

/// Reads the counter. The caller has checked that the thread may.
pub(crate) fn counter() -> u64 {
    // SAFETY: x86-64 has the instruction, and the kernel permits it to this process:
    // `may_read_counter`.
    unsafe { core::arch::x86_64::_rdtsc() }
}
