#![no_main]

#[path = "../bodies/control_message.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
