//! Runtimes that manage memory of their own, beside `malloc` or without it.

use lowtide_model::runtime_kind::RuntimeKind;

use super::{Detector, LoadedObject, python};
use crate::mapped::MappedFile;
use crate::proc::maps::{FileId, Mapping};
use crate::program::{EmbeddedCode, elf, texts};
use crate::source::ProcessSource;

/// A runtime in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedRuntime {
    /// Kind of the runtime.
    pub kind: RuntimeKind,
    /// Version, if its file contains it: `1.26.8`, `3.11.7` (before 3.11 only `3.9`), `20.20.2`
    /// (Node's), `17.0.15+6`.
    pub version: Option<String>,
    /// The file that contains it: the program or a library.
    pub file: FileId,
    /// The form of its own memory in the address space.
    pub memory: OwnMemory,
    /// Whether it runs, as far as is known. A program can be linked with CPython without using it.
    pub is_started: bool,
}

/// The form of a runtime's own memory in the address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnMemory {
    /// No private memory of its own: all of it comes from `malloc` (CPython with
    /// `PYTHONMALLOC=malloc`), or is shared (PostgreSQL).
    None,
    /// Anonymous mappings of all kinds.
    Any,
    /// The pools of CPython's allocator, which are recognised by their headers.
    Pools,
    /// The pages of Ruby's objects, which are recognised by their headers.
    Slots,
    /// The chunks of PHP's allocator, which are recognised by their headers.
    Chunks,
    /// Blocks that start at a multiple of this number of bytes (V8: pages of 256 KiB,
    /// src/common/globals.h and src/heap; mimalloc inside CPython: segments of 32 MiB).
    Aligned(u64),
    /// Mappings of at least this number of bytes (InnoDB: its buffer pool is divided into chunks of
    /// at least 1 MiB, `innodb_buffer_pool_chunk_size`).
    Large(u64),
}

/// Size of V8's pages, in bytes.
const V8_PAGE: u64 = 256 << 10;
/// Minimum size of a chunk of InnoDB's buffer pool, in bytes.
const INNODB_CHUNK: u64 = 1 << 20;

