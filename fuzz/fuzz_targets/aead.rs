#![no_main]

#[path = "../bodies/aead.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
