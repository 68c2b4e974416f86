#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vpnd_portal::fuzzing::portal_body::run(data));
