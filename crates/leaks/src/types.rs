//! What a block is, from what is in it: without symbols where the language keeps the type of its objects.

use lowtide_heap::memory::Memory;

use crate::files::{Image, demangle};

/// Maximum number of characters of a type's name, and of text that is shown.
const MAX_NAME: usize = 120;
const MAX_TEXT: usize = 24;
/// Minimum number of characters at the beginning of a block for it to be a text.
const MIN_TEXT: usize = 6;
/// Maximum number of bytes of a mangled name.
const MAX_MANGLED: usize = 2048;
/// Words at the beginning of a block in which a pointer to a type is sought.
const WORDS: usize = 5;

/// Returns the type of the block at an address; `None` if it is not recognised. With `with_text`, a text that a block begins
/// with is returned.
pub fn type_of(
    image: &Image<'_>,
    memory: &impl Memory,
    at: u64,
    with_text: bool,
) -> Option<String> {
    let mut bytes = [0; WORDS * 8];
    let length = memory.read(at, &mut bytes);
    let words: Vec<u64> = bytes[..length]
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect();
    let word = |place: usize| words.get(place).copied().unwrap_or(0);
    let found = cpp(image, word(0))
        .map(|name| format!("C++ {name}"))
        // A head of the garbage collector may come first.
        .or_else(|| {
            let python = [word(1), word(3)].into_iter().find_map(|word| python(image, word));
            python.map(|name| format!("Python {name}"))
        })
        .or_else(|| {
            let rust = words.iter().take(4).find_map(|word| rust(image, *word));
            rust.map(|name| format!("Rust {name}"))
        })
        .or_else(|| with_text.then(|| text(&bytes[..length])).flatten());
    found.map(|name| shortened(&name))
}

/// Returns the type whose virtual table is at an address: before the table is a pointer to the description of the type, whose
/// second word is its name (Itanium C++ ABI, section 2.9).
fn cpp(image: &Image<'_>, table: u64) -> Option<String> {
    let is_of_file = |at: u64| image.mapping(at).is_some_and(|mapping| mapping.has_file());
    if !table.is_multiple_of(8) || !is_of_file(table) {
        return None;
    }
    let description = image.word(table.checked_sub(8)?)?;
    if !description.is_multiple_of(8) || !is_of_file(description) {
        return None;
    }
    let name_at = image.word(description.checked_add(8)?)?;
    if !is_of_file(name_at) {
        return None;
    }
    let name = image.text(name_at, MAX_MANGLED)?;
    // A name with internal linkage begins with an asterisk.
    let name = name.trim_start_matches('*');
    let demangled = demangle(&format!("_ZTS{name}"));
    demangled.strip_prefix("typeinfo name for ").map(str::to_owned)
}

/// Returns the name of the Python type at an address: the type of its type is `type`, or derived from it
/// (`PyTypeObject.tp_name` after `ob_refcnt`, `ob_type`, `ob_size`).
fn python(image: &Image<'_>, at: u64) -> Option<String> {
    const TYPE: u64 = 8;
    const NAME: u64 = 24;
    const MAX_NAME: usize = 200;
    if at < 1 << 16 || !at.is_multiple_of(8) {
        return None;
    }
    let mut metatype = image.word(at + TYPE)?;
    let name = |at: u64| image.text(image.word(at.checked_add(NAME)?)?, MAX_NAME);
    for _ in 0..3 {
        if metatype < 1 << 16 || !metatype.is_multiple_of(8) {
            return None;
        }
        let above = image.word(metatype.checked_add(TYPE)?)?;
        // `type` is its own type.
        if above == metatype {
            return (name(metatype)? == "type").then(|| name(at)).flatten();
        }
        metatype = above;
    }
    None
}

/// Returns the Rust type whose table of methods is at an address: its first entry drops a value of the type. The table of a
/// task of tokio begins with the function that polls it.
pub fn rust(image: &Image<'_>, table: u64) -> Option<String> {
    let is_of_file = image.mapping(table).is_some_and(|mapping| mapping.has_file());
    if !table.is_multiple_of(8) || !is_of_file {
        return None;
    }
    let function = image.word(table)?;
    let is_code = image.mapping(function).is_some_and(|m| m.permissions.starts_with("r-x"));
    let symbol = is_code.then(|| image.symbol(function)).flatten().filter(|s| s.offset == 0)?;
    let inner =
        |prefix: &str| symbol.name.strip_prefix(prefix)?.strip_suffix('>').map(str::to_owned);
    inner("core::ptr::drop_in_place<")
        .or_else(|| inner("tokio::runtime::task::raw::poll::<").map(|task| format!("task {task}")))
}

/// Returns the text that bytes begin with.
fn text(bytes: &[u8]) -> Option<String> {
    let length = bytes.iter().take_while(|byte| (0x20..0x7f).contains(*byte)).count();
    let shown = String::from_utf8_lossy(&bytes[..length.min(MAX_TEXT)]).into_owned();
    (length >= MIN_TEXT).then(|| format!("text {shown:?}"))
}

/// Returns a name without its end if it is too long.
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
    fn a_text_is_shown_only_if_it_is_long_enough_and_not_to_its_end() {
        assert_eq!(text(b"user-agent: \0"), Some("text \"user-agent: \"".to_owned()));
        assert_eq!(text(b"abc\0defgh"), None);
        assert_eq!(text(&[b'a'; 40]).unwrap().len(), MAX_TEXT + 7);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shortened(&"ä".repeat(200)).chars().count(), MAX_NAME + 1);
        assert_eq!(shortened("Session"), "Session");
    }
}
