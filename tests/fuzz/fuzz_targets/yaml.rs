//! The target `yaml` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::api::yaml::check(bytes));
