//! The target `server_side_apply` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::managed::server_side_apply::check(bytes));
