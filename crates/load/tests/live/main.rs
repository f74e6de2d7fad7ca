//! HTTP/2 against servers that others wrote.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
mod hyper;
mod nghttpd;
