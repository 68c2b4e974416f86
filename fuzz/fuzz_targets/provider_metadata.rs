#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vpnd_idp::fuzzing::provider_metadata::run(data));
