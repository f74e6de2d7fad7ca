//! The memory of lowtide itself. lowtide must not keep what it releases in other processes.

/// Makes glibc return freed memory to the OS at once: one arena for all threads, whose top chunk is
/// trimmed. A walk over a large heap needs megabytes that would otherwise stay in the arena of the
/// thread that did the walk. Has no effect on threads that have allocated before, and none with
/// another C library.
#[cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "mallopt(3)"))]
pub fn keep_own_memory_low() {
    #[cfg(target_env = "gnu")]
    {
        /// Free bytes that stay at the top of the heap. Setting this value at all prevents glibc
        /// from raising it.
        const TRIM_THRESHOLD: libc::c_int = 128 << 10;
        // SAFETY: it takes only numbers, and glibc locks its own data.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD);
        }
    }
}
