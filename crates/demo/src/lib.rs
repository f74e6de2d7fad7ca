//! The server of the burst that `lowtide demo` shows: HTTP/2, and a handler that sleeps. A crate of
//! its own, since nothing else here needs an async runtime. The burst itself is `lowtide load`'s.
//!
//! The server is an ordinary program on the system's allocator, so that a preloaded one serves it.

pub mod server;
