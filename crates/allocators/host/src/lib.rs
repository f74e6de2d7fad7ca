//! No code: as a procedural macro, this crate is compiled for the host, and so are its
//! dependencies, the allocators. `lowtide-allocators` depends on it if lowtide is linked with musl:
//! the programs that a static lowtide studies are the host's.
