//! Both ends of the burst that `lowtide demo` shows: an HTTP/2 server whose handler sleeps, and a
//! client that has many requests in flight at once. A crate of its own, since nothing else here needs
//! an async runtime.
//!
//! The server is an ordinary program on the system's allocator, so that a preloaded one serves it.
//! The client is the simplest that will do: a task for each request.

pub mod client;
pub mod server;
