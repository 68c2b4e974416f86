#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vpnd_auth::fuzzing::typed_text::run(data));
