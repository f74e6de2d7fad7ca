//! The Python functions in native stacks, of CPython 3.11 and newer.
//!
//! The function of CPython that executes bytecode keeps the address of the next instruction in a
//! register or in its frame of the native stack. So the copies of both show which bytecode was
//! executing. The code objects that contain bytecode usually live as long as the program. They are
//! read after the probes of the process are closed. The result is marked as an estimate, because a
//! code object can have been freed since, and its memory reused for another one.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use lowtide_heap::memory::{ADDRESS_END, MIN_PAGE_BYTES, Memory, word};
use lowtide_heap::pymalloc::objects;
use lowtide_probe::proc::maps::Mapping;

use super::bpf::Hit;
use super::python_frames::{PythonFrames, PythonFunction};
use super::unwind::{Place, StackUnwinder, Walk};

/// Limits of the size of the fields of a code object before its bytecode, in bytes.
const HEADS: Range<u64> = objects::CODE_HEAD_3_11..257;
/// Maximum distance from an instruction to the start of its code object, in bytes.
const MAX_DISTANCE: u64 = 32 << 10;
/// Size of an instruction, and of each of its operands in the bytecode, in bytes.
const UNIT: u64 = 2;
/// Maximum sizes of a name and of a line table, in bytes.
const MAX_TEXT: u64 = 200;
const MAX_LINES: u64 = 32 << 10;
/// Maximum size of the scanned part of a frame, in bytes.
const MAX_FRAME: u64 = 1024;
/// Maximum numbers of pages and of types that are looked up in a window.
const MAX_PAGES: usize = 1 << 13;
const MAX_TYPES: usize = 1 << 16;
/// Maximum number of code objects that overlap a page: the smallest ones have 200 bytes.
const MAX_CODE_OBJECTS: usize = 64;
/// Maximum number of Python functions of a stack, and of all stacks.
const MAX_NAMED: usize = 16;
const MAX_FUNCTIONS: usize = 1 << 14;
/// Unit of the cache, in bytes: a page, or a part of a larger one.
const PAGE: u64 = MIN_PAGE_BYTES;

/// Finds the Python functions of stacks.
#[derive(Debug)]
pub(super) struct PythonFunctions {
    /// The function that executes bytecode: its place in a file, and its size in bytes.
    evaluation: (Place, u64),
    /// The code objects of each page that was looked up in this window; `None` if they are not
    /// known.
    pages: HashMap<u64, Option<Vec<Code>>>,
    /// The size in bytes of the fields of a code object before its bytecode, by the address of a
    /// type; `None` for a type of other objects.
    heads: HashMap<u64, Option<u64>>,
    /// The writable memory of the process in this window, in order.
    writable: Vec<Range<u64>>,
    /// Whether a limit was reached: no further function is named in this window.
    is_exhausted: bool,
    /// All functions that were named so far.
    functions: HashSet<Arc<PythonFunction>>,
}

/// The target of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pointee {
    Code(Code),
    Other,
    /// Memory that could not be read.
    Unknown,
}

/// A code object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Code {
    at: u64,
    /// Size of the fields before the bytecode, in bytes.
    head: u64,
    /// The end of the bytecode.
    end: u64,
}

impl PythonFunctions {
    pub(super) fn new(evaluation: (Place, u64)) -> Self {
        Self {
            evaluation,
            pages: HashMap::new(),
            heads: HashMap::new(),
            writable: Vec::new(),
            is_exhausted: false,
            functions: HashSet::new(),
        }
    }

    /// Removes all cached code objects, which can have been freed. `maps` are the mappings of the
    /// process, in order.
    pub(super) fn begin_window(&mut self, maps: &[Mapping]) {
        self.pages.clear();
        self.heads.clear();
        let writable = maps.iter().filter(|mapping| mapping.permissions.starts_with("rw"));
        self.writable = writable.map(|mapping| mapping.start..mapping.end).collect();
        self.is_exhausted = false;
    }

