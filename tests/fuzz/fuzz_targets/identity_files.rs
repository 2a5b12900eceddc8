//! The target `identity_files` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::identity::identity_files::check(bytes));
