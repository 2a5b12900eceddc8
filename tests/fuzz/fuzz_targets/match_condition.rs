//! The target `match_condition` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::webhooks::match_condition::check(bytes));