    /// Returns the Python functions of a stack, each with the number of the native frame that
    /// executes it, from the innermost on.
    pub(super) fn of(
        &mut self,
        memory: &impl Memory,
        unwinder: &mut StackUnwinder,
        hit: &Hit,
        walk: &Walk,
        places: &[Option<Place>],
    ) -> PythonFrames {
        let ((file, begin), bytes) = self.evaluation;
        let is_evaluation = |place: &Place| {
            place.0 == file && place.1.checked_sub(begin).is_some_and(|within| within < bytes)
        };
        let mut found = Vec::new();
        for (number, place) in places.iter().enumerate() {
            if !place.as_ref().is_some_and(is_evaluation) {
                continue;
            }
            if self.is_exhausted || found.len() >= MAX_NAMED {
                break;
            }
            let Some([begin, end]) = walk.stack_pointers.get(number..=number + 1) else { break };
            let frame = (*begin..(*end).min(begin.saturating_add(MAX_FRAME))).step_by(8);
            let frame: Vec<u64> = frame.filter_map(|at| hit.word(at)).collect();
            let registers = unwinder.registers(hit, walk, number).into_iter().flatten();
            let function = self.executing(memory, &registers.collect::<Vec<u64>>(), &frame);
            let function = function.and_then(|function| self.interned(function));
            found.extend(function.map(|function| (number, function)));
        }
        if self.is_exhausted { Vec::new() } else { found }
    }

    fn interned(&mut self, function: PythonFunction) -> Option<Arc<PythonFunction>> {
        if let Some(known) = self.functions.get(&function) {
            return Some(Arc::clone(known));
        }
        if self.functions.len() >= MAX_FUNCTIONS {
            return None;
        }
        let function = Arc::new(function);
        self.functions.insert(Arc::clone(&function));
        Some(function)
    }

    /// Returns the function that is executed, by the registers and the words of the frame that
    /// executes it. The location of the next instruction among them differs from build to build,
    /// and words can remain from functions that were executed before. So there is a result only if
    /// all words that point to bytecode point to that of the same function.
    fn executing(
        &mut self,
        memory: &impl Memory,
        registers: &[u64],
        frame: &[u64],
    ) -> Option<PythonFunction> {
        // `None` if one of them points to memory that could not be read: that could be the executed
        // function.
        let mut pointers = |words: &[u64]| -> Option<Vec<(Code, u64)>> {
            let mut found = Vec::new();
            for at in words {
                match self.pointee(memory, *at) {
                    Pointee::Code(code) => found.push((code, *at)),
                    Pointee::Other => {}
                    Pointee::Unknown => return None,
                }
            }
            Some(found)
        };
        let (mut in_registers, mut in_frame) = (pointers(registers)?, pointers(frame)?);
        for found in [&mut in_registers, &mut in_frame] {
            found.retain(|(code, _)| !code.is_entry(memory));
        }
        let (code, _) = *in_registers.iter().chain(&in_frame).next()?;
        if in_registers.iter().chain(&in_frame).any(|(other, _)| *other != code) {
            return None;
        }
        let nearest = if in_registers.is_empty() { in_frame } else { in_registers };
        // One is often the address of the first instruction.
        let next = nearest.iter().map(|(_, at)| *at).filter(|at| *at > code.at + code.head);
        code.function(memory, &next.collect::<Vec<u64>>())
    }

    /// Returns the code object whose bytecode contains an address.
    fn pointee(&mut self, memory: &impl Memory, at: u64) -> Pointee {
        if !(MAX_DISTANCE..ADDRESS_END).contains(&at) || !at.is_multiple_of(UNIT) {
            return Pointee::Other;
        }
        let page = at - at % PAGE;
        if !self.pages.contains_key(&page) {
            if self.pages.len() >= MAX_PAGES {
                self.is_exhausted = true;
                return Pointee::Unknown;
            }
            let found = self.code_of(memory, page);
            self.pages.insert(page, found);
        }
        let contains = |code: &&Code| (code.at + code.head..code.end).contains(&at);
        match &self.pages[&page] {
            Some(found) => {
                found.iter().find(contains).map_or(Pointee::Other, |c| Pointee::Code(*c))
            }
            None => Pointee::Unknown,
        }
    }

