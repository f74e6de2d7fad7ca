//! Names of the frames of stacks: functions, files and lines.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use addr2line::Context;
use gimli::{DwarfSections, EndianArcSlice, RunTimeEndian, SectionId};
use lowtide_model::leaks::LeakFrame;
use lowtide_probe::proc::maps::FileId;
use lowtide_probe::program::Source;
use object::{Object, ObjectSection};

use crate::files::{Image, demangle};

/// Maximum size of the debug information of all files, in bytes. That of further files is not read.
const MAX_DEBUG: u64 = 256 << 20;
/// Maximum number of frames that one address stands for: functions that were inlined.
const MAX_INLINED: usize = 16;

type Slice = EndianArcSlice<RunTimeEndian>;

/// Names the frames of stacks of a process.
pub(super) struct FrameNamer<'i> {
    image: &'i Image<'i>,
    contexts: RefCell<HashMap<FileId, Option<Context<Slice>>>>,
    left: RefCell<u64>,
}

impl<'i> FrameNamer<'i> {
    pub(super) fn new(image: &'i Image<'i>) -> Self {
        Self { image, contexts: RefCell::default(), left: RefCell::new(MAX_DEBUG) }
    }

    /// Returns the frames that an address stands for, the innermost first: functions that were inlined have no address of their
    /// own.
    pub(super) fn frames(&self, at: u64) -> Vec<LeakFrame> {
        let Some(mapping) = self.image.mapping(at) else {
            return vec![unnamed("code that is no longer mapped".to_owned())];
        };
        let module = mapping.name.rsplit('/').next().unwrap_or_default().to_owned();
        if !mapping.has_file() {
            return vec![unnamed("code without a file".to_owned())];
        }
        let symbol = self.image.symbol(at).map(|symbol| symbol.name);
        let address = self.image.address_in_file(at);
        let mut frames = self.lines(at, address).unwrap_or_default();
        if frames.is_empty() {
            frames.push(unnamed(String::new()));
        }
        for frame in &mut frames {
            frame.module = Some(module.clone());
        }
        // The outermost one is the function that the code is in.
        if let Some(last) = frames.last_mut().filter(|last| last.function.is_empty()) {
            last.function = symbol.unwrap_or_else(|| match address {
                Some(address) => format!("{module}+{address:#x}"),
                None => module.clone(),
            });
        }
        frames
    }

    /// Reads the frames from the debug information of the file.
    fn lines(&self, at: u64, address: Option<u64>) -> Option<Vec<LeakFrame>> {
        let mapping = self.image.mapping(at)?;
        let mut contexts = self.contexts.borrow_mut();
        let context = contexts.entry(mapping.file).or_insert_with(|| {
            let mut left = self.left.borrow_mut();
            self.image.with_mapped_file(at, |file| read(file, &mut left))
        });
        let mut found = context.as_ref()?.find_frames(address?).skip_all_loads().ok()?;
        let mut frames = Vec::new();
        while frames.len() < MAX_INLINED
            && let Ok(Some(frame)) = found.next()
        {
            let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let location = frame.location.as_ref();
            frames.push(LeakFrame {
                function: name.map(|name| demangle(&name)).unwrap_or_default(),
                file: location.and_then(|place| place.file).map(str::to_owned),
                line: location.and_then(|place| place.line),
                module: None,
            });
        }
        Some(frames)
    }
}

fn unnamed(function: String) -> LeakFrame {
    LeakFrame { function, file: None, line: None, module: None }
}

/// Reads the debug information of a file, if it has any that is not too large.
fn read(file: &File, left: &mut u64) -> Option<Context<Slice>> {
    let source = Source::new(file);
    let object = object::File::parse(&source).ok()?;
    let sections = object.sections().filter(|s| s.name().is_ok_and(|n| n.starts_with(".debug_")));
    let bytes = sections.map(|section| section.size()).fold(0, u64::saturating_add);
    if bytes == 0 {
        return None;
    }
    *left = left.checked_sub(bytes)?;
    let endian = match object.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let section = |id: SectionId| -> Result<Slice, object::Error> {
        let found = object.section_by_name(id.name());
        // Compressed sections are left out.
        let data = found.and_then(|section| match section.compressed_file_range() {
            Ok(range) if range.format == object::CompressionFormat::None => section.data().ok(),
            _ => None,
        });
        Ok(EndianArcSlice::new(Arc::from(data.unwrap_or_default()), endian))
    };
    let sections = DwarfSections::load(section).ok()?;
    let dwarf = sections.borrow(Clone::clone);
    Context::from_dwarf(dwarf).ok()
}
