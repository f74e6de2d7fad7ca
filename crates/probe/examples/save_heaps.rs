//! Creates the saved heaps of `crates/heap/tests/saved/ptmalloc`, one for each glibc:
//! `cargo run -p lowtide-probe --example save_heaps -- DIRECTORY NAME=LIBDIR…`
//!
//! Each is the subject of `tests/heap` with a small heap. It is saved with the statistics of its
//! allocator (`malloc_info`) and the memory that a trim returned to the OS.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../tests/heap/subject.rs"]
mod subject;

use std::io::{Error, Result};
use std::path::{Path, PathBuf};

use lowtide_heap::ptmalloc::{Layout, walk};
use lowtide_heap::saved::MemoryRecorder;
use serde_json::json;
use subject::{Library, Subject};

/// Small heaps with a variety of contents.
const SHAPES: [(&str, u32, u64); 3] =
    [("log_uniform", 2, 6 << 20), ("pieces", 0, 6 << 20), ("fast", 1, 1 << 20)];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || Error::other("usage: save_heaps DIRECTORY NAME=LIBDIR…");
    let directory = PathBuf::from(arguments.next().ok_or_else(usage)?);
    for argument in arguments {
        let (name, library) = argument.split_once('=').ok_or_else(usage)?;
        for shape in SHAPES {
            let name = format!("{name}-{}", shape.0.replace('_', "-"));
            save(&directory, &name, &Library::In(PathBuf::from(library)), shape)?;
        }
    }
    Ok(())
}

fn save(directory: &Path, name: &str, library: &Library, shape: (&str, u32, u64)) -> Result<()> {
    let mut subject = Subject::start(library, shape.0, shape.1, shape.2);
    let memory = subject.memory();
    let recorder = MemoryRecorder::new(&memory);
    let (data, mappings) = subject.places();
    let layout = Layout::find(&recorder, &data).ok_or_else(|| Error::other("no arena"))?;
    walk(&recorder, &layout, &mappings);
    let heap = recorder.save(&data, &mappings).to_bytes();
    let info = subject.info();
    let arenas: Vec<_> = info
        .arenas
        .iter()
        .map(|a| {
            json!({
                "fast_count": a.fast_count, "fast_bytes": a.fast_bytes, "rest_count": a.rest_count,
                "rest_bytes": a.rest_bytes, "system_bytes": a.system_bytes,
            })
        })
        .collect();
    let expected = json!({
        "arenas": arenas, "mmapped_count": info.mmapped_count, "returned_bytes": subject.trim(),
    });
    std::fs::write(directory.join(format!("{name}.heap")), heap)?;
    std::fs::write(directory.join(format!("{name}.json")), format!("{expected:#}\n"))
}
