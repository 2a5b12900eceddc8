//! The target `custom_rule` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::custom_resources::custom_rule::check(bytes));
