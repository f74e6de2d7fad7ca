//! The files that a process has mapped: their bytes where the process itself has not modified them,
//! and names of symbols.
//!
//! Files are opened as [`lowtide_probe::mapped`] opens them: only regular files, and only those
//! that are mapped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::{self, Write};

use lowtide_heap::memory::Memory;
use lowtide_probe::mapped::MappedFile;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::{FileId, Mapping};
use lowtide_probe::program::{MappedObject, Segment, Source, SymbolTable};
use lowtide_probe::source::ProcessSource;

/// Maximum number of symbols of a file that are kept, and maximum size of a name in bytes.
const MAX_SYMBOLS: usize = 1 << 20;
const MAX_NAME: usize = 4096;
/// Maximum number of files that are read, and of symbols of all of them.
const MAX_FILES: usize = 512;
const MAX_ALL_SYMBOLS: usize = 4 << 20;

/// A process, from which types are read.
pub(crate) struct Image<'p> {
    source: ProcessSource<'p>,
    memory: &'p ProcessMemory,
    maps: &'p [Mapping],
    files: RefCell<HashMap<FileId, Option<ObjectFile>>>,
}

/// A program or library.
struct ObjectFile {
    file: MappedFile,
    symbols: Symbols,
}

/// The symbols of a file.
#[derive(Default)]
struct Symbols {
    /// The address that the file requests for its first byte.
    base: u64,
    /// The segments of code.
    code: Vec<Segment>,
    /// Address, size and name offset of each symbol, in order of address.
    all: Vec<(u64, u32, u32)>,
    /// The offset of the names in the file.
    names_at: u64,
}

/// The symbol that contains an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainingSymbol {
    /// Its demangled name.
    pub name: String,
    /// Distance from its start, in bytes.
    pub offset: u64,
}

impl<'p> Image<'p> {
    /// Creates a reader for a process. `maps` are its mappings.
    pub(crate) fn new(
        source: impl Into<ProcessSource<'p>>,
        memory: &'p ProcessMemory,
        maps: &'p [Mapping],
    ) -> Self {
        Self { source: source.into(), memory, maps, files: RefCell::default() }
    }

    /// Returns the mapping that contains an address.
    pub(crate) fn mapping(&self, at: u64) -> Option<&'p Mapping> {
        let place = self.maps.partition_point(|mapping| mapping.end <= at);
        self.maps.get(place).filter(|mapping| mapping.start <= at)
    }

    /// Returns whether an address is in the mapping of a file.
    pub(crate) fn is_of_file(&self, at: u64) -> bool {
        self.mapping(at).is_some_and(Mapping::has_file)
    }

    /// Returns the mapping of a file that contains an address, or whose data continues there.
    pub(crate) fn mapping_of_file(&self, at: u64) -> Option<&'p Mapping> {
        let place = self.maps.partition_point(|mapping| mapping.end <= at);
        let mapping = self.maps.get(place).filter(|mapping| mapping.start <= at)?;
        if mapping.has_file() {
            return Some(mapping);
        }
        let before = self.maps.get(place.checked_sub(1)?)?;
        let follows = mapping.name.is_empty() && before.end == mapping.start;
        (follows && before.has_file() && before.permissions.ends_with('p')).then_some(before)
    }

    /// Reads from an address on. Returns the number of bytes that were read.
    fn read(&self, at: u64, bytes: &mut [u8]) -> usize {
        let length = self.memory.read(at, bytes);
        if length == bytes.len() {
            return length;
        }
        // The page is not resident: the program has not written to it, so its content is that of
        // the file.
        let Some(mapping) = self.mapping(at).filter(|mapping| mapping.has_file()) else {
            return length;
        };
        let within = ((mapping.end - at) as usize).min(bytes.len());
        let offset = mapping.offset + (at - mapping.start);
        let read = self
            .with_file(mapping, |object| object.file.read_at(&mut bytes[..within], offset).ok());
        read.unwrap_or(length)
    }

    /// Reads a word.
    pub(crate) fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(at, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }

    /// Reads a text of printable ASCII characters that ends with a zero byte, and has at most
    /// `most` bytes.
    pub(crate) fn text(&self, at: u64, most: usize) -> Option<String> {
        let mut bytes = vec![0; most + 1];
        let length = self.read(at, &mut bytes);
        let end = bytes[..length].iter().position(|byte| *byte == 0)?;
        let text = &bytes[..end];
        let is_printable = !text.is_empty() && text.iter().all(|byte| (0x20..0x7f).contains(byte));
        is_printable.then(|| String::from_utf8_lossy(text).into_owned())
    }

    /// Returns the address that a file requests for the bytes at an address. Debug information
    /// names code by it.
    pub(crate) fn address_in_file(&self, at: u64) -> Option<u64> {
        let mapping = self.mapping_of_file(at)?;
        if mapping.permissions.contains('x') && mapping.contains(at) {
            // Code may be mapped apart from the rest of its file, like that of V8's builtins.
            let offset = mapping.offset + (at - mapping.start);
            return self.with_file(mapping, |object| {
                object.symbols.code.iter().find_map(|segment| segment.address_of(offset))
            });
        }
        // The file may also be mapped as data elsewhere.
        let is_first =
            |m: &&Mapping| m.file == mapping.file && m.offset == 0 && m.start <= mapping.start;
        let start = self.maps.iter().rfind(is_first)?.start;
        self.with_file(mapping, |object| at.checked_sub(start)?.checked_add(object.symbols.base))
    }

    /// Passes the file that is mapped at an address to `then`.
    pub(crate) fn with_mapped_file<T>(
        &self,
        at: u64,
        then: impl FnOnce(&MappedFile) -> Option<T>,
    ) -> Option<T> {
        self.with_file(self.mapping_of_file(at)?, |object| then(&object.file))
    }

    /// Returns the symbol that contains an address.
    pub(crate) fn symbol(&self, at: u64) -> Option<ContainingSymbol> {
        let mapping = self.mapping_of_file(at)?;
        let address = self.address_in_file(at)?;
        self.with_file(mapping, |object| {
            let place = object.symbols.all.partition_point(|(symbol, _, _)| *symbol <= address);
            let (symbol, size, name) = *object.symbols.all.get(place.checked_sub(1)?)?;
            let offset = address - symbol;
            if offset >= u64::from(size.max(1)) {
                return None;
            }
            let name_at = object.symbols.names_at.checked_add(name.into())?;
            let mut bytes = vec![0; MAX_NAME];
            let length = object.file.read_at(&mut bytes, name_at).ok()?;
            let end = bytes[..length].iter().position(|byte| *byte == 0)?;
            let name = demangle(&String::from_utf8_lossy(&bytes[..end]));
            Some(ContainingSymbol { name, offset })
        })
    }

    fn with_file<T>(
        &self,
        mapping: &Mapping,
        then: impl FnOnce(&ObjectFile) -> Option<T>,
    ) -> Option<T> {
        let mut files = self.files.borrow_mut();
        if files.len() >= MAX_FILES && !files.contains_key(&mapping.file) {
            return None;
        }
        let source = self.source;
        let known: usize = files.values().flatten().map(|file| file.symbols.all.len()).sum();
        let open = || {
            let mut object = source.open(mapping).ok().and_then(ObjectFile::read)?;
            if known + object.symbols.all.len() > MAX_ALL_SYMBOLS {
                object.symbols = Symbols::default();
            }
            Some(object)
        };
        then(files.entry(mapping.file).or_insert_with(open).as_ref()?)
    }
}

