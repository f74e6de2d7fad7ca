//! A C library that counts the bytes that a program frees (`freed.c`), and the counter as seen from
//! outside.
//!
//! A user who wants this count preloads the library. The binary contains it; [`unpack`] writes it
//! to a file. If the process can be read, [`find_counter`] finds the counter, and [`Freed::parse`]
//! reads it.
//!
//! It counts `free` and `realloc`, and so C++'s `operator delete` if that calls `free`. Most
//! allocators for C++ (tcmalloc, mimalloc, some builds of jemalloc) have an `operator delete` of
//! their own, which does not: [`Freed::misses_delete`]. The library does not hook that one. In a
//! program that loads a plugin with allocation operators of its own, such a hook would receive
//! blocks of another allocator.

mod find;
mod freed;

use std::path::{Path, PathBuf};

use lowtide_allocators::{UnpackError, write_library};

pub use find::find_counter;
pub use freed::{FREED_BYTES, Freed, Inactive, STEP_BYTES, TrimError};

/// Environment variable of the program: number of freed bytes (decimal) after which the library
/// calls `malloc_trim(0)`. The call has no time limit.
pub const TRIM_AT: &str = "LOWTIDE_TRIM_AT";

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/freed.so"));

/// Constants that `build.rs` extracts from the header and from the library.
mod numbers {
    #![allow(dead_code, reason = "some are for the C code only")]
    #![allow(missing_docs, reason = "they are documented in freed.h")]
    include!(concat!(env!("OUT_DIR"), "/numbers.rs"));
}

/// Writes the library to a directory, unless it is there already, and returns its path. A suitable
/// directory is [`lowtide_allocators::library_directory`]. Copies must keep the name of the file:
/// [`find_counter`] looks for it.
///
/// # Errors
/// Fails if it cannot be written.
pub fn unpack(directory: &Path) -> Result<PathBuf, UnpackError> {
    write_library(directory, &file_name(), LIBRARY)
}

/// Returns the name of the library's file.
fn file_name() -> String {
    format!("liblowtide-freed-{}.so", numbers::HASH)
}
