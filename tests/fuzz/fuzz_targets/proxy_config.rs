//! The target `proxy_config` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::programs::proxy_config::check(bytes));
