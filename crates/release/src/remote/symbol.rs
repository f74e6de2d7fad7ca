//! Where a name of a library is in a process.

use std::fs::File;

use lowtide_probe::allocator::open_mapped;
use lowtide_probe::proc::maps::Mapping;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::read::{Object, ObjectSymbol, ReadCache};

/// The address of a name that a file defines for others; `None` where it does not.
pub(crate) fn address(pid: u32, maps: &[Mapping], file: &Mapping, name: &str) -> Option<u64> {
    let (first, value) = defined(open_mapped(pid, file).ok()?, name)?;
    // The loader puts the page of the first segment where the file is first mapped.
    let base = maps.iter().find(|m| m.file == file.file && m.offset == 0)?.start;
    base.checked_add(value.checked_sub(first)?)
}

/// The address of a name in its file, and where the file's first segment begins.
fn defined(file: File, name: &str) -> Option<(u64, u64)> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<object::Endianness, _>::parse(&cache).ok()?;
    let endian = elf.endian();
    let headers = elf.elf_header().program_headers(endian, &cache).ok()?;
    let loads = headers.iter().filter(|h| h.p_type(endian) == object::elf::PT_LOAD);
    let first = loads.map(|h| h.p_vaddr(endian)).min()?;
    let mut symbols = elf.dynamic_symbols().chain(elf.symbols());
    let symbol = symbols.find(|s| s.is_definition() && s.name() == Ok(name))?;
    Some((first - first % 4096, symbol.address()))
}
