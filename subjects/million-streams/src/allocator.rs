//! Who serves the program's memory.

#[cfg(feature = "mimalloc")]
pub(crate) use mimalloc::MiMalloc as Real;
#[cfg(not(feature = "mimalloc"))]
pub(crate) use std::alloc::System as Real;

/// What the document calls it.
pub(crate) const NAME: &str = if cfg!(feature = "mimalloc") { "MiMalloc" } else { "DefaultAlloc" };
