//! The target `cluster_info` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::joining::cluster_info::check(bytes));
