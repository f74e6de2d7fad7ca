//! The allocators that lowtide knows by name.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Defines the allocators, each with its name.
macro_rules! allocators {
    ($($(#[$doc:meta])* $kind:ident = $name:literal;)*) => {
        /// An allocator, by its name in reports.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum AllocatorKind {
            $($(#[$doc])* $kind,)*
            /// Another allocator: the name of its library without `.so`, or of the sanitizer that
            /// brings it.
            Other(String),
            /// An unidentified `malloc`.
            Unknown,
        }

        impl AllocatorKind {
            /// All kinds with a fixed name.
            pub const NAMED: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// Returns the name for reports and JSON.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$kind => $name,)*
                    Self::Other(name) => name,
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

// To add one, add a row: the compiler then names each place that must decide about it, and the
// tests of this crate and of `lowtide-analysis` those where it needs a row of a table.
allocators! {
    /// glibc's ptmalloc.
    Glibc = "glibc";
    /// musl's mallocng, or its older allocator.
    Musl = "musl";
    /// jemalloc.
    Jemalloc = "jemalloc";
    /// mimalloc.
    Mimalloc = "mimalloc";
    /// gperftools' tcmalloc.
    Gperftools = "gperftools";
    /// Google's newer tcmalloc.
    Tcmalloc = "tcmalloc";
    /// snmalloc.
    Snmalloc = "snmalloc";
    /// rpmalloc.
    Rpmalloc = "rpmalloc";
    /// LLVM's Scudo.
    Scudo = "Scudo";
    /// Chromium's PartitionAlloc.
    PartitionAlloc = "PartitionAlloc";
}

impl AllocatorKind {
    /// Parses a name; an unknown name is that of another allocator.
    pub fn parse(name: &str) -> Self {
        let known = Self::NAMED.into_iter().chain([Self::Unknown]).find(|kind| kind.name() == name);
        known.unwrap_or_else(|| Self::Other(name.to_owned()))
    }
}

impl fmt::Display for AllocatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for AllocatorKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for AllocatorKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::parse(&String::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_parses_to_its_kind() {
        for kind in AllocatorKind::NAMED {
            assert_eq!(AllocatorKind::parse(kind.name()), kind);
        }
        assert_eq!(AllocatorKind::parse("unknown"), AllocatorKind::Unknown);
        assert_eq!(AllocatorKind::parse("libscudo").name(), "libscudo");
    }
}
