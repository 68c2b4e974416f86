#![no_main]

#[path = "../bodies/wireguard_initiation.rs"]
mod body;
#[path = "../../crates/wireguard/tests/model/node.rs"]
mod node;
#[path = "../bodies/wireguard_pair.rs"]
mod wireguard_pair;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
