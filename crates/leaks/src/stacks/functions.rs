//! The allocation functions of a process, as places in files.

use lowtide_heap::memory::Memory;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_probe::detect::Detected;
use lowtide_probe::heap;
use lowtide_probe::mapped::{MappedFile, open_mapped};
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::program::{MappedObject, Segment, Source, SymbolTable};

use super::trial::FirstInstruction;
use super::unwind::Place;

/// Functions that return a block. Functions that return it through a pointer (`posix_memalign`) are
/// not included.
const C: [&str; 8] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
];
/// Functions of CPython that allocate objects. For larger objects, they call `malloc`.
const CPYTHON: [&str; 6] = [
    "PyObject_Malloc",
    "PyObject_Calloc",
    "PyObject_Realloc",
    "PyMem_Malloc",
    "PyMem_Calloc",
    "PyMem_Realloc",
];
/// The functions that most programs call most. On kernels that close probes one by one, which takes
/// 0.1 s each, only these are probed: more windows are worth more than rare functions.
const COMMON: [&str; 24] = [
    "malloc",
    "calloc",
    "realloc",
    "je_malloc",
    "je_calloc",
    "je_realloc",
    "_rjem_malloc",
    "_rjem_calloc",
    "_rjem_realloc",
    "_rjem_je_malloc",
    "_rjem_je_calloc",
    "_rjem_je_realloc",
    "mi_malloc",
    "mi_zalloc",
    "mi_calloc",
    "mi_realloc",
    "mi_malloc_aligned",
    "mi_realloc_aligned",
    "tc_malloc",
    "tc_calloc",
    "tc_realloc",
    "PyObject_Malloc",
    "PyMem_Malloc",
    "PyMem_Realloc",
];
/// The function of CPython that executes bytecode.
const EVALUATION: &str = "_PyEval_EvalFrameDefault";

/// A file with allocation functions.
#[derive(Debug)]
pub(super) struct Functions {
    pub(super) file: MappedFile,
    /// The offset of each probe in the file, in bytes: at the first instruction of the function, or
    /// after `endbr64`, which the kernel does not emulate and which does not move the return
    /// address.
    pub(super) offsets: Vec<u64>,
    /// The offsets of the most common functions.
    pub(super) common: Vec<u64>,
    /// The instruction at the first probe, which is that of `malloc` or its equivalent.
    pub(super) instruction: FirstInstruction,
}

/// Finds the allocation functions of a process: those of its allocators, and of CPython. Functions
/// that the process has patched are left out: a probe executes the instruction from the file.
pub(super) fn find(
    pid: u32,
    memory: &impl Memory,
    maps: &[Mapping],
    detected: &Detected,
) -> Vec<Functions> {
    let mut names: Vec<(&Mapping, Vec<String>)> = Vec::new();
    for allocator in detected.allocators() {
        let mapping = heap::library(maps, &allocator.path.to_string_lossy());
        names.extend(mapping.map(|mapping| (mapping, names_of(&allocator.kind))));
    }
    for runtime in detected.runtimes.iter().filter(|one| one.kind == RuntimeKind::Python) {
        let mapping = maps.iter().find(|mapping| mapping.file == runtime.file);
        let wanted = CPYTHON.map(str::to_owned).to_vec();
        names.extend(mapping.map(|mapping| (mapping, wanted)));
    }
    names
        .into_iter()
        .filter_map(|(mapping, names)| {
            let file = open_mapped(pid, mapping).ok()?;
            let found = functions(&file, &names)?;
            let instruction = instruction_at(&file, found.first()?.offset)?.0;
            let probed = |is_wanted: &dyn Fn(&str) -> bool| {
                let wanted = found.iter().filter(|one| is_wanted(&names[one.name]));
                let mut offsets: Vec<u64> = wanted
                    .filter_map(|one| instruction_at(&file, one.offset).map(|(_, at)| at))
                    .filter(|offset| is_unchanged(memory, maps, mapping, &file, *offset))
                    .collect();
                offsets.sort_unstable();
                offsets.dedup();
                offsets
            };
            let common = probed(&|name| COMMON.contains(&name));
            let offsets = probed(&|_| true);
            let common = if common.is_empty() { offsets.clone() } else { common };
            (!offsets.is_empty()).then_some(Functions { file, offsets, common, instruction })
        })
        .collect()
}

