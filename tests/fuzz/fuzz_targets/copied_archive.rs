//! The target `copied_archive` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::archives::copied_archive::check(bytes));
