//! The target `schema_document` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::schema::schema_document::check(bytes));
