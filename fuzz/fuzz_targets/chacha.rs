#![no_main]

#[path = "../bodies/chacha.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
