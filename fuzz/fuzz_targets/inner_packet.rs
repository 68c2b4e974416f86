#![no_main]

#[path = "../bodies/inner_packet.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
