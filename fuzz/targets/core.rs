#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lowtide_probe::fuzzing::core(bytes));