/// Returns the place and size of the CPython function that executes bytecode, if the process
/// contains CPython.
pub(super) fn python(pid: u32, maps: &[Mapping], detected: &Detected) -> Option<(Place, u64)> {
    let runtime = detected.runtimes.iter().find(|one| one.kind == RuntimeKind::Python)?;
    let mapping = maps.iter().find(|mapping| mapping.file == runtime.file)?;
    let file = open_mapped(pid, mapping).ok()?;
    let Function { offset, bytes, .. } = *functions(&file, &[EVALUATION.to_owned()])?.first()?;
    Some(((runtime.file, offset), bytes))
}

/// Returns whether the code of a process at an offset in a file equals that of the file. Code that
/// is not resident is unchanged.
pub(super) fn is_unchanged(
    memory: &impl Memory,
    maps: &[Mapping],
    mapping: &Mapping,
    file: &MappedFile,
    offset: u64,
) -> bool {
    let mut of_file = [0; 16];
    let Ok(length) = file.read_at(&mut of_file, offset) else { return false };
    let is_here = |m: &&Mapping| {
        m.file == mapping.file
            && m.permissions.contains('x')
            && (m.offset..m.offset + m.size()).contains(&offset)
    };
    let mut mapped = maps.iter().filter(is_here).peekable();
    mapped.peek().is_some()
        && mapped.all(|m| {
            let mut found = [0; 16];
            let read = memory.read(m.start + (offset - m.offset), &mut found[..length]);
            found[..read.min(length)] == of_file[..read.min(length)]
        })
}

/// Returns the instruction at which a function is probed, and its offset.
fn instruction_at(file: &MappedFile, offset: u64) -> Option<(FirstInstruction, u64)> {
    let mut bytes = [0; 4];
    let mut read = |at: u64| {
        file.read_exact_at(&mut bytes, at).ok()?;
        Some((FirstInstruction::of(bytes), at))
    };
    match read(offset)? {
        (FirstInstruction::EndBranch, _) => read(offset + 4),
        found => Some(found),
    }
}

fn names_of(kind: &AllocatorKind) -> Vec<String> {
    let own = kind.facts().allocation_functions;
    C.iter().chain(own.iter().copied().flatten()).map(|name| (*name).to_owned()).collect()
}

/// A function in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    /// The index of its name in the list of requested names.
    name: usize,
    /// Its offset in the file, and its size, in bytes.
    offset: u64,
    bytes: u64,
}

/// Finds functions in a file, in the order of their names.
fn functions(file: &MappedFile, names: &[String]) -> Option<Vec<Function>> {
    let source = Source::new(file);
    let object = MappedObject::parse(&source)?;
    let code: Vec<Segment> = object.segments().filter(|segment| segment.is_code).collect();
    let mut found: Vec<Function> = Vec::new();
    for table in [SymbolTable::Dynamic, SymbolTable::All] {
        object.each_symbol(table, |name, symbol| {
            let place = names.iter().position(|wanted| wanted.as_bytes() == name);
            if let Some(place) = place.filter(|_| symbol.is_function) {
                let offset = code.iter().find_map(|segment| segment.offset_of(symbol.address));
                let function = |offset| Function { name: place, offset, bytes: symbol.bytes };
                found.extend(offset.map(function));
            }
            true
        });
    }
    found.sort_unstable();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_functions_are_found_in_our_own_c_library() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let maps = lowtide_probe::proc::maps::parse(&maps).unwrap();
        let detected =
            lowtide_probe::detect::Detector::default().detect(std::process::id(), &maps).unwrap();
        let memory = lowtide_probe::memory::ProcessMemory::open(std::process::id()).unwrap();
        let found = find(std::process::id(), &memory, &maps, &detected);
        assert_eq!(found.len(), 1, "{found:?}");
        let offsets = &found[0].offsets;
        assert!(offsets.len() >= 5, "{found:?}");
        assert!(offsets.windows(2).all(|two| two[0] < two[1]), "{found:?}");
    }
}
