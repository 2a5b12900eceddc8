//! The target `cri_log` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::agent::cri_log::check(bytes));
