//! The target `bearer` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::identity::bearer::check(bytes));
