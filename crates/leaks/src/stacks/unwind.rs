//! Finds return addresses in a copy of the top of a stack, by the exception tables of programs and
//! libraries (`.eh_frame`). Frame pointers are used where there is no table, as in JIT-compiled
//! code.

use std::collections::HashMap;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use lowtide_probe::mapped::{MappedFile, open_mapped};
use lowtide_probe::proc::maps::{FileId, Mapping};
use lowtide_probe::program::{MappedObject, Segment, Source};

use super::bpf::{Hit, REGISTERS};
use super::python_frames::PythonFrames;
use super::registers::{self, SavedPlace};

/// Maximum number of frames of a stack.
pub(super) const MAX_FRAMES: usize = 64;
/// Maximum size of the tables of a file, and of the tables of all files, in bytes.
const MAX_TABLES: u64 = 64 << 20;
const MAX_ALL_TABLES: u64 = 192 << 20;

/// Maximum number of calls for which the places of saved registers are cached.
const MAX_SAVED: usize = 1 << 16;

/// A place in a file: its offset in bytes.
pub(super) type Place = (FileId, u64);

/// Frames of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frames {
    /// An address in the calling instruction of each frame, the innermost first.
    pub(super) addresses: Vec<u64>,
    /// The place of each when the stack was taken; `None` for code outside of files.
    pub(super) places: Vec<Option<Place>>,
    /// Python functions, each with the number of the frame that executed it.
    pub(super) python: PythonFrames,
    /// Whether the outermost function was reached.
    pub(super) is_whole: bool,
}

/// An unwound stack.
#[derive(Debug)]
pub(super) struct Walk {
    /// An address in the calling instruction of each frame, from the caller of the allocation
    /// function on.
    pub(super) addresses: Vec<u64>,
    /// The stack pointer of each frame at its call.
    pub(super) stack_pointers: Vec<u64>,
    /// Whether the outermost function was reached.
    pub(super) is_whole: bool,
}

/// Unwinds stacks of a process.
pub(super) struct StackUnwinder {
    pid: u32,
    unwinder: UnwinderX86_64<TableBytes>,
    cache: CacheX86_64,
    files: HashMap<FileId, Option<Arc<Sections>>>,
    /// Mappings of code from files.
    code: Vec<Mapping>,
    /// Places of saved registers, by the address of a call.
    saved: HashMap<u64, [SavedPlace; REGISTERS]>,
    tables_bytes: u64,
}

/// Bytes of a table.
#[derive(Debug, Clone, Default)]
struct TableBytes(Arc<[u8]>);

impl std::ops::Deref for TableBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The parts of a file that unwinding needs.
#[derive(Debug)]
struct Sections {
    /// The segments of code.
    segments: Vec<Segment>,
    eh_frame: Option<(std::ops::Range<u64>, TableBytes)>,
    eh_frame_hdr: Option<(std::ops::Range<u64>, TableBytes)>,
    debug_frame: Option<TableBytes>,
}

impl StackUnwinder {
    /// Creates an unwinder for a process. Call [`StackUnwinder::update`] before the first walk.
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            files: HashMap::new(),
            code: Vec::new(),
            saved: HashMap::new(),
            tables_bytes: 0,
        }
    }

    /// Sets the files that are mapped now. Returns whether they have changed.
    pub(super) fn update(&mut self, maps: &[Mapping]) -> bool {
        let code = maps.iter().filter(|m| m.has_file() && m.permissions.contains('x'));
        if code.clone().eq(&self.code) {
            return false;
        }
        for mapping in self.code.iter().rev() {
            self.unwinder.remove_module(mapping.start);
        }
        self.code = code.clone().cloned().collect();
        self.saved.clear();
        for mapping in code {
            if let Some(module) = self.module(mapping) {
                self.unwinder.add_module(module);
            }
        }
        true
    }

    fn module(&mut self, mapping: &Mapping) -> Option<Module<TableBytes>> {
        let pid = self.pid;
        let left = MAX_ALL_TABLES - self.tables_bytes;
        let mut added = 0;
        let sections = self.files.entry(mapping.file).or_insert_with(|| {
            let sections = Sections::read(&open_mapped(pid, mapping).ok()?, left)?;
            added = sections.bytes();
            Some(Arc::new(sections))
        });
        self.tables_bytes += added;
        let sections = Arc::clone(sections.as_ref()?);
        // The address of the file's start if its first address were 0.
        let base = sections.base_of(mapping)?;
        let (eh_frame_svma, eh_frame) = sections.eh_frame.clone().unzip();
        let (eh_frame_hdr_svma, eh_frame_hdr) = sections.eh_frame_hdr.clone().unzip();
        let info = ExplicitModuleSectionInfo {
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            debug_frame: sections.debug_frame.clone(),
            ..ExplicitModuleSectionInfo::default()
        };
        Some(Module::new(mapping.name.clone(), mapping.start..mapping.end, base, info))
    }

    /// Unwinds a stack from the caller of the allocation function on.
    pub(super) fn walk(&mut self, hit: &Hit) -> Walk {
        let mut read = |at: u64| hit.word(at).ok_or(());
        let mut registers =
            UnwindRegsX86_64::new(hit.instruction, hit.stack_pointer, hit.frame_pointer());
        let mut frame = FrameAddress::from_instruction_pointer(hit.instruction);
        // The first one is the return address of the allocation function, which belongs to the call
        // before it.
        let mut walk = Walk {
            addresses: vec![hit.instruction.wrapping_sub(1)],
            stack_pointers: vec![hit.stack_pointer],
            is_whole: false,
        };
        while walk.addresses.len() < MAX_FRAMES {
            let cache = &mut self.cache;
            match self.unwinder.unwind_frame(frame, &mut registers, cache, &mut read) {
                Ok(Some(address)) => {
                    let Some(next) = FrameAddress::from_return_address(address) else { break };
                    frame = next;
                    walk.addresses.push(frame.address_for_lookup());
                    walk.stack_pointers.push(registers.sp());
                }
                Ok(None) => {
                    walk.is_whole = true;
                    break;
                }
                Err(_) => break,
            }
        }
        walk
    }

    /// Returns the callee-saved registers of a frame at its call; `None` for each that is unknown.
    pub(super) fn registers(
        &mut self,
        hit: &Hit,
        walk: &Walk,
        number: usize,
    ) -> [Option<u64>; REGISTERS] {
        let mut registers = hit.registers.map(Some);
        for (at, end) in walk.addresses.iter().zip(walk.stack_pointers.iter().skip(1)).take(number)
        {
            let saved = self.saved(*at);
            for (register, saved) in registers.iter_mut().zip(saved) {
                match saved {
                    SavedPlace::InRegister => {}
                    SavedPlace::InFrame(distance) => {
                        *register = end.checked_add_signed(distance).and_then(|at| hit.word(at));
                    }
                    SavedPlace::Unknown => *register = None,
                }
            }
        }
        registers
    }

    /// Returns where the function at an address has saved the callee-saved registers.
    fn saved(&mut self, at: u64) -> [SavedPlace; REGISTERS] {
        if let Some(known) = self.saved.get(&at) {
            return *known;
        }
        let found = || {
            let mapping = mapping_of(&self.code, at)?;
            let sections = self.files.get(&mapping.file)?.as_ref()?;
            let address = at.checked_sub(sections.base_of(mapping)?)?;
            let (table, index) = (sections.eh_frame.as_ref()?, sections.eh_frame_hdr.as_ref()?);
            registers::saved((&table.0, &table.1), (&index.0, &index.1), address)
        };
        let saved = found().unwrap_or([SavedPlace::Unknown; REGISTERS]);
        if self.saved.len() < MAX_SAVED {
            self.saved.insert(at, saved);
        }
        saved
    }

    /// Returns the place of each address.
    pub(super) fn places(&self, addresses: &[u64]) -> Vec<Option<Place>> {
        addresses.iter().map(|at| place_of(&self.code, *at)).collect()
    }
}

