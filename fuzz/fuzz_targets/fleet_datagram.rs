#![no_main]

#[path = "../bodies/fleet_datagram.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
