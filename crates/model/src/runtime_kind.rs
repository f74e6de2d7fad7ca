//! The runtimes that lowtide knows by name.

/// A runtime that manages its own memory, in addition to `malloc` or without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeKind {
    /// Go.
    Go,
    /// HotSpot, the virtual machine of OpenJDK.
    HotSpot,
    /// Node.js, which uses V8's heap.
    Node,
    /// CPython.
    Python,
    /// V8 in another program.
    V8,
    /// Ruby.
    Ruby,
    /// PHP, with the allocator of its Zend engine.
    Php,
    /// Erlang's virtual machine.
    Erlang,
    /// InnoDB, the storage engine of MariaDB and MySQL, with its buffer pool.
    InnoDb,
    /// PostgreSQL, with its buffer pool in shared memory.
    Postgres,
    /// LuaJIT, also inside another program.
    LuaJit,
    /// PyPy.
    PyPy,
    /// Mono, with its collector SGen.
    Mono,
    /// R.
    R,
    /// The collector of Boehm, Demers and Weiser, which other runtimes contain.
    Boehm,
    /// JavaScriptCore, as in Bun.
    JavaScriptCore,
}

impl RuntimeKind {
    /// All runtimes.
    pub const ALL: [Self; 16] = [
        Self::Go,
        Self::HotSpot,
        Self::Node,
        Self::Python,
        Self::V8,
        Self::Ruby,
        Self::Php,
        Self::Erlang,
        Self::InnoDb,
        Self::Postgres,
        Self::LuaJit,
        Self::PyPy,
        Self::Mono,
        Self::R,
        Self::Boehm,
        Self::JavaScriptCore,
    ];

    /// Returns the name for reports and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Go => "Go",
            Self::HotSpot => "HotSpot",
            Self::Node => "Node.js",
            Self::Python => "CPython",
            Self::V8 => "V8",
            Self::Ruby => "Ruby",
            Self::Php => "PHP",
            Self::Erlang => "Erlang",
            Self::InnoDb => "InnoDB",
            Self::Postgres => "PostgreSQL",
            Self::LuaJit => "LuaJIT",
            Self::PyPy => "PyPy",
            Self::Mono => "Mono",
            Self::R => "R",
            Self::Boehm => "Boehm GC",
            Self::JavaScriptCore => "JavaScriptCore",
        }
    }

    /// Parses a name; returns `None` if it is not the name of a runtime.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns whether it uses V8's heap.
    pub fn has_v8(self) -> bool {
        matches!(self, Self::Node | Self::V8)
    }

    /// Returns whether a garbage collector decides when its memory in use is freed.
    pub fn is_collected(self) -> bool {
        match self {
            Self::Go
            | Self::HotSpot
            | Self::Node
            | Self::V8
            | Self::Ruby
            | Self::LuaJit
            | Self::PyPy
            | Self::Mono
            | Self::R
            | Self::Boehm
            | Self::JavaScriptCore => true,
            // CPython and PHP count references; InnoDB and PostgreSQL manage pools. What Erlang
            // holds after a collection are carriers, full or not.
            Self::Python | Self::Php | Self::Erlang | Self::InnoDb | Self::Postgres => false,
        }
    }

    /// Returns whether its collected objects hold memory of `malloc`, as a rule: the contents of
    /// strings and buffers.
    pub fn has_objects_in_malloc(self) -> bool {
        matches!(self, Self::Node | Self::V8 | Self::Ruby | Self::R)
    }

    /// Returns whether lowtide knows the runtime by name only: which memory is its own is not
    /// known.
    pub fn is_named_only(self) -> bool {
        matches!(
            self,
            Self::LuaJit | Self::PyPy | Self::Mono | Self::R | Self::Boehm | Self::JavaScriptCore
        )
    }
}
