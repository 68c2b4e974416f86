#![no_main]
#![allow(dead_code, reason = "the simulation's modules have more than this target uses")]

#[path = "../bodies/model.rs"]
mod body;
#[path = "../../crates/proto/tests/sim/channel.rs"]
mod channel;
#[path = "../../crates/proto/tests/sim/device.rs"]
mod device;
#[path = "../../crates/proto/tests/sim/hub.rs"]
mod hub;
#[path = "../../crates/proto/tests/sim/inner.rs"]
mod inner;
#[path = "../../crates/proto/tests/sim/oracle.rs"]
mod oracle;
#[path = "../../crates/proto/tests/sim/path.rs"]
mod path;
#[path = "../../crates/proto/tests/sim/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
