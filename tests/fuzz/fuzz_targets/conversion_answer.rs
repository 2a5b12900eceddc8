//! The target `conversion_answer` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::webhooks::conversion_answer::check(bytes));
