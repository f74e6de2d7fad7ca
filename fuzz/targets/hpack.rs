#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lowtide_load::fuzzing::hpack(bytes));
