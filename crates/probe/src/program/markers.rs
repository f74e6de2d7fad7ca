//! Symbols that only one allocator, runtime or sanitizer defines.

use lowtide_model::allocator_kind::AllocatorKind;

/// A runtime or sanitizer whose code is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddedCode {
    /// The Go runtime (its sections `.go.buildinfo`, `.gopclntab`).
    Go,
    /// CPython (`Py_BytesMain`, or `Py_GetBuildInfo`, which is older).
    Python,
    /// V8 (`v8::Isolate::New`).
    V8,
    /// Node.js (`napi_create_object`).
    Node,
    /// The HotSpot virtual machine (`JVM_GetVersionInfo`, `AsyncGetCallTrace`).
    HotSpot,
    /// Ruby (`rb_gc_start`).
    Ruby,
    /// PHP (`zend_mm_gc`).
    Php,
    /// Erlang's virtual machine (`erts_alloc_enomem`).
    Erlang,
    /// A PostgreSQL server (`ShmemInitStruct`).
    Postgres,
    /// A server with InnoDB (`opt_ignore_builtin_innodb` in MariaDB, `innodb_hton_ptr` in MySQL).
    InnoDb,
    /// LuaJIT (`luaJIT_setmode`).
    LuaJit,
    /// PyPy (`pypy_main_startup`).
    PyPy,
    /// Mono (`mono_jit_init`).
    Mono,
    /// R (`Rf_initEmbeddedR`).
    R,
    /// The Boehm-Demers-Weiser collector (`GC_gcollect_and_unmap`).
    Boehm,
    /// A sanitizer's runtime.
    Sanitizer(Sanitizer),
}

/// A tool that is compiled into a program, or run around it, and that replaces its `malloc` to find
/// errors. Its heap has another layout than that of the allocator it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sanitizer {
    /// AddressSanitizer.
    Address,
    /// Hardware-assisted AddressSanitizer.
    HwAddress,
    /// LeakSanitizer alone.
    Leak,
    /// MemorySanitizer.
    Memory,
    /// ThreadSanitizer.
    Thread,
    /// One of Valgrind's tools.
    Valgrind,
}

impl Sanitizer {
    /// Returns its common name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "AddressSanitizer",
            Self::HwAddress => "HWAddressSanitizer",
            Self::Leak => "LeakSanitizer",
            Self::Memory => "MemorySanitizer",
            Self::Thread => "ThreadSanitizer",
            Self::Valgrind => "Valgrind",
        }
    }
}

/// Returns the only allocator that defines a symbol. If a program uses one under a prefix of its
/// own, as Rust does for jemalloc, the prefixed name counts as well.
pub(super) fn allocator_of(name: &[u8]) -> Option<AllocatorKind> {
    let is_of = |kind: &AllocatorKind| {
        kind.facts().own_symbols.iter().any(|symbol| symbol.as_bytes() == name)
    };
    AllocatorKind::NAMED.into_iter().find(is_of)
}

/// Returns the code that a symbol is evidence of.
pub(super) fn embedded_code_of(name: &[u8]) -> Option<EmbeddedCode> {
    Some(match name {
        b"Py_BytesMain" | b"Py_GetBuildInfo" => EmbeddedCode::Python,
        b"_ZN2v87Isolate3NewERKNS0_12CreateParamsE" => EmbeddedCode::V8,
        b"napi_create_object" => EmbeddedCode::Node,
        b"JVM_GetVersionInfo" | b"AsyncGetCallTrace" => EmbeddedCode::HotSpot,
        b"rb_gc_start" => EmbeddedCode::Ruby,
        b"zend_mm_gc" => EmbeddedCode::Php,
        b"erts_alloc_enomem" => EmbeddedCode::Erlang,
        b"ShmemInitStruct" => EmbeddedCode::Postgres,
        b"opt_ignore_builtin_innodb" | b"innodb_hton_ptr" => EmbeddedCode::InnoDb,
        b"luaJIT_setmode" => EmbeddedCode::LuaJit,
        b"pypy_main_startup" => EmbeddedCode::PyPy,
        b"mono_jit_init" => EmbeddedCode::Mono,
        b"Rf_initEmbeddedR" => EmbeddedCode::R,
        b"GC_gcollect_and_unmap" => EmbeddedCode::Boehm,
        b"__asan_init" => EmbeddedCode::Sanitizer(Sanitizer::Address),
        b"__hwasan_init" => EmbeddedCode::Sanitizer(Sanitizer::HwAddress),
        b"__lsan_init" => EmbeddedCode::Sanitizer(Sanitizer::Leak),
        b"__msan_init" => EmbeddedCode::Sanitizer(Sanitizer::Memory),
        b"__tsan_init" => EmbeddedCode::Sanitizer(Sanitizer::Thread),
        _ => return None,
    })
}
