//! The target `certificate_request` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::joining::certificate_request::check(bytes));
