//! The allocator of the program.

#[cfg(feature = "mimalloc")]
pub(crate) use mimalloc::MiMalloc as Real;
#[cfg(not(feature = "mimalloc"))]
pub(crate) use std::alloc::System as Real;

/// Its name in the post.
pub(crate) const NAME: &str = if cfg!(feature = "mimalloc") { "MiMalloc" } else { "DefaultAlloc" };
