//! The target `client_frames` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::streams::client_frames::check(bytes));
