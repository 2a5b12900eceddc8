//! The target `path_expressions` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::paths::path_expressions::check(bytes));
