//! The target `client_certificate` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::identity::client_certificate::check(bytes));
