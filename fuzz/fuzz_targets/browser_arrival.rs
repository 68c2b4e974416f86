#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vpnd_client::fuzzing::browser_arrival::run(data));
