//! HotSpot's description of its own variables and types, in the file of its library.
//!
//! The exported variable `gHotSpotVMStructs` points to a table with one entry for each field
//! (`vmStructs.hpp`). The names of the entries are constant, so they are read from the file: the
//! process may never have read them, and a read from outside would make their pages resident. The
//! rest of an entry is filled in by HotSpot when it starts.
//!
//! One of these variables is the table of flags (`-XX:…`), whose size of an entry is in a second
//! table (`gHotSpotVMTypes`).

use std::collections::HashMap;
use std::ops::Range;

use lowtide_heap::hotspot::{FlagPlaces, Variables};
use lowtide_heap::memory::Memory;
use object::RelocationFlags;
use object::elf::{R_AARCH64_RELATIVE, R_X86_64_RELATIVE};
use object::{Object, elf};

use super::object::{MappedObject, SymbolTable};
use super::source::{Cached, Elf, Source};
use crate::mapped::MappedFile;

/// Size of an entry, in bytes (`VMStructEntry`; the same since JDK 6). It begins with pointers to
/// the names of the type and of the field.
const ENTRY: u64 = 48;
const FIELD: u64 = 8;
/// Offset of the address of a variable in an entry, in bytes.
const ADDRESS: u64 = 40;
/// Size of an entry of the table of types, and offset of the size of the type in it, in bytes
/// (`VMTypeEntry`).
const TYPE_ENTRY: u64 = 40;
const TYPE_BYTES: u64 = 32;
/// Maximum number of entries (JDK 17 has 788).
const MAX_ENTRIES: u64 = 4096;
/// Maximum length of a relevant name, in bytes.
const MAX_NAME: usize = 48;
/// The types whose fields lowtide uses.
const OWNERS: [&str; 5] = ["Universe", "CollectedHeap", "MemRegion", "CodeCache", "MetaspaceObj"];
/// The type of a flag; the second name is that before JDK 9.
const FLAGS: [&str; 2] = ["JVMFlag", "Flag"];
/// Maximum number of flags (JDK 17 has some 1,400), and size of an entry of their table in bytes.
const MAX_FLAGS: u64 = 8192;
const FLAG_BYTES: Range<u64> = 16..129;

/// Finds the entries that lowtide uses. `pointer` is the address of `gHotSpotVMStructs`; all
/// addresses are relative to the load address. Returns `None` if the file does not describe the
/// heap.
pub(super) fn read<'c>(elf: &Elf<'c>, cache: Cached<'c>, pointer: u64) -> Option<Variables> {
    let mut image = Image { elf, cache, pointers: HashMap::new() };
    let entries = image.entries(pointer, &OWNERS)?;
    let entry = |owner: &str, field: &str| entries.get(&(owner.into(), field.into())).copied();
    let bounds = |owner, low, high| Some([entry(owner, low)?, entry(owner, high)?]);
    Some(Variables {
        collected_heap: entry("Universe", "_collectedHeap")?,
        reserved: entry("CollectedHeap", "_reserved")?,
        start: entry("MemRegion", "_start")?,
        words: entry("MemRegion", "_word_size")?,
        code: bounds("CodeCache", "_low_bound", "_high_bound"),
        archive: bounds("MetaspaceObj", "_shared_metaspace_base", "_shared_metaspace_top"),
    })
}

/// Finds the variables with the values of flags. `memory` is that of the process. `load_address`
/// returns the address at which the file is loaded there, from that of its first segment. HotSpot
/// enters the layout of the table when it starts. The table
/// itself is read from the file, whose pages the process may never have read. Returns `None` if the
/// file does not describe the flags, or if HotSpot has not started.
pub(crate) fn flags(
    file: &MappedFile,
    memory: &impl Memory,
    load_address: impl FnOnce(u64) -> Option<u64>,
    names: &[&str],
) -> Option<HashMap<String, u64>> {
    let source = Source::new(file);
    let parsed = object::File::parse(&source).ok()?;
    let object::File::Elf64(elf) = &parsed else { return None };
    let (mut structs, mut types) = (None, None);
    let object = MappedObject::of(elf, &source);
    let load_address = load_address(object.addresses()?.0)?;
    object.each_symbol(SymbolTable::Dynamic, |name, symbol| {
        match name {
            b"gHotSpotVMStructs" => structs = Some(symbol.address),
            b"gHotSpotVMTypes" => types = Some(symbol.address),
            _ => {}
        }
        structs.is_none() || types.is_none()
    });
    let mut image = Image { elf, cache: &source, pointers: HashMap::new() };
    let entries = image.entries(structs?, &FLAGS)?;
    let entry = |field: &str| {
        FLAGS.iter().find_map(|owner| entries.get(&((*owner).into(), field.into()))).copied()
    };
    let layout = FlagPlaces { name: entry("_name")?, address: entry("_addr")? };
    let layout = layout.loaded_at(load_address)?.offsets(memory)?;
    let bytes = image.bytes_of_type(types?, &FLAGS).filter(|bytes| FLAG_BYTES.contains(bytes))?;
    let variable = entry("flags")?.checked_add(ADDRESS)?;
    let variable = image.word_at(variable)?;
    let table = image.word_at(variable)?;
    image.read_pointers(&(table..table.checked_add(MAX_FLAGS * bytes)?));
    let mut found = HashMap::new();
    for flag in (table..).step_by(bytes as usize).take(MAX_FLAGS as usize) {
        let Some(name) = image.text_at(flag.checked_add(layout.name)?) else { break };
        if names.contains(&name.as_str()) {
            let value = image.word(flag.checked_add(layout.address)?)?;
            found.insert(name, load_address.checked_add(value)?);
        }
    }
    Some(found)
}

