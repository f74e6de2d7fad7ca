//! The allocators that lowtide knows by name.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An allocator, by its name in reports.
///
/// To add one, add a variant: the compiler then names every place that must decide about it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AllocatorKind {
    /// glibc's ptmalloc.
    Glibc,
    /// musl's mallocng, or its older allocator.
    Musl,
    /// jemalloc.
    Jemalloc,
    /// mimalloc.
    Mimalloc,
    /// gperftools' tcmalloc.
    Gperftools,
    /// Google's newer tcmalloc.
    Tcmalloc,
    /// snmalloc.
    Snmalloc,
    /// rpmalloc.
    Rpmalloc,
    /// LLVM's Scudo.
    Scudo,
    /// Chromium's PartitionAlloc.
    PartitionAlloc,
    /// Another allocator: the name of its library without `.so`, or of the sanitizer that brings
    /// it.
    Other(String),
    /// An unidentified `malloc`.
    Unknown,
}

impl AllocatorKind {
    /// All kinds with a fixed name.
    pub const NAMED: [Self; 10] = [
        Self::Glibc,
        Self::Musl,
        Self::Jemalloc,
        Self::Mimalloc,
        Self::Gperftools,
        Self::Tcmalloc,
        Self::Snmalloc,
        Self::Rpmalloc,
        Self::Scudo,
        Self::PartitionAlloc,
    ];

    /// Returns the name for reports and JSON.
    pub fn name(&self) -> &str {
        match self {
            Self::Glibc => "glibc",
            Self::Musl => "musl",
            Self::Jemalloc => "jemalloc",
            Self::Mimalloc => "mimalloc",
            Self::Gperftools => "gperftools",
            Self::Tcmalloc => "tcmalloc",
            Self::Snmalloc => "snmalloc",
            Self::Rpmalloc => "rpmalloc",
            Self::Scudo => "Scudo",
            Self::PartitionAlloc => "PartitionAlloc",
            Self::Other(name) => name,
            Self::Unknown => "unknown",
        }
    }

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
