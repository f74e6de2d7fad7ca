//! Return addresses from a copy of the top of a stack, by the tables that programs and libraries carry for exceptions
//! (`.eh_frame`). Frame pointers are used where there is no table, as in code that was compiled while the program ran.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};
use lowtide_probe::mapped::open_mapped;
use lowtide_probe::proc::maps::{FileId, Mapping};
use lowtide_probe::program::Source;
use object::{Object, ObjectSection, ObjectSegment};

use super::bpf::Hit;

/// Maximum number of frames of a stack.
pub(super) const MAX_FRAMES: usize = 64;
/// Maximum size of the tables of a file, and of all files, in bytes.
const MAX_TABLES: u64 = 64 << 20;
const MAX_ALL_TABLES: u64 = 192 << 20;

/// Frames of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frames {
    /// An address in the calling instruction of each frame, the innermost first.
    pub(super) addresses: Vec<u64>,
    /// Whether the outermost function was reached.
    pub(super) is_whole: bool,
}

/// Unwinds stacks of a process.
pub(super) struct StackUnwinder {
    pid: u32,
    unwinder: UnwinderX86_64<Tables>,
    cache: CacheX86_64,
    files: HashMap<FileId, Option<Arc<Sections>>>,
    /// Where code of files is mapped.
    modules: Vec<(u64, u64, FileId)>,
    tables_bytes: u64,
}

/// Bytes of a table.
#[derive(Debug, Clone, Default)]
struct Tables(Arc<[u8]>);

impl std::ops::Deref for Tables {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// What is needed of a file.
#[derive(Debug)]
struct Sections {
    /// Offset in the file, size and address of each segment.
    segments: Vec<(u64, u64, u64)>,
    eh_frame: Option<(std::ops::Range<u64>, Tables)>,
    eh_frame_hdr: Option<(std::ops::Range<u64>, Tables)>,
    debug_frame: Option<Tables>,
}

impl StackUnwinder {
    /// Unwinds stacks of a process. [`StackUnwinder::update`] must follow.
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            files: HashMap::new(),
            modules: Vec::new(),
            tables_bytes: 0,
        }
    }

    /// Learns which files are mapped now.
    pub(super) fn update(&mut self, maps: &[Mapping]) {
        let code = maps.iter().filter(|m| m.has_file() && m.permissions.contains('x'));
        let now: Vec<&Mapping> = code.collect();
        let modules: Vec<(u64, u64, FileId)> =
            now.iter().map(|m| (m.start, m.end, m.file)).collect();
        if modules == self.modules {
            return;
        }
        for (start, _, _) in std::mem::replace(&mut self.modules, modules) {
            self.unwinder.remove_module(start);
        }
        for mapping in now {
            if let Some(module) = self.module(mapping) {
                self.unwinder.add_module(module);
            }
        }
    }

    fn module(&mut self, mapping: &Mapping) -> Option<Module<Tables>> {
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
        // Where the file would begin if its first address were 0.
        let base = sections.segments.iter().find_map(|(offset, bytes, address)| {
            let is_here = *offset <= mapping.offset + (mapping.end - mapping.start)
                && mapping.offset < offset.checked_add(*bytes)?;
            let first = mapping.start.wrapping_sub(mapping.offset).wrapping_add(*offset);
            is_here.then(|| first.wrapping_sub(*address))
        })?;
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

    /// Returns the frames from the caller of the allocation function on.
    pub(super) fn frames(&mut self, hit: &Hit) -> Frames {
        let mut read = |at: u64| {
            let within = at.checked_sub(hit.stack_pointer).ok_or(())?;
            let place = usize::try_from(within).map_err(|_| ())?;
            let word = hit.stack.get(place..).and_then(|rest| rest.first_chunk()).ok_or(())?;
            Ok(u64::from_le_bytes(*word))
        };
        let registers =
            UnwindRegsX86_64::new(hit.instruction, hit.stack_pointer, hit.frame_pointer);
        let mut frames =
            self.unwinder.iter_frames(hit.instruction, registers, &mut self.cache, &mut read);
        let mut addresses = Vec::new();
        loop {
            match frames.next() {
                // The first one is where the allocation function returns to: that belongs to the call before it.
                Ok(Some(frame)) => addresses.push(match addresses.is_empty() {
                    true => frame.address().wrapping_sub(1),
                    false => frame.address_for_lookup(),
                }),
                Ok(None) => return Frames { addresses, is_whole: true },
                Err(_) => return Frames { addresses, is_whole: false },
            }
            if addresses.len() >= MAX_FRAMES {
                return Frames { addresses, is_whole: false };
            }
        }
    }
}

impl Sections {
    /// Reads the tables of a file, if they are not too large.
    fn read(file: &File, left: u64) -> Option<Self> {
        let source = Source::new(file);
        let object = object::File::parse(&source).ok()?;
        let segments = object.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            (offset, bytes, segment.address())
        });
        let mut left = left.min(MAX_TABLES);
        let mut section = |name: &str| {
            let section = object.section_by_name(name)?;
            let range = section.address()..section.address().checked_add(section.size())?;
            left = left.checked_sub(section.size())?;
            let data = section.data().ok().filter(|data| !data.is_empty())?;
            Some((range, Tables(data.into())))
        };
        Some(Self {
            eh_frame_hdr: section(".eh_frame_hdr"),
            eh_frame: section(".eh_frame"),
            debug_frame: section(".debug_frame").map(|(_, data)| data),
            segments: segments.collect(),
        })
    }

    fn bytes(&self) -> u64 {
        let tables = [&self.eh_frame, &self.eh_frame_hdr].into_iter().flatten();
        let of_tables: usize = tables.map(|(_, table)| table.len()).sum();
        (of_tables + self.debug_frame.as_ref().map_or(0, |table| table.len())) as u64
    }
}
