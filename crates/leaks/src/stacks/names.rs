//! Names the frames of stacks: functions by symbols, files and lines by debug information. Inlined
//! functions are not named: a hostile file could nest them without end.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use addr2line::Context;
use gimli::{DwarfSections, EndianArcSlice, RunTimeEndian, SectionId};
use lowtide_model::leaks::LeakFrame;
use lowtide_probe::mapped::MappedFile;
use lowtide_probe::proc::maps::{FileId, Mapping};
use lowtide_probe::program::{MappedObject, Source};
use lowtide_probe::target::Target;

use super::jit_names::JitNames;
use super::unwind::Place;
use crate::files::Image;

/// Maximum size of the debug information of all files, in bytes. Further files are not read.
const MAX_DEBUG: u64 = 256 << 20;
/// Maximum size of the line table of a file, in bytes. A byte can encode a line, which takes 24
/// bytes in memory.
const MAX_LINES: u64 = 16 << 20;

type DebugSlice = EndianArcSlice<RunTimeEndian>;

/// Names the frames of stacks of a process.
pub(crate) struct FrameNamer<'i> {
    image: &'i Image<'i>,
    contexts: RefCell<HashMap<FileId, Option<Context<DebugSlice>>>>,
    left: RefCell<u64>,
    target: &'i Target,
    /// Read for the first frame without a file.
    jit: OnceCell<JitNames>,
}

impl<'i> FrameNamer<'i> {
    pub(crate) fn new(image: &'i Image<'i>, target: &'i Target) -> Self {
        let (contexts, left) = (RefCell::default(), RefCell::new(MAX_DEBUG));
        Self { image, contexts, left, target, jit: OnceCell::new() }
    }

    /// Names the frame of an address. `place` is its place in a file when the stack was taken. The
    /// function is the one that contains the code; the line can belong to a function that was
    /// inlined into it.
    pub(super) fn frame(&self, at: u64, place: Option<Place>) -> LeakFrame {
        let Some(place) = place else {
            let jit = self.jit.get_or_init(|| JitNames::read(self.target));
            let name = jit.name(at).unwrap_or("code without a file");
            return unnamed(name.to_owned());
        };
        let is_there =
            |mapping: &&Mapping| (mapping.file, mapping.offset + (at - mapping.start)) == place;
        let Some(mapping) = self.image.mapping(at).filter(is_there) else {
            return unnamed("code that is no longer mapped".to_owned());
        };
        let module = mapping.name.rsplit('/').next().unwrap_or_default().to_owned();
        let address = self.image.address_in_file(at);
        let function = self.image.symbol(at).map(|symbol| symbol.name);
        let function = function.unwrap_or_else(|| match address {
            Some(address) => format!("{module}+{address:#x}"),
            None => module.clone(),
        });
        let (file, line) = self.line(at, address).unwrap_or_default();
        LeakFrame { function, file, line, module: Some(module), estimated: false }
    }

    /// Reads the source file and the line from the debug information of the file.
    fn line(&self, at: u64, address: Option<u64>) -> Option<(Option<String>, Option<u32>)> {
        let mapping = self.image.mapping(at)?;
        let mut contexts = self.contexts.borrow_mut();
        let context = contexts.entry(mapping.file).or_insert_with(|| {
            let mut left = self.left.borrow_mut();
            self.image.with_mapped_file(at, |file| read(file, &mut left))
        });
        let found = context.as_ref()?.find_location(address?).ok()??;
        Some((found.file.map(str::to_owned), found.line))
    }
}

fn unnamed(function: String) -> LeakFrame {
    LeakFrame { function, file: None, line: None, module: None, estimated: false }
}

/// Reads the debug information of a file, if it has any that is not too large.
fn read(file: &MappedFile, left: &mut u64) -> Option<Context<DebugSlice>> {
    let source = Source::new(file);
    let object = MappedObject::parse(&source)?;
    let size = |addresses: Range<u64>| addresses.end - addresses.start;
    let sections = object.sections().filter(|(name, _)| name.starts_with(b".debug_"));
    let bytes = sections.map(|(_, one)| size(one.addresses)).fold(0, u64::saturating_add);
    let lines = object.section(".debug_line").map_or(0, |one| size(one.addresses));
    if lines == 0 || lines > MAX_LINES {
        return None;
    }
    *left = left.checked_sub(bytes)?;
    let endian = match object.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let section = |id: SectionId| -> Result<DebugSlice, gimli::Error> {
        let found = object.section(id.name()).filter(|section| !section.is_compressed);
        let data = found.and_then(|section| object.bytes(&section));
        Ok(EndianArcSlice::new(Arc::from(data.unwrap_or_default()), endian))
    };
    let sections = DwarfSections::load(section).ok()?;
    let dwarf = sections.borrow(Clone::clone);
    Context::from_dwarf(dwarf).ok()
}
