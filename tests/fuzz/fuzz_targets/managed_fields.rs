//! The target `managed_fields` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::managed::managed_fields::check(bytes));
