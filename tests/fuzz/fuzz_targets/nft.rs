//! The target `nft` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::netfilter::nft::check(bytes));
