//! The target `webhook_answer` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::identity::webhook_answer::check(bytes));
