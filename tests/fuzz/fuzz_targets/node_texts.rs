//! The target `node_texts` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::agent::node_texts::check(bytes));
