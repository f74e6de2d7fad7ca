//! Puts a load on a server and tells what became of it: up to a million requests in flight from one
//! small process.
//!
//! Protocols are pure: bytes in, bytes out, outcomes told ([`protocol::Protocol`]). One loop outside
//! of them owns the sockets and the clock.

pub mod failure;
pub mod h2;
pub mod protocol;
