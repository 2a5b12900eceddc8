//! The target `schema_patch` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::schema::schema_patch::check(bytes));
