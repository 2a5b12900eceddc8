//! The target `operator_files` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::operators::operator_files::check(bytes));