impl Detector {
    /// Returns the runtimes whose code is loaded, each once.
    pub(super) fn runtimes(
        &mut self,
        source: ProcessSource<'_>,
        maps: &[Mapping],
        objects: &[LoadedObject<'_>],
    ) -> Vec<DetectedRuntime> {
        let mut found: Vec<DetectedRuntime> = Vec::new();
        for object in objects {
            for kind in self.kinds(source, object) {
                if found.iter().all(|r| r.kind != kind) {
                    let version = self.runtime_version(source, kind, object);
                    let memory = memory(source, kind, object);
                    let file = object.mapping.file;
                    let is_started =
                        kind != RuntimeKind::Python || python::is_started(source, maps, object);
                    found.push(DetectedRuntime { kind, version, file, memory, is_started });
                }
            }
        }
        found
    }

    fn runtime_version(
        &mut self,
        source: ProcessSource<'_>,
        kind: RuntimeKind,
        object: &LoadedObject<'_>,
    ) -> Option<String> {
        let texts = object.facts.texts;
        let at = object.facts.version_at;
        let minor = python::minor(object);
        self.version(source, object.mapping, kind.name(), |file| match kind {
            RuntimeKind::Go => go_version(file),
            RuntimeKind::HotSpot => hotspot_version(file, texts?),
            RuntimeKind::Node => node_version(file, texts?),
            RuntimeKind::Python => python::version(file, at).or(minor),
            RuntimeKind::Ruby => ruby_version(file, at?),
            RuntimeKind::Php => texts::number_behind(file, texts?, "X-Powered-By: PHP/"),
            RuntimeKind::Erlang => texts::number_behind(file, texts?, " emulator version "),
            RuntimeKind::Postgres => texts::number_behind(file, texts?, "postgres (PostgreSQL) "),
            RuntimeKind::V8
            | RuntimeKind::InnoDb
            | RuntimeKind::LuaJit
            | RuntimeKind::PyPy
            | RuntimeKind::Mono
            | RuntimeKind::R
            | RuntimeKind::Boehm
            | RuntimeKind::JavaScriptCore => None,
        })
    }

    /// Returns the runtimes whose code a file contains.
    fn kinds(&mut self, source: ProcessSource<'_>, object: &LoadedObject<'_>) -> Vec<RuntimeKind> {
        let evidence = &object.facts.evidence;
        let mut found: Vec<RuntimeKind> = kinds(evidence).collect();
        // Deno and Bun accept Node's extensions, and do not export their engine.
        let has = |code| evidence.contains(&code);
        if has(EmbeddedCode::Node) && !has(EmbeddedCode::V8) {
            found.extend(self.engine_in(source, object));
        }
        found
    }

    /// Returns the JavaScript engine that a file contains, by a text of its constants.
    fn engine_in(
        &mut self,
        source: ProcessSource<'_>,
        object: &LoadedObject<'_>,
    ) -> Option<RuntimeKind> {
        let texts = object.facts.texts?;
        let name = self.version(source, object.mapping, "JavaScript", |file| {
            texts::scan(file, texts, |block| {
                let engine =
                    ENGINES.iter().find(|(_, text)| memchr::memmem::find(block, text).is_some());
                engine.map(|(kind, _)| kind.name().to_owned())
            })
        });
        RuntimeKind::parse(&name?)
    }
}

/// A text in the constants of each JavaScript engine: the name of an option.
const ENGINES: [(RuntimeKind, &[u8]); 2] =
    [(RuntimeKind::V8, b"max_semi_space_size"), (RuntimeKind::JavaScriptCore, b"JSC_useJIT")];

fn kinds(evidence: &[EmbeddedCode]) -> impl Iterator<Item = RuntimeKind> {
    let has_node = evidence.contains(&EmbeddedCode::Node);
    evidence.iter().filter_map(move |e| match e {
        EmbeddedCode::LuaJit => Some(RuntimeKind::LuaJit),
        EmbeddedCode::PyPy => Some(RuntimeKind::PyPy),
        EmbeddedCode::Mono => Some(RuntimeKind::Mono),
        EmbeddedCode::R => Some(RuntimeKind::R),
        EmbeddedCode::Boehm => Some(RuntimeKind::Boehm),
        EmbeddedCode::Go => Some(RuntimeKind::Go),
        EmbeddedCode::HotSpot => Some(RuntimeKind::HotSpot),
        EmbeddedCode::Python => Some(RuntimeKind::Python),
        // Programs that accept Node's extensions without being Node export no V8.
        EmbeddedCode::V8 if has_node => Some(RuntimeKind::Node),
        EmbeddedCode::V8 => Some(RuntimeKind::V8),
        EmbeddedCode::Ruby => Some(RuntimeKind::Ruby),
        EmbeddedCode::Php => Some(RuntimeKind::Php),
        EmbeddedCode::Erlang => Some(RuntimeKind::Erlang),
        EmbeddedCode::InnoDb => Some(RuntimeKind::InnoDb),
        EmbeddedCode::Postgres => Some(RuntimeKind::Postgres),
        EmbeddedCode::Node | EmbeddedCode::Sanitizer(_) => None,
    })
}

fn memory(source: ProcessSource<'_>, kind: RuntimeKind, object: &LoadedObject<'_>) -> OwnMemory {
    match kind {
        RuntimeKind::Go | RuntimeKind::HotSpot | RuntimeKind::Erlang => OwnMemory::Any,
        RuntimeKind::Node | RuntimeKind::V8 => OwnMemory::Aligned(V8_PAGE),
        RuntimeKind::Ruby => OwnMemory::Slots,
        RuntimeKind::Php => OwnMemory::Chunks,
        RuntimeKind::InnoDb => OwnMemory::Large(INNODB_CHUNK),
        RuntimeKind::Postgres
        | RuntimeKind::LuaJit
        | RuntimeKind::PyPy
        | RuntimeKind::Mono
        | RuntimeKind::R
        | RuntimeKind::Boehm
        | RuntimeKind::JavaScriptCore => OwnMemory::None,
        RuntimeKind::Python => python::memory(source, object),
    }
}

/// Reads `ruby_version`, a text such as `3.1.2`.
fn ruby_version(file: &MappedFile, at: u64) -> Option<String> {
    let mut text = [0; 16];
    let length = file.read_at(&mut text, at).ok()?;
    let number = text[..length].split(|b| !b.is_ascii_digit() && *b != b'.').next()?;
    let number = std::str::from_utf8(number).ok()?;
    (!number.is_empty()).then(|| number.to_owned())
}

/// Reads the release from the URLs of its own downloads, or else from a text of its own.
fn node_version(file: &MappedFile, texts: (u64, u64)) -> Option<String> {
    let of_address = texts::number_behind(file, texts, "/node-v");
    of_address.or_else(|| {
        let text = texts::whole_number(file, texts, "v", 2)?;
        Some(text.trim_start_matches('v').to_owned())
    })
}

/// Reads the version from HotSpot's description of itself: `OpenJDK 64-Bit Server VM (…) for
/// linux-amd64 JRE (17.0.15+6-…), built on …`.
fn hotspot_version(file: &MappedFile, texts: (u64, u64)) -> Option<String> {
    const MARK: &[u8] = b" JRE (";
    texts::scan(file, texts, |block| {
        memchr::memmem::find_iter(block, MARK).find_map(|at| {
            let rest = &block[at + MARK.len()..];
            let end = rest.iter().take(80).position(|b| b"-)".contains(b))?;
            let version = std::str::from_utf8(&rest[..end]).ok()?;
            version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
        })
    })
}

/// Reads the record that `go version` uses (debug/buildinfo); before Go 1.18 it contains only
/// addresses.
fn go_version(file: &MappedFile) -> Option<String> {
    let (offset, size) = elf::section(file, ".go.buildinfo")?;
    let mut head = vec![0; size.min(256) as usize];
    file.read_exact_at(&mut head, offset).ok()?;
    go_version_of(&head)
}

fn go_version_of(record: &[u8]) -> Option<String> {
    const INLINE: u8 = 2;
    let is_record = record.starts_with(b"\xff Go buildinf:") && record.get(15)? & INLINE != 0;
    // After a header of 32 bytes: the length (a varint of one byte, since no version is long), then
    // the text.
    let length = usize::from(*record.get(32)?);
    let text = std::str::from_utf8(record.get(33..33 + length)?).ok()?;
    let version = text.split_whitespace().next()?.strip_prefix("go")?;
    (is_record && length < 128).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_go_version_is_read_from_the_build_info() {
        let mut record = b"\xff Go buildinf:\x08\x02".to_vec();
        record.resize(32, 0);
        record.extend(b"\x08go1.26.8\x00");
        assert_eq!(go_version_of(&record).as_deref(), Some("1.26.8"));
        record[15] = 0;
        assert_eq!(go_version_of(&record), None);
        assert_eq!(go_version_of(b"\xff Go buildinf:"), None);
    }

    #[test]
    fn the_hotspot_version_is_read_from_its_version_string() {
        use std::io::Write;
        let text = b"\0OpenJDK 64-Bit Server VM (17.0.15+6-Debian-1) for linux-amd64 JRE (17.0.15+6-Debian-1), built on May\0";
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        let version = hotspot_version(&file.into(), (0, text.len() as u64));
        assert_eq!(version.as_deref(), Some("17.0.15+6"));
    }
}