    /// Finds the code objects that overlap a page, by their type and their size; `None` if it
    /// cannot be read.
    fn code_of(&mut self, memory: &impl Memory, page: u64) -> Option<Vec<Code>> {
        let mut begin = page - MAX_DISTANCE;
        let mut bytes = vec![0; (MAX_DISTANCE + PAGE) as usize];
        let length = loop {
            let wanted = (page + PAGE).saturating_sub(begin) as usize;
            let length = memory.read(begin, &mut bytes[..wanted]);
            if begin + length as u64 > page || wanted == 0 {
                break length;
            }
            // A page before it cannot be read.
            let missing = begin + length as u64;
            begin = missing - missing % PAGE + PAGE;
        };
        if begin >= page + PAGE {
            // Unmapped memory contains no code. Memory that is mapped but not resident may contain
            // some.
            let place = self.writable.partition_point(|range| range.end <= page);
            let is_there = self.writable.get(place).is_some_and(|range| range.start <= page);
            return (!is_there).then(Vec::new);
        }
        let words: Vec<u64> = bytes[..length]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let mut found = Vec::new();
        for (place, object) in words.windows(3).enumerate() {
            let (at, kind, units) = (begin + place as u64 * 8, object[1], object[2]);
            let reaches = |head: u64| (at + head).saturating_add(units.saturating_mul(UNIT));
            let is_plausible = (1..=MAX_DISTANCE).contains(&units)
                && kind.is_multiple_of(8)
                && (PAGE..ADDRESS_END).contains(&kind)
                && reaches(HEADS.end) > page;
            if !is_plausible {
                continue;
            }
            let head = match self.heads.get(&kind) {
                Some(known) => *known,
                None if self.heads.len() >= MAX_TYPES => {
                    self.is_exhausted = true;
                    return None;
                }
                None => *self.heads.entry(kind).or_insert(head_of(memory, kind)),
            };
            found.extend(head.map(|head| Code { at, head, end: reaches(head) }));
            if found.len() > MAX_CODE_OBJECTS {
                return None;
            }
        }
        Some(found)
    }
}

impl Code {
    /// Returns whether this is the code by which CPython 3.12 and newer enter a function from
    /// native code. The frame contains an address of it beside those of the function.
    fn is_entry(self, memory: &impl Memory) -> bool {
        let file = self.field(memory, objects::CODE_FILE);
        file.and_then(|at| text(memory, at, self.is_3_11())).as_deref() == Some("<shim>")
    }

    fn is_3_11(self) -> bool {
        self.head == objects::CODE_HEAD_3_11
    }

    /// Returns the function. Its line is included if it is the same for all of these addresses, one
    /// of which is that of the next instruction.
    fn function(self, memory: &impl Memory, next: &[u64]) -> Option<PythonFunction> {
        let name = text(memory, self.field(memory, objects::CODE_QUALIFIED_NAME)?, self.is_3_11())?;
        let file = self.field(memory, objects::CODE_FILE);
        let file = file.and_then(|at| text(memory, at, self.is_3_11()));
        let mut lines = next.iter().map(|at| self.line(memory, *at));
        let line = lines.next().flatten();
        Some(PythonFunction { name, file, line: line.filter(|_| lines.all(|other| other == line)) })
    }

    fn line(self, memory: &impl Memory, next: u64) -> Option<u32> {
        // The address can also point past the operands of the instruction. They have the same line.
        let next = next.checked_sub(self.at + self.head)?.checked_div(UNIT)?;
        let first = objects::code_first_line(self.is_3_11());
        let mut bytes = [0; 4];
        (memory.read(self.at.checked_add(first)?, &mut bytes) == 4).then_some(())?;
        let first = i32::from_le_bytes(bytes);
        let table = self.field(memory, objects::CODE_LINES)?;
        let length = word(memory, table.checked_add(objects::LENGTH)?)?;
        let mut lines = vec![0; usize::try_from(length).ok().filter(|_| length <= MAX_LINES)?];
        let read = memory.read(table.checked_add(objects::BYTES)?, &mut lines);
        let line_of = |unit| line_of(&lines, first, unit);
        let line = line_of(next.saturating_sub(1)).filter(|_| read == lines.len())?;
        // From 3.13 on, the address can also be that of the instruction itself.
        (self.head <= objects::CODE_HEAD_3_12 || line_of(next) == Some(line)).then_some(line)
    }

    fn field(self, memory: &impl Memory, at: u64) -> Option<u64> {
        word(memory, self.at.checked_add(at)?)
    }
}

