//! perf_event_open(2): a probe for each function, to which a BPF program is attached, which is how
//! kernels before 6.10 probe all threads of a process; and samples of registers.

#![expect(unsafe_code, reason = "perf_event_open(2) and its ioctls, which no library here wraps")]

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::calls::Fires;

/// Files of the kernel with the type of perf events for user-space probes, and with the bit of
/// `config` that selects return probes.
const KIND: &str = "/sys/bus/event_source/devices/uprobe/type";
const RETURN_BIT: &str = "/sys/bus/event_source/devices/uprobe/format/retprobe";
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
/// `PERF_EVENT_IOC_SET_BPF`, for x86_64.
const SET_BPF: libc::Ioctl = 0x4004_2408;

/// Events of the kernel's software (`PERF_TYPE_SOFTWARE`), the one of context switches
/// (`PERF_COUNT_SW_CONTEXT_SWITCHES`), and samples of registers (`PERF_SAMPLE_REGS_USER`).
const KIND_OF_SOFTWARE: u32 = 1;
const CONTEXT_SWITCHES: u64 = 3;
const SAMPLE_REGISTERS: u64 = 1 << 12;
/// Tracepoints (`PERF_TYPE_TRACEPOINT`), and samples of their data and of the stack
/// (`PERF_SAMPLE_RAW`, `PERF_SAMPLE_STACK_USER`).
const KIND_OF_TRACEPOINT: u32 = 2;
const SAMPLE_DATA: u64 = 1 << 10;
const SAMPLE_STACK: u64 = 1 << 13;

/// `struct perf_event_attr` as far as its third version after the original one
/// (`PERF_ATTR_SIZE_VER3`).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    /// Address of the path of the file.
    path: u64,
    /// Offset in the file, in bytes.
    offset: u64,
    branches: u64,
    /// The registers to sample, a bit for each.
    registers: u64,
    stack_bytes: u32,
    clock: i32,
}

/// An open perf event. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct PerfEvent(OwnedFd);

impl AsFd for PerfEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PerfEvent {
    /// Opens an event that samples registers at each context switch of a thread.
    ///
    /// # Errors
    /// Fails if the kernel does not permit it.
    pub(crate) fn for_switches(tid: u32, registers: u64) -> io::Result<Self> {
        let attributes = Attributes {
            kind: KIND_OF_SOFTWARE,
            config: CONTEXT_SWITCHES,
            sample_period: 1,
            sample_type: SAMPLE_REGISTERS,
            registers,
            ..Attributes::default()
        };
        open(attributes, tid).map(Self)
    }

    /// Opens an event that samples the data of a tracepoint, registers and the stack of a thread.
    ///
    /// # Errors
    /// Fails if the kernel does not permit it.
    pub(super) fn for_tracepoint(
        tid: u32,
        number: u64,
        registers: u64,
        stack_bytes: u32,
    ) -> io::Result<Self> {
        let attributes = Attributes {
            kind: KIND_OF_TRACEPOINT,
            config: number,
            sample_period: 1,
            sample_type: SAMPLE_DATA | SAMPLE_REGISTERS | SAMPLE_STACK,
            registers,
            stack_bytes,
            ..Attributes::default()
        };
        open(attributes, tid).map(Self)
    }
}

/// Runs a program whenever a process reaches an offset in a file, until the file descriptor is
/// closed.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    path: &CStr,
    offset: u64,
    pid: u32,
    fires: Fires,
) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: kind()?,
        config: if fires == Fires::AtReturn { return_bit()? } else { 0 },
        sample_period: 1,
        wakeup_events: 1,
        path: path.as_ptr() as u64,
        offset,
        ..Attributes::default()
    };
    let event = open(attributes, pid)?;
    // SAFETY: the request takes a file descriptor, and no address.
    let set = unsafe { libc::ioctl(event.as_raw_fd(), SET_BPF, program.as_raw_fd()) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(event) }
}

/// Opens an event for a process or thread, on any processor.
fn open(mut attributes: Attributes, pid: u32) -> io::Result<OwnedFd> {
    attributes.bytes = size_of::<Attributes>() as u32;
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    let (any_processor, no_group) = (-1, -1);
    // SAFETY: the kernel reads as many bytes of the attributes as their size field states, and can
    // write to that word; the path in them outlives the call.
    let made = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw mut attributes,
            pid,
            any_processor,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    let made = i32::try_from(made).map_err(io::Error::other)?;
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new file descriptor, which nothing else owns.
    let event = unsafe { OwnedFd::from_raw_fd(made) };
    Ok(event)
}

/// Reads the type of the perf event.
fn kind() -> io::Result<u32> {
    match fs::read_to_string(KIND) {
        Ok(text) => text.trim().parse().map_err(io::Error::other),
        // The kernel was built without uprobes, or is older than 4.17.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
        }
        Err(error) => Err(error),
    }
}

/// Reads which bit of `config` selects return probes: the text is `config:0`.
fn return_bit() -> io::Result<u64> {
    let text = fs::read_to_string(RETURN_BIT)?;
    let bit = text.trim().strip_prefix("config:").and_then(|bit| bit.parse::<u32>().ok());
    bit.and_then(|bit| 1_u64.checked_shl(bit))
        .ok_or_else(|| io::Error::other("the kernel's description of return probes is unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attributes_have_the_size_of_perf_attr_version_3() {
        assert_eq!(size_of::<Attributes>(), 96);
    }
}
