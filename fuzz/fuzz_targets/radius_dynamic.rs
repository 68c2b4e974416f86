#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vpnd::fuzzing::radius_dynamic::run(data));
