//! HTTP/2 against third-party servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
mod hyper;
mod nghttpd;
