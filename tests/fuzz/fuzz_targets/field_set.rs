//! The target `field_set` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::managed::field_set::check(bytes));