/// Returns the size in bytes of the fields of a code object before its bytecode, if an address is
/// that of the type of code objects.
fn head_of(memory: &impl Memory, kind: u64) -> Option<u64> {
    let name = word(memory, kind.checked_add(objects::TYPE_NAME)?)?;
    let mut text = [0; 5];
    let is_code = memory.read(name, &mut text) == text.len() && text == *b"code\0";
    is_code.then_some(())?;
    // The type of this type is `type`, like that of all built-in types.
    let above = word(memory, kind.checked_add(objects::TYPE)?)?;
    (word(memory, above.checked_add(objects::TYPE)?)? == above).then_some(())?;
    let head = word(memory, kind.checked_add(objects::TYPE_BASIC_SIZE)?)?;
    HEADS.contains(&head).then_some(head)
}

/// Reads the text of an ASCII string, if it is not too long.
fn text(memory: &impl Memory, at: u64, is_3_11: bool) -> Option<String> {
    let length = word(memory, at.checked_add(objects::LENGTH)?)?;
    let mut bytes = vec![0; length.min(MAX_TEXT) as usize];
    let begin = objects::ASCII_TEXTS[usize::from(is_3_11)];
    let read = memory.read(at.checked_add(begin)?, &mut bytes);
    let is_printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let is_text = read == bytes.len() && !bytes.is_empty() && bytes.iter().all(is_printable);
    let mut text = String::from_utf8(bytes).ok().filter(|_| is_text)?;
    if length > MAX_TEXT {
        text.push('…');
    }
    Some(text)
}

/// Returns the line of a unit of bytecode from CPython's table of locations (Objects/locations.md).
fn line_of(table: &[u8], first: i32, unit: u64) -> Option<u32> {
    let mut line = first;
    let mut at = 0_u64;
    let mut bytes = table.iter().copied().peekable();
    while let Some(head) = bytes.next() {
        let units = u64::from(head & 7) + 1;
        let kind = head >> 3 & 15;
        let delta = match kind {
            // Without a column; long form.
            13 | 14 => signed(&mut bytes)?,
            // Columns of the same line or the next two.
            10..=12 => i32::from(kind) - 10,
            _ => 0,
        };
        line = line.checked_add(delta)?;
        // What remains of the entry: only the first byte of an entry has its highest bit.
        while bytes.next_if(|byte| byte & 0x80 == 0).is_some() {}
        if (at..at + units).contains(&unit) {
            return u32::try_from(line).ok().filter(|_| kind != 15);
        }
        at += units;
    }
    None
}

/// Reads a signed number: six bits per byte, the lowest first, and the sign in the lowest bit.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i32> {
    let mut value = 0_u32;
    for shift in (0..30).step_by(6) {
        let byte = bytes.next()?;
        value |= u32::from(byte & 0x3f) << shift;
        if byte & 0x40 == 0 {
            let half = (value >> 1).cast_signed();
            return Some(if value & 1 == 1 { -half } else { half });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `f.__code__.co_linetable` of CPython 3.11.7 for a function of six lines that starts in line
    /// 2 of its file.
    const TABLE: [u8; 48] = [
        128, 0, 216, 9, 10, 136, 3, 128, 65, 216, 9, 10, 216, 9, 10, 136, 81, 137, 21, 240, 3, 1,
        9, 16, 128, 65, 229, 11, 14, 136, 113, 137, 54, 140, 54, 149, 67, 152, 1, 145, 70, 148, 70,
        137, 63, 208, 4, 26,
    ];

    #[test]
    fn line_numbers_match_those_of_pythons_co_lines() {
        // `f.__code__.co_lines()`: start and end in bytes of the bytecode, and the line.
        let expected = [(0, 2, 2), (2, 8, 3), (8, 10, 4), (10, 18, 5), (18, 22, 4), (22, 84, 6)];
        for unit in 0..42 {
            let line = line_of(&TABLE, 2, unit).unwrap();
            let of = |(begin, end, line): &(u64, u64, u32)| {
                (*begin..*end).contains(&(unit * 2)).then_some(*line)
            };
            let known = expected.iter().find_map(of).unwrap();
            assert_eq!(line, known, "unit {unit}");
        }
        assert_eq!(line_of(&TABLE, 2, 42), None);
    }

    #[test]
    fn a_truncated_or_overflowing_line_table_gives_no_line() {
        assert_eq!(line_of(&[0xf0], 1, 0), None);
        assert_eq!(line_of(&[0xf0, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f], 1, 0), None);
        assert_eq!(line_of(&[0xf0, 0x42, 0x00], i32::MAX, 0), None);
        assert_eq!(line_of(&[], 1, 0), None);
    }
}
