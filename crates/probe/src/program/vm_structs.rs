//! HotSpot's description of its own variables and types, in the file of its library.
//!
//! The exported variable `gHotSpotVMStructs` points to a table with one entry for each field
//! (`vmStructs.hpp`). The names of the entries are constant, so they are read from the file: the
//! process may never have read them, and a read from outside would make their pages resident. The
//! rest of an entry is filled in by HotSpot when it starts.

use std::collections::HashMap;
use std::ops::Range;

use lowtide_heap::hotspot::Variables;
use object::RelocationFlags;
use object::elf::{R_AARCH64_RELATIVE, R_X86_64_RELATIVE};
use object::{Object, elf};

use super::object::MappedObject;
use super::source::{Cached, Elf};

/// Size of an entry, in bytes (`VMStructEntry`; the same since JDK 6). It begins with pointers to
/// the names of the type and of the field.
const ENTRY: u64 = 48;
const FIELD: u64 = 8;
/// Maximum number of entries (JDK 17 has 788).
const MAX_ENTRIES: u64 = 4096;
/// Maximum length of a relevant name, in bytes.
const MAX_NAME: usize = 48;
/// The types whose fields lowtide uses.
const OWNERS: [&str; 5] = ["Universe", "CollectedHeap", "MemRegion", "CodeCache", "MetaspaceObj"];

/// Finds the entries that lowtide uses. `pointer` is the address of `gHotSpotVMStructs`; all
/// addresses are relative to the load address. Returns `None` if the file does not describe the
/// heap.
pub(super) fn read<'c>(elf: &Elf<'c>, cache: Cached<'c>, pointer: u64) -> Option<Variables> {
    let mut image = Image { elf, cache, pointers: HashMap::new() };
    image.read_pointers(&(pointer..pointer.checked_add(8)?));
    let table = image.word(pointer)?;
    image.read_pointers(&(table..table.checked_add(MAX_ENTRIES * ENTRY)?));
    let mut entries: HashMap<(String, String), u64> = HashMap::new();
    for entry in (table..).step_by(ENTRY as usize).take(MAX_ENTRIES as usize) {
        let Some(owner) = image.text_at(entry) else { break };
        if OWNERS.contains(&owner.as_str()) {
            entries.insert((owner, image.text_at(entry + FIELD)?), entry);
        }
    }
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

/// A file as the loader maps it.
struct Image<'e, 'c> {
    elf: &'e Elf<'c>,
    cache: Cached<'c>,
    /// Pointers that the loader writes into the data, by address.
    pointers: HashMap<u64, u64>,
}

impl Image<'_, '_> {
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
