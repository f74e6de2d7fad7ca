//! The loader's list of objects, read out of a process as debuggers read it (`struct r_debug` and
//! `struct link_map` of link.h).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use super::ProgramError;

/// More objects than any program loads.
const MOST_OBJECTS: usize = 8192;

/// Where the loader's `struct r_debug` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DebugAt {
    /// There (glibc: the symbol `_r_debug`).
    Address(u64),
    /// Where the pointer there leads (musl: the symbol `_dl_debug_addr`).
    Pointer(u64),
}

/// One object of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Object {
    /// The address of its dynamic section, which lies in a mapping of its file.
    pub(super) dynamic_section: u64,
}

/// What the kernel told the program when it began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AuxiliaryVector {
    /// Where the loader was put; 0 when the program has none.
    pub(super) base: u64,
    /// Whether it got other rights than its user has.
    pub(super) is_secure: bool,
}

impl AuxiliaryVector {
    pub(super) fn read(pid: u32) -> io::Result<Self> {
        const AT_PAGESZ: u64 = 6;
        const AT_BASE: u64 = 7;
        const AT_SECURE: u64 = 23;
        let bytes = fs::read(format!("/proc/{pid}/auxv"))?;
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
        let mut vector = Self::default();
        let mut whole = false;
        for pair in bytes.chunks_exact(16) {
            match word(&pair[..8]) {
                AT_PAGESZ => whole = true,
                AT_BASE => vector.base = word(&pair[8..]),
                AT_SECURE => vector.is_secure = word(&pair[8..]) != 0,
                _ => {}
            }
        }
        // Before Linux 6.14, that of a process which has ended is empty.
        if whole { Ok(vector) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// The objects in the order in which names are looked up.
pub(super) fn objects(pid: u32, debug: DebugAt) -> Result<Vec<Object>, ProgramError> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let read = |address: u64, words: &mut [u64]| -> Result<(), ProgramError> {
        let mut bytes = vec![0; words.len() * 8];
        memory.read_exact_at(&mut bytes, address).map_err(|error| match error.raw_os_error() {
            // Nothing is mapped there (yet).
            Some(5) => ProgramError::NotYet,
            _ => error.into(),
        })?;
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(())
    };
    let address = match debug {
        DebugAt::Address(address) => address,
        DebugAt::Pointer(pointer) => {
            let mut address = [0];
            read(pointer, &mut address)?;
            address[0]
        }
    };
    // r_version, r_map, r_brk, r_state: a state other than 0 says that the list is being changed.
    let mut debug = [0; 4];
    read(address, &mut debug)?;
    let [version, first, _, state] = debug;
    if version as u32 == 0 || first == 0 || state as u32 != 0 {
        return Err(ProgramError::NotYet);
    }
    let mut objects = Vec::new();
    let mut next = first;
    while next != 0 && objects.len() < MOST_OBJECTS {
        // l_addr, l_name, l_ld, l_next.
        let mut link = [0; 4];
        read(next, &mut link)?;
        objects.push(Object { dynamic_section: link[2] });
        next = link[3];
    }
    Ok(objects)
}
