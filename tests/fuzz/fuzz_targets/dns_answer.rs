//! The target `dns_answer` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::dns::dns_answer::check(bytes));
