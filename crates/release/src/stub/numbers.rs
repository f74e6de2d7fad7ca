//! Constants generated from `stub/shared.h`.

#![allow(dead_code)]

include!(concat!(env!("OUT_DIR"), "/numbers.rs"));
