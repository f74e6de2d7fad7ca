//! The loader's list of objects, read from a process the way debuggers read it (`struct r_debug`
//! and `struct link_map` of link.h).

use std::io;

use super::ProgramError;
use crate::source::ProcessSource;

/// Maximum number of objects that are read: more than any program loads.
const MOST_OBJECTS: usize = 8192;

/// The location of the loader's `struct r_debug`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DebugAt {
    /// At this address (glibc: the symbol `_r_debug`).
    Address(u64),
    /// At the address in the pointer here (musl: the symbol `_dl_debug_addr`).
    Pointer(u64),
}

/// One object of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Object {
    /// The address of its dynamic section, which lies in a mapping of its file.
    pub(super) dynamic_section: u64,
}

/// The auxiliary vector that the kernel passes to a program at its start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AuxiliaryVector {
    /// Load address of the loader; 0 if the program has none.
    pub(super) base: u64,
    /// Whether it runs with other privileges than its user has.
    pub(super) is_secure: bool,
}

impl AuxiliaryVector {
    pub(super) fn read(source: ProcessSource<'_>) -> io::Result<Self> {
        const AT_PAGESZ: u64 = 6;
        const AT_BASE: u64 = 7;
        const AT_SECURE: u64 = 23;
        let bytes = source.auxiliary_vector()?;
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
        // Before Linux 6.14, the vector of a process that has ended is empty.
        if whole { Ok(vector) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Reads the objects in the order in which symbols are looked up.
pub(super) fn objects(
    source: ProcessSource<'_>,
    debug: DebugAt,
) -> Result<Vec<Object>, ProgramError> {
    let memory = source.words()?;
    let read = |address: u64, words: &mut [u64]| -> Result<(), ProgramError> {
        let mut bytes = vec![0; words.len() * 8];
        memory.read_exact_at(&mut bytes, address).map_err(|error| match error.raw_os_error() {
            // Nothing is mapped there yet.
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
    // r_version, r_map, r_brk, r_state: a state other than 0 means that the list is being changed.
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