/// A file as the loader maps it.
struct Image<'e, 'c> {
    elf: &'e Elf<'c>,
    cache: Cached<'c>,
    /// Pointers that the loader writes into the data, by address.
    pointers: HashMap<u64, u64>,
}

impl Image<'_, '_> {
    /// Returns the addresses of the entries for the fields of some types. `pointer` is the address
    /// of the pointer to the table.
    fn entries(&mut self, pointer: u64, owners: &[&str]) -> Option<HashMap<(String, String), u64>> {
        let table = self.word_at(pointer)?;
        self.read_pointers(&(table..table.checked_add(MAX_ENTRIES * ENTRY)?));
        let mut entries = HashMap::new();
        for entry in (table..).step_by(ENTRY as usize).take(MAX_ENTRIES as usize) {
            let Some(owner) = self.text_at(entry) else { break };
            if owners.contains(&owner.as_str()) {
                entries.insert((owner, self.text_at(entry + FIELD)?), entry);
            }
        }
        Some(entries)
    }

    /// Returns the size of the first of some types that the table of types has, in bytes.
    fn bytes_of_type(&mut self, pointer: u64, types: &[&str]) -> Option<u64> {
        let table = self.word_at(pointer)?;
        self.read_pointers(&(table..table.checked_add(MAX_ENTRIES * TYPE_ENTRY)?));
        for entry in (table..).step_by(TYPE_ENTRY as usize).take(MAX_ENTRIES as usize) {
            if types.contains(&self.text_at(entry)?.as_str()) {
                return self.word(entry + TYPE_BYTES);
            }
        }
        None
    }

    /// Reads a word that the loader may write.
    fn word_at(&mut self, at: u64) -> Option<u64> {
        self.read_pointers(&(at..at.checked_add(8)?));
        self.word(at)
    }

    /// Returns the offset in the file of an address.
    fn offset_of(&self, address: u64) -> Option<u64> {
        MappedObject::of(self.elf, self.cache).offset_of(address)
    }

    /// Reads the pointers that the loader writes into a range: addresses relative to the load
    /// address.
    fn read_pointers(&mut self, range: &Range<u64>) {
        let relative = match self.elf.elf_header().e_machine.get(self.elf.endian()) {
            elf::EM_AARCH64 => R_AARCH64_RELATIVE,
            _ => R_X86_64_RELATIVE,
        };
        let is_relative =
            |flags| matches!(flags, RelocationFlags::Elf { r_type, .. } if r_type == relative);
        let all = self.elf.dynamic_relocations().into_iter().flatten();
        let within = all.filter(|(at, found)| range.contains(at) && is_relative(found.flags()));
        self.pointers.extend(within.map(|(at, found)| (at, found.addend().cast_unsigned())));
    }

    fn word(&self, at: u64) -> Option<u64> {
        // Packed relocations (`DT_RELR`) have the value in the data itself.
        self.pointers.get(&at).copied().or_else(|| {
            let bytes = self.cache.read_once(self.offset_of(at)?, 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        })
    }

    /// Returns the text that a pointer points to, cut off after the maximum length; `None` if it is
    /// null.
    fn text_at(&self, at: u64) -> Option<String> {
        let text = self.word(at).filter(|address| *address != 0)?;
        let mut bytes = self.cache.read_once(self.offset_of(text)?, MAX_NAME)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        bytes.truncate(end);
        String::from_utf8(bytes).ok()
    }
}
