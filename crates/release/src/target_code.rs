//! What a release needs to know of the target's code. It is read from files, before a lock is taken
//! or a thread is stopped: a file system can delay that.

use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_probe::heap;
use lowtide_probe::mapped::code_of;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;
use memchr::memmem;

use crate::arch::{self, GADGETS, Gadgets, RESTORE};
use crate::refusal::Refusal;
use crate::symbol;

/// Facts about the code of a target.
#[derive(Debug)]
pub(crate) struct TargetCode {
    /// The system calls after which no code needs their arguments.
    pub(crate) library_calls: LibraryCalls,
    /// The instructions that a chain of frames needs.
    pub(crate) gadgets: Gadgets,
    /// Where signal handlers may return to.
    pub(crate) restorers: Restorers,
    /// The flag by which glibc decides whether to take locks.
    pub(crate) single_threaded: SingleThreaded,
    /// The address of `malloc_trim`, if the C library has it.
    pub(crate) malloc_trim_at: Option<u64>,
}

impl TargetCode {
    /// Reads it. `c_library` is the file that holds the C library; `is_static` tells whether that
    /// is the program.
    ///
    /// # Errors
    /// Fails if the C library lacks an instruction that is needed, or cannot be read.
    pub(crate) fn read(
        pid: u32,
        maps: &[Mapping],
        c_library: &str,
        is_static: bool,
    ) -> Result<Self, Refusal> {
        let mut code = Self::of_library(pid, maps, c_library, is_static)?;
        let others = files_with_code(maps).filter(|mapping| mapping.name != c_library);
        others.for_each(|mapping| code.restorers.search(&Code::of_file(pid, mapping)));
        Ok(code)
    }

    /// Reads the part of it that is in the C library: the code to which signal handlers return may
    /// be in other files as well, of which all code has to be read.
    ///
    /// # Errors
    /// Fails if the C library lacks an instruction that is needed, or cannot be read.
    pub(crate) fn of_library(
        pid: u32,
        maps: &[Mapping],
        c_library: &str,
        is_static: bool,
    ) -> Result<Self, Refusal> {
        let library = heap::library(maps, c_library);
        // A program that was linked with the flag has a copy of its own, which all libraries then
        // use.
        let program = maps.iter().find(|m| m.has_file());
        let address = |file, name| symbol::address(pid, maps, file, name);
        let in_either = |name| {
            let mut files = [program, library].into_iter().flatten();
            files.find_map(|file| address(file, name).transpose()).transpose()
        };
        // Of remote files, only so much is read: first what a release needs most.
        let single_threaded = match in_either("__libc_single_threaded") {
            Ok(Some(address)) => SingleThreaded::At(address),
            Ok(None) => SingleThreaded::Absent,
            Err(_) => SingleThreaded::Unknown,
        };
        let malloc_trim_at = library.and_then(|file| address(file, "malloc_trim").ok().flatten());
        let code: Vec<Code<'_>> = code_of_library(pid, maps, c_library).collect();
        let vdso = arch::RESTORES_IN_VDSO.then(|| Code::of_kernel(pid, maps)).flatten();
        let gadgets = GadgetSearch::of(code.iter().chain(&vdso)).found()?;
        let mut library_calls = match is_static {
            true => LibraryCalls::Before(Vec::new()),
            false => {
                let ranges = code.iter().map(|code| code.mapping.start..code.mapping.end);
                LibraryCalls::In(ranges.collect())
            }
        };
        code.iter().for_each(|code| library_calls.search(code));
        let mut restorers = Restorers::default();
        code.iter().chain(&vdso).for_each(|code| restorers.search(code));
        Ok(Self { library_calls, gadgets, restorers, single_threaded, malloc_trim_at })
    }
}

/// Returns the mappings of code in files.
fn files_with_code(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter().filter(|m| m.has_file() && m.permissions.contains('x'))
}

/// Reads the code of the C library.
fn code_of_library<'m>(
    pid: u32,
    maps: &'m [Mapping],
    c_library: &str,
) -> impl Iterator<Item = Code<'m>> {
    let mappings = files_with_code(maps).filter(move |mapping| mapping.name == c_library);
    mappings.map(move |mapping| Code::of_file(pid, mapping))
}

/// The code in a mapping.
struct Code<'m> {
    mapping: &'m Mapping,
    bytes: Vec<u8>,
    /// Whether the bytes are all of it.
    is_all: bool,
}

impl<'m> Code<'m> {
    fn of_file(pid: u32, mapping: &'m Mapping) -> Self {
        let (bytes, is_all) = code_of(pid, mapping);
        Self { mapping, bytes, is_all }
    }

    /// Returns the code of the kernel in a process.
    fn of_kernel(pid: u32, maps: &'m [Mapping]) -> Option<Self> {
        const MAX_BYTES: u64 = 1 << 20;
        let mapping = maps.iter().find(|m| m.name == "[vdso]" && m.size() <= MAX_BYTES)?;
        let mut bytes = vec![0; usize::try_from(mapping.size()).ok()?];
        let length = ProcessMemory::open(pid).ok()?.read(mapping.start, &mut bytes);
        bytes.truncate(length);
        Some(Self { mapping, bytes, is_all: true })
    }
}

/// The system calls whose arguments no code needs afterwards: functions of the C library do not
/// reuse them. Other code may, because the kernel keeps these registers.
#[derive(Debug)]
pub(crate) enum LibraryCalls {
    /// All in the code of the C library.
    In(Vec<Range<u64>>),
    /// In a static program, whose own code is not distinguished from that of its C library: those
    /// that return to these addresses, in order. Each is followed by the return of a function with
    /// six arguments and the number of the call (`__syscall_cp_asm` and `__syscall_cp_c` of musl,
    /// `__syscall_cancel_arch` of glibc 2.41 and newer), which has written to all these registers.
    Before(Vec<u64>),
}

