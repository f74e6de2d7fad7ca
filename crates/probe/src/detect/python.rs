//! CPython: its version, the allocator that it uses, and whether it was started.

use super::{LoadedObject, OwnMemory, load_address};
use crate::mapped::MappedFile;
use crate::proc::maps::Mapping;
use crate::source::ProcessSource;

/// Size of the segments of the mimalloc inside CPython, in bytes.
const MIMALLOC_SEGMENT: u64 = 32 << 20;

/// Returns whether CPython is initialised, or may be: `false` only if its own answer is no.
pub(super) fn is_started(
    source: ProcessSource<'_>,
    maps: &[Mapping],
    object: &LoadedObject<'_>,
) -> bool {
    answer(source, maps, object).is_none_or(|word| word != 0)
}

/// Returns what `Py_IsInitialized()` would return: all versions return a variable.
fn answer(source: ProcessSource<'_>, maps: &[Mapping], object: &LoadedObject<'_>) -> Option<u32> {
    let function = load_address(maps, object)?.checked_add(object.facts.is_initialized?)?;
    let memory = source.words().ok()?;
    let mut code = [0; 24];
    memory.read_exact_at(&mut code, function).ok()?;
    let (slot, offset) = returned_variable(&code)?;
    let slot = function.checked_add_signed(slot)?;
    let address = match offset {
        None => slot,
        Some(offset) => {
            let mut pointer = [0; 8];
            memory.read_exact_at(&mut pointer, slot).ok()?;
            u64::from_ne_bytes(pointer).checked_add_signed(offset)?
        }
    };
    let mut word = [0; 4];
    memory.read_exact_at(&mut word, address).ok()?;
    Some(u32::from_ne_bytes(word))
}

/// Decodes a function that returns an `int`: its place relative to the function, or that of a
/// pointer, and the offset from the pointer. Only for x86-64.
fn returned_variable(code: &[u8; 24]) -> Option<(i64, Option<i64>)> {
    let relative = |at: usize| {
        let bytes = code.get(at..at + 4)?.try_into().ok()?;
        Some(i64::from(i32::from_le_bytes(bytes)))
    };
    // Optionally `endbr64`.
    let from = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 };
    let returns = |at: usize| code.get(at) == Some(&0xc3);
    let next = |length: usize| i64::try_from(from + length).ok();
    match &code[from..from + 3] {
        // `mov variable(%rip), %eax; ret`
        [0x8b, 0x05, _] if returns(from + 6) => Some((relative(from + 2)? + next(6)?, None)),
        // `mov pointer(%rip), %rax; mov offset(%rax), %eax; ret`
        [0x48, 0x8b, 0x05] => {
            let slot = relative(from + 3)? + next(7)?;
            let offset = match code[from + 7..from + 10] {
                [0x8b, 0x00, 0xc3] => 0,
                [0x8b, 0x40, offset] if returns(from + 10) => i64::from(offset.cast_signed()),
                [0x8b, 0x80, _] if returns(from + 13) => relative(from + 9)?,
                _ => return None,
            };
            Some((slot, Some(offset)))
        }
        _ => None,
    }
}

/// Returns the form of its own memory, which its environment and its build determine.
pub(super) fn memory(source: ProcessSource<'_>, object: &LoadedObject<'_>) -> OwnMemory {
    python_memory(&source.environment(), is_free_threaded(object))
}

/// Returns the memory that `PYTHONMALLOC` selects (Doc/using/cmdline.rst), or else the default of
/// the build.
fn python_memory(environment: &[u8], is_free_threaded: bool) -> OwnMemory {
    let wanted = environment.split(|b| *b == 0).find_map(|v| v.strip_prefix(b"PYTHONMALLOC="));
    match wanted {
        Some(b"malloc" | b"malloc_debug") => OwnMemory::None,
        Some(b"mimalloc" | b"mimalloc_debug") => OwnMemory::Aligned(MIMALLOC_SEGMENT),
        _ if is_free_threaded => OwnMemory::Aligned(MIMALLOC_SEGMENT),
        _ => OwnMemory::Pools,
    }
}

