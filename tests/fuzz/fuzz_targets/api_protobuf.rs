//! The target `api_protobuf` as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orch_fuzz::api::api_protobuf::check(bytes));
