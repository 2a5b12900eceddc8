//! The target `resolv_conf` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::dns::resolv_conf::check(bytes));