/// Returns the place in a file that is mapped at an address. `code` are the code mappings, in
/// order.
pub(super) fn place_of(code: &[Mapping], at: u64) -> Option<Place> {
    let mapping = mapping_of(code, at)?;
    Some((mapping.file, mapping.offset + (at - mapping.start)))
}

fn mapping_of(code: &[Mapping], at: u64) -> Option<&Mapping> {
    let mapping = code.get(code.partition_point(|mapping| mapping.end <= at))?;
    let is_code = mapping.has_file() && mapping.permissions.contains('x');
    (is_code && mapping.start <= at).then_some(mapping)
}

impl Sections {
    /// Returns the address of the file's start if its first address were 0. The kernel maps a
    /// segment from the page of its first byte to that of its last, and both pages can also belong
    /// to other segments. So only code segments count for a code mapping.
    fn base_of(&self, mapping: &Mapping) -> Option<u64> {
        let page = rustix::param::page_size() as u64;
        let is_here = |segment: &&Segment| {
            let end = segment.offset.saturating_add(segment.file_bytes);
            segment.offset - segment.offset % page <= mapping.offset && mapping.offset < end
        };
        let segment = self.segments.iter().find(is_here)?;
        let first = mapping.start.wrapping_sub(mapping.offset).wrapping_add(segment.offset);
        Some(first.wrapping_sub(segment.address))
    }

    /// Reads the tables of a file, if they are not too large.
    fn read(file: &MappedFile, left: u64) -> Option<Self> {
        let source = Source::new(file);
        let object = MappedObject::parse(&source)?;
        let mut left = left.min(MAX_TABLES);
        let mut section = |name: &str| {
            let section = object.section(name)?;
            let range = section.addresses.clone();
            left = left.checked_sub(range.end - range.start)?;
            let data = object.bytes(&section).filter(|data| !data.is_empty())?;
            Some((range, TableBytes(data.into())))
        };
        Some(Self {
            eh_frame_hdr: section(".eh_frame_hdr"),
            eh_frame: section(".eh_frame"),
            debug_frame: section(".debug_frame").map(|(_, data)| data),
            segments: object.segments().filter(|segment| segment.is_code).collect(),
        })
    }

    fn bytes(&self) -> u64 {
        let tables = [&self.eh_frame, &self.eh_frame_hdr].into_iter().flatten();
        let of_tables: usize = tables.map(|(_, table)| table.len()).sum();
        (of_tables + self.debug_frame.as_ref().map_or(0, |table| table.len())) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_base_of_our_own_code_is_the_start_of_its_first_mapping() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let maps = lowtide_probe::proc::maps::parse(&maps).unwrap();
        let at = place_of as *const () as u64;
        let mapping = maps.iter().find(|mapping| mapping.contains(at)).unwrap();
        let file = open_mapped(std::process::id(), mapping).unwrap();
        let base = Sections::read(&file, u64::MAX).unwrap().base_of(mapping).unwrap();
        // A position-independent program requests addresses from 0 on.
        let first = maps.iter().find(|one| one.file == mapping.file && one.offset == 0).unwrap();
        assert_eq!(base, first.start);
    }
}
