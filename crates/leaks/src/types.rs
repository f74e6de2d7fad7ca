//! Recognises the types of blocks by their content: without symbols if the language stores the type
//! of its objects.

use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_heap::pymalloc::objects;

use crate::files::{Image, demangle};

/// Maximum number of characters of a type's name, and of displayed text.
const MAX_NAME: usize = 120;
const MAX_TEXT: usize = 24;
/// Minimum number of characters at the start of a block for it to be a text.
const MIN_TEXT: usize = 6;
/// Maximum number of bytes of a mangled name.
const MAX_MANGLED: usize = 2048;
/// The possible places of the pointer to the type of an object of Python, in words: the header of
/// the garbage collector may come before the object, and before it the fields of instances
/// (`_PyObject_HEAD`, 3.11).
pub(crate) const PYTHON_TYPES: [usize; 3] = [1, 3, 5];
/// Number of words at the start of a block that are searched for a pointer to a type.
const WORDS: usize = 6;

/// Returns the type of a block, by its addresses; `None` if it is not recognised. With `with_text`,
/// a block without a known type is described by the text at its start. What follows the block is
/// not read: in a row of small blocks, that is another one.
pub(crate) fn type_of(
    image: &Image<'_>,
    memory: &impl Memory,
    block: &Range<u64>,
    with_text: bool,
) -> Option<String> {
    let mut bytes = [0; WORDS * 8];
    let room = block.end.saturating_sub(block.start).min(bytes.len() as u64) as usize;
    let length = memory.read(block.start, &mut bytes[..room]);
    let words: Vec<u64> = bytes[..length]
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect();
    let word = |place: usize| words.get(place).copied().unwrap_or(0);
    let found = cpp(image, word(0))
        .map(|name| format!("C++ {name}"))
        .or_else(|| {
            let python = PYTHON_TYPES.into_iter().find_map(|place| python(image, word(place)));
            python.map(|name| format!("Python {name}"))
        })
        .or_else(|| {
            let task = words.iter().take(4).find_map(|word| rust_task(image, *word));
            task.map(|task| format!("Rust task {task}"))
        })
        .or_else(|| with_text.then(|| text(&bytes[..length])).flatten());
    found.map(|name| shortened(&name))
}

/// A word that identifies the type of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum TypeWord {
    /// A pointer to a table of functions: of a C++ class, or of a task of tokio.
    Table(u64),
    /// A pointer to a type of Python.
    Python(u64),
}

impl TypeWord {
    /// Returns the type.
    pub(crate) fn name(self, image: &Image<'_>) -> Option<String> {
        let found = match self {
            Self::Table(word) => cpp(image, word)
                .map(|name| format!("C++ {name}"))
                .or_else(|| rust_task(image, word).map(|task| format!("Rust task {task}"))),
            Self::Python(word) => python(image, word).map(|name| format!("Python {name}")),
        };
        found.map(|name| shortened(&name))
    }
}

/// Returns whether a word may be the reference count of an object of Python, rather than a pointer
/// (`ob_refcnt`; from 3.14 on, its upper bits are flags).
pub(crate) fn may_be_count(word: u64) -> bool {
    word != 0 && word >> 32 & 0xffff == 0
}

/// Returns the type whose virtual table is at an address: before the table is a pointer to the type
/// information, whose second word is the name (Itanium C++ ABI, section 2.9).
fn cpp(image: &Image<'_>, table: u64) -> Option<String> {
    if !table.is_multiple_of(8) || !image.is_of_file(table) {
        return None;
    }
    let description = image.word(table.checked_sub(8)?)?;
    if !description.is_multiple_of(8) || !image.is_of_file(description) {
        return None;
    }
    let name_at = image.word(description.checked_add(8)?)?;
    if !image.is_of_file(name_at) {
        return None;
    }
    let name = image.text(name_at, MAX_MANGLED)?;
    // A name with internal linkage starts with an asterisk.
    let name = name.trim_start_matches('*');
    let demangled = demangle(&format!("_ZTS{name}"));
    demangled.strip_prefix("typeinfo name for ").map(str::to_owned)
}