/// Returns the last component of each name of a file.
fn names<'o>(object: &'o LoadedObject<'_>) -> impl Iterator<Item = &'o str> {
    let file = object.mapping.name.rsplit('/').next();
    object.facts.soname.as_deref().into_iter().chain(file)
}

/// Returns the minor version from the name: `3.13` for `libpython3.13t.so.1.0` or `python3.13`.
pub(super) fn minor(object: &LoadedObject<'_>) -> Option<String> {
    names(object).find_map(|name| {
        let (_, rest) = name.split_once("python")?;
        let (major, rest) = rest.split_once('.')?;
        let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let is_number = major.parse::<u32>().is_ok() && !minor.is_empty();
        is_number.then(|| format!("{major}.{minor}"))
    })
}

/// Returns whether it is a build without the global interpreter lock: these have a `t` after the
/// number.
fn is_free_threaded(object: &LoadedObject<'_>) -> bool {
    minor(object).is_some_and(|minor| {
        let marked = format!("python{minor}t");
        names(object).any(|name| name.contains(&marked))
    })
}

/// Reads `Py_Version`, which is `PY_VERSION_HEX`; only 3.11 and later have it.
pub(super) fn version(file: &MappedFile, at: Option<u64>) -> Option<String> {
    let mut word = [0; 4];
    file.read_exact_at(&mut word, at?).ok()?;
    let hex = u32::from_le_bytes(word);
    Some(format!("{}.{}.{}", hex >> 24, hex >> 16 & 0xff, hex >> 8 & 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_that_a_function_returns_is_decoded() {
        let of = |head: &[u8]| {
            let mut code = [0xcc; 24];
            code[..head.len()].copy_from_slice(head);
            returned_variable(&code)
        };
        // Debian's static 3.11, and the libraries of 3.6, 3.7, 3.11 and 3.13.
        assert_eq!(of(&[0x8b, 0x05, 0x7c, 0xa1, 0x63, 0, 0xc3]), Some((0x63_a182, None)));
        let pointer = [0x48, 0x8b, 0x05, 0x19, 0x22, 0x1b, 0];
        let with = |rest: &[u8]| of(&[&pointer, rest].concat());
        assert_eq!(with(&[0x8b, 0x00, 0xc3]), Some((0x1b_2220, Some(0))));
        assert_eq!(with(&[0x8b, 0x40, 0x10, 0xc3]), Some((0x1b_2220, Some(16))));
        assert_eq!(with(&[0x8b, 0x80, 0x58, 2, 0, 0, 0xc3]), Some((0x1b_2220, Some(0x258))));
        let endbr = [&[0xf3, 0x0f, 0x1e, 0xfa][..], &pointer, &[0x8b, 0x00, 0xc3]].concat();
        assert_eq!(of(&endbr), Some((0x1b_2224, Some(0))));
        for other in [&[0x55][..], &[0x8b, 0x05, 1, 0, 0, 0, 0x90]] {
            assert_eq!(of(other), None);
        }
        assert_eq!(with(&[0x8b, 0x40, 0x10, 0x90]), None);
    }

    #[test]
    fn the_allocator_of_python_is_determined_from_its_environment() {
        let memory =
            |environment: &str| python_memory(environment.replace(' ', "\0").as_bytes(), false);
        assert_eq!(memory("A=1 B=2"), OwnMemory::Pools);
        assert_eq!(memory("A=1 PYTHONMALLOC=malloc"), OwnMemory::None);
        assert_eq!(memory("PYTHONMALLOC=pymalloc"), OwnMemory::Pools);
        assert_eq!(memory("PYTHONMALLOC=mimalloc"), OwnMemory::Aligned(32 << 20));
        assert_eq!(python_memory(b"", true), OwnMemory::Aligned(32 << 20));
    }
}
