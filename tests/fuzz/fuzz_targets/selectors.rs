//! The target `selectors` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::api::selectors::check(bytes));
