#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vpnd_idp::fuzzing::jwt::run(data));
