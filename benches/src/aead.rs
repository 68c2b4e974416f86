//! Sealing and opening one packet.

use std::hint::black_box;
use std::time::{Duration, Instant};

use vpnd_crypto::{Backend, Direction, EpochSecret, LabPermit, OpenKey, SealKey, Suite};

use crate::stage::{Load, Name, Side, Stage, Unit};

const AAD: [u8; 16] = [0x80; 16];
/// Packets that are prepared at once, outside the measured time; so few that they stay in the
/// core's cache.
const PREPARED: usize = 32;

/// The two keys of a lane.
///
/// # Panics
/// If the backend has no such suite.
pub fn keys(suite: Suite, backend: Backend) -> (SealKey, OpenKey) {
    let secret = EpochSecret::new([0x42; 32]);
    let lane_key = secret.lane_key(suite, Direction::ToGateway, 0);
    let permit = Some(LabPermit::insecure());
    let fits = "suite and backend fit";
    (
        SealKey::new(suite, backend, &lane_key, permit).expect(fits),
        OpenKey::new(suite, backend, &lane_key, permit).expect(fits),
    )
}

/// Sealing packets of `len` bytes.
pub fn seal(suite: Suite, backend: Backend, len: usize) -> Stage {
    let (key, _) = keys(suite, backend);
    let mut buf = vec![0; suite.sealed_len(len)];
    let mut counter = 0;
    let name = Name::new("seal", Side::Sender, Unit::Packet).with(suite.name());
    Stage::plain(name, Load { packets: 1, bytes: len }, move || {
        // Measuring takes more packets than a key may seal.
        counter = (counter + 1) % suite.limits().refuse_after;
        let sealed = key.seal_in_place(black_box(counter), &AAD, black_box(&mut buf), len);
        black_box(sealed).expect("the buffer has room");
    })
}

/// Opening packets of `len` bytes.
pub fn open(suite: Suite, backend: Backend, len: usize) -> Stage {
    let (seal_key, key) = keys(suite, backend);
    let mut sealed = vec![0; suite.sealed_len(len)];
    seal_key.seal_in_place(1, &AAD, &mut sealed, len).expect("the buffer has room");
    let mut packets = vec![sealed.clone(); PREPARED];
    let name = Name::new("open", Side::Receiver, Unit::Packet).with(suite.name());
    Stage::timed(name, Load { packets: 1, bytes: len }, move |calls| {
        let mut spent = Duration::ZERO;
        let mut left = calls;
        while left > 0 {
            // Opening consumes the packets.
            for packet in &mut packets {
                packet.copy_from_slice(&sealed);
            }
            let now = left.min(PREPARED as u64);
            let start = Instant::now();
            for packet in &mut packets[..now as usize] {
                let opened = key.open_in_place(black_box(1), &AAD, black_box(packet));
                black_box(opened).expect("the packet is authentic");
            }
            spent += start.elapsed();
            left -= now;
        }
        spent
    })
}