/// Returns the name of the Python type at an address: the type of its type is `type`, or derived
/// from it (`PyTypeObject.tp_name` after `ob_refcnt`, `ob_type`, `ob_size`).
fn python(image: &Image<'_>, at: u64) -> Option<String> {
    const MAX_NAME: usize = 200;
    if at < 1 << 16 || !at.is_multiple_of(8) {
        return None;
    }
    let mut metatype = image.word(at.checked_add(objects::TYPE)?)?;
    let name = |at: u64| image.text(image.word(at.checked_add(objects::TYPE_NAME)?)?, MAX_NAME);
    for _ in 0..3 {
        if metatype < 1 << 16 || !metatype.is_multiple_of(8) {
            return None;
        }
        let above = image.word(metatype.checked_add(objects::TYPE)?)?;
        // `type` is its own type.
        if above == metatype {
            return (name(metatype)? == "type").then(|| name(at)).flatten();
        }
        metatype = above;
    }
    None
}

/// Returns the Rust type whose vtable is at an address: drop function, size, alignment, and the
/// methods of the type. The names of the functions contain the type.
pub(crate) fn rust(image: &Image<'_>, table: u64) -> Option<String> {
    const MAX_SIZE: u64 = 1 << 30;
    const MAX_ALIGNMENT: u64 = 4096;
    let first = function_in(image, table, 0);
    let dropped = first.as_ref().and_then(|name| inner(name, "core::ptr::drop_in_place<"));
    if dropped.is_some() {
        return dropped;
    }
    // A type without drop glue has no function for it.
    if !table.is_multiple_of(8) || !image.is_of_file(table) {
        return None;
    }
    let size = image.word(table.checked_add(8)?)?;
    let alignment = image.word(table.checked_add(16)?)?;
    let is_table = image.word(table)? == 0
        && size <= MAX_SIZE
        && alignment.is_power_of_two()
        && alignment <= MAX_ALIGNMENT;
    is_table
        .then(|| function_in(image, table, 3))
        .flatten()
        .and_then(|name| implementing_type(&name))
}

/// Returns the future of the tokio task whose vtable is at an address: it starts with the function
/// that polls it.
fn rust_task(image: &Image<'_>, table: u64) -> Option<String> {
    inner(&function_in(image, table, 0)?, "tokio::runtime::task::raw::poll::<")
}

/// Returns the name of the function at an index of a table in a file.
fn function_in(image: &Image<'_>, table: u64, place: u64) -> Option<String> {
    if !table.is_multiple_of(8) || !image.is_of_file(table) {
        return None;
    }
    let at = image.word(table.checked_add(8 * place)?)?;
    let is_code = image.mapping(at).is_some_and(|m| m.permissions.starts_with("r-x"));
    let symbol = is_code.then(|| image.symbol(at)).flatten()?;
    (symbol.offset == 0).then_some(symbol.name)
}

/// Returns the text in the angle brackets after a prefix.
fn inner(name: &str, prefix: &str) -> Option<String> {
    Some(name.strip_prefix(prefix)?.strip_suffix('>')?.to_owned())
}

/// Returns the type of a method of a trait: `T` of `<T as Trait>::method`.
fn implementing_type(method: &str) -> Option<String> {
    let rest = method.strip_prefix('<')?;
    let mut depth = 0;
    for (place, letter) in rest.char_indices() {
        match letter {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ' ' if depth == 0 && rest[place..].starts_with(" as ") => {
                return Some(rest[..place].to_owned());
            }
            _ => {}
        }
    }
    None
}

/// Returns the text at the start of some bytes.
fn text(bytes: &[u8]) -> Option<String> {
    let length = bytes.iter().take_while(|byte| (0x20..0x7f).contains(*byte)).count();
    let shown = String::from_utf8_lossy(&bytes[..length.min(MAX_TEXT)]).into_owned();
    (length >= MIN_TEXT).then(|| format!("text {shown:?}"))
}

/// Returns a name, truncated if it is too long.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_shown_only_if_it_is_long_enough_and_is_truncated() {
        assert_eq!(text(b"user-agent: \0"), Some("text \"user-agent: \"".to_owned()));
        assert_eq!(text(b"abc\0defgh"), None);
        assert_eq!(text(&[b'a'; 40]).unwrap().len(), MAX_TEXT + 7);
    }

    #[test]
    fn the_implementing_type_is_extracted_from_a_trait_method_name() {
        let of = |method: &str| implementing_type(method);
        assert_eq!(
            of("<app::Subscription as app::Handler>::run"),
            Some("app::Subscription".into())
        );
        let nested = "<app::Cache<u8, (u8, u8)> as core::fmt::Debug>::fmt";
        assert_eq!(of(nested), Some("app::Cache<u8, (u8, u8)>".into()));
        assert_eq!(of("app::main"), None);
    }

    #[test]
    fn long_names_are_truncated() {
        assert_eq!(shortened(&"ä".repeat(200)).chars().count(), MAX_NAME + 1);
        assert_eq!(shortened("Session"), "Session");
    }
}