impl LibraryCalls {
    /// Returns whether the call that returns to an address is one of them.
    pub(crate) fn contain(&self, instruction_pointer: u64) -> bool {
        match self {
            Self::In(code) => code.iter().any(|code| code.contains(&instruction_pointer)),
            Self::Before(returns) => returns.binary_search(&instruction_pointer).is_ok(),
        }
    }

    /// Returns whether there are any: the C library of a static program may have none.
    pub(crate) fn are_known(&self) -> bool {
        !matches!(self, Self::Before(returns) if returns.is_empty())
    }

    /// Searches the code of a mapping of a static program.
    fn search(&mut self, code: &Code<'_>) {
        let Self::Before(returns) = self else { return };
        returns.extend(arch::library_calls(&code.bytes).map(|at| code.mapping.start + at));
    }
}

/// The flag of glibc for a process that has never had a second thread (`__libc_single_threaded`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SingleThreaded {
    /// The one in use is at this address.
    At(u64),
    /// This glibc has none.
    Absent,
    /// The program or its C library could not be read. The library's copy is not in use, and always
    /// 0, if the program has one.
    Unknown,
}

impl SingleThreaded {
    /// Returns the address of the flag, if there is one and it is known.
    pub(crate) fn address(self) -> Option<u64> {
        match self {
            Self::At(address) => Some(address),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// Where signal handlers may return to: each library that calls `rt_sigaction` has such an
/// instruction of its own (up to glibc 2.33, libpthread too).
#[derive(Debug, Default)]
pub(crate) struct Restorers {
    /// The addresses of these instructions.
    pub(crate) known: Vec<u64>,
    /// Code that could not be read: it may have one anywhere.
    pub(crate) unread: Vec<Range<u64>>,
}

impl Restorers {
    /// Searches the code of a mapping.
    fn search(&mut self, Code { mapping, bytes, is_all }: &Code<'_>) {
        let places = memmem::find_iter(bytes, &RESTORE);
        self.known.extend(places.map(|at| mapping.start + at as u64));
        if !*is_all {
            // One may begin in the last bytes that were read.
            let from = mapping.start + bytes.len().saturating_sub(RESTORE.len()) as u64;
            self.unread.push(from..mapping.end);
        }
    }
}

/// The first addresses of the instructions of [`Gadgets`], as far as they were found.
#[derive(Debug, Default)]
struct GadgetSearch([Option<u64>; GADGETS.len()]);

impl GadgetSearch {
    /// Searches some code.
    fn of<'c>(code: impl IntoIterator<Item = &'c Code<'c>>) -> Self {
        let mut search = Self::default();
        for Code { mapping, bytes, .. } in code {
            for (place, gadget) in search.0.iter_mut().zip(&GADGETS) {
                let find = || Some(mapping.start + memmem::find(bytes, gadget.bytes)? as u64);
                *place = place.or_else(find);
            }
        }
        search
    }

    /// Returns the addresses.
    ///
    /// # Errors
    /// Fails if an instruction is missing.
    fn found(&self) -> Result<Gadgets, Refusal> {
        let mut found = [0; GADGETS.len()];
        for ((to, place), gadget) in found.iter_mut().zip(self.0).zip(&GADGETS) {
            *to = place.ok_or(Refusal::Gadget { what: gadget.what })?;
        }
        Ok(found.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Gadget;

    #[test]
    fn a_static_program_without_the_return_from_a_signal_handler_lacks_an_instruction() {
        let maps = lowtide_probe::proc::maps::parse("400000-401000 r-xp 0 fe:01 7 /static\n");
        let found = |gadgets: &[Gadget]| {
            let bytes = gadgets.iter().flat_map(|gadget| gadget.bytes).copied().collect();
            let mapping = &maps.as_ref().unwrap()[0];
            GadgetSearch::of([&Code { mapping, bytes, is_all: true }]).found()
        };
        assert!(found(&GADGETS).is_ok());
        let is_restore = |gadget: &Gadget| gadget.bytes == RESTORE;
        let others: Vec<Gadget> = GADGETS.into_iter().filter(|g| !is_restore(g)).collect();
        let what = "the return from a signal handler";
        assert_eq!(found(&others), Err(Refusal::Gadget { what }));
    }

    #[test]
    fn calls_of_a_static_program_are_of_its_library_if_all_arguments_are_parameters() {
        let maps = lowtide_probe::proc::maps::parse("400000-401000 r-xp 0 fe:01 7 /static\n");
        let mapping = &maps.unwrap()[0];
        // `__syscall_cp_asm` and `__syscall_cp_c` of musl, and a call of two parameters.
        let asm = b"\x4c\x8b\x4c\x24\x10\x4c\x89\x5c\x24\x08\x0f\x05\xc3";
        let c = b"\x4c\x8b\x4c\x24\x08\x48\x89\xca\x0f\x05\xc3";
        let own = b"\xb8\x23\x00\x00\x00\x0f\x05\xc3";
        let space = &[0x90; 32][..];
        let bytes = [&asm[..], space, &c[..], space, &own[..]].concat();
        let mut calls = LibraryCalls::Before(Vec::new());
        calls.search(&Code { mapping, bytes, is_all: true });
        let LibraryCalls::Before(found) = &calls else { panic!("{calls:?}") };
        assert_eq!(*found, [0x40_0000 + 12, 0x40_0000 + 13 + 32 + 10]);
        assert!(calls.contain(0x40_000c) && !calls.contain(0x40_000d));
    }
}
