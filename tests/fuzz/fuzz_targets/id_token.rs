//! The target `id_token` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::identity::id_token::check(bytes));