impl ObjectFile {
    fn read(file: MappedFile) -> Option<Self> {
        let symbols = Symbols::read(&file).unwrap_or_default();
        Some(Self { file, symbols })
    }
}

impl Symbols {
    /// Reads the symbols of a file.
    fn read(file: &MappedFile) -> Option<Self> {
        let source = Source::new(file);
        let object = MappedObject::parse(&source)?;
        let first = object.segments().next()?;
        let base = first.address.checked_sub(first.offset)?;
        let code = object.segments().filter(|segment| segment.is_code).collect();
        let (symbols, names_at) = [SymbolTable::All, SymbolTable::Dynamic]
            .into_iter()
            .find_map(|table| object.symbols(table, MAX_SYMBOLS))?;
        let mut all: Vec<(u64, u32, u32)> = symbols
            .iter()
            .filter(|symbol| symbol.is_function || symbol.is_variable)
            .map(|symbol| {
                let size = u32::try_from(symbol.bytes).unwrap_or(u32::MAX);
                (symbol.address, size, symbol.name_at)
            })
            .collect();
        all.sort_unstable_by_key(|(address, size, _)| (*address, *size));
        Some(Self { base, code, all, names_at })
    }
}

/// Returns a demangled name: Rust's without the hash at its end, C++'s with its parameters.
pub(crate) fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let mut written = BoundedText(String::new());
        return match write!(written, "{rust:#}") {
            Ok(()) => written.0,
            Err(_) => name.to_owned(),
        };
    }
    demangle_cpp(name).unwrap_or_else(|| name.to_owned())
}

/// Returns a demangled C++ name. Deeply nested names would take long, and are left mangled.
fn demangle_cpp(name: &str) -> Option<String> {
    if name.len() > MAX_NAME || !name.starts_with("_Z") {
        return None;
    }
    let limits = cpp_demangle::ParseOptions::default().recursion_limit(64);
    let symbol = cpp_demangle::Symbol::new_with_options(name, &limits).ok()?;
    let options = cpp_demangle::DemangleOptions::default().recursion_limit(64);
    let mut written = BoundedText(String::new());
    symbol.structured_demangle(&mut written, &options).ok()?;
    Some(written.0)
}

/// A text of limited length: a short mangled name may stand for a very long one.
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(text);
        if self.0.len() > MAX_NAME { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpp_and_rust_names_are_demangled() {
        assert_eq!(demangle("_ZTS7Session"), "typeinfo name for Session");
        assert_eq!(
            demangle(
                "_ZN4core3ptr42drop_in_place$LT$alloc..string..String$GT$17h0123456789abcdefE"
            ),
            "core::ptr::drop_in_place<alloc::string::String>"
        );
        assert_eq!(demangle("main"), "main");
    }

    #[test]
    fn addresses_in_our_own_code_and_data_resolve_to_symbols() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let maps = lowtide_probe::proc::maps::parse(&maps).unwrap();
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let image = Image::new(std::process::id(), &memory, &maps);
        static TABLE: [u64; 64] = [7; 64];
        let symbol = image.symbol(demangle as *const () as u64).unwrap();
        assert_eq!((symbol.name.as_str(), symbol.offset), ("lowtide_leaks::files::demangle", 0));
        let symbol = image.symbol(std::hint::black_box(&TABLE).as_ptr() as u64 + 16).unwrap();
        assert!(symbol.name.ends_with("TABLE") && symbol.offset == 16, "{symbol:?}");
        assert_eq!(image.word(TABLE.as_ptr() as u64), Some(7));
    }
}
