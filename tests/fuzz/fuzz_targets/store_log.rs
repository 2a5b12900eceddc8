//! The target `store_log` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::programs::store_log::check(bytes));
