#![no_main]

#[path = "../bodies/profile.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
