//! A transfer that gets through any network: numbered pieces over UDP, each sent again until its
//! echo is back.
//!
//! TCP is no measure of a network that loses a fifth of everything: what it does there depends on
//! the kernel's congestion control far more than on a VPN. Here each piece and each echo is
//! compared on its own.
//!
//! Invariants: every piece is compared at both ends; no more than a window of pieces is under way.
//! This module must not know whether there is a VPN.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::namespace::Namespace;

/// Bytes of one piece; with headers it fits into every tunnel.
const PIECE: usize = 1_000;
/// Pieces under way at once.
const WINDOW: usize = 64;
/// Time for an echo before the missing pieces are sent again.
const RESEND_TIMEOUT: Duration = Duration::from_millis(10);

/// Sends `bytes` from one box to another and back. Fails if a byte is different or it takes longer
/// than `limit`.
pub(crate) fn transfer(from: &Namespace, server: &Namespace, to: IpAddr, bytes: usize, limit: Duration) {
    let echo =
        server.within(|| UdpSocket::bind(SocketAddr::new(to, 0))).expect("the address is the server's");
    let address = echo.local_addr().expect("it is bound");
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = from.within(|| UdpSocket::bind(SocketAddr::new(any, 0))).expect("a port is free");
    socket.connect(address).expect("there is a route");
    for end in [&echo, &socket] {
        end.set_read_timeout(Some(RESEND_TIMEOUT)).expect("a timeout can be set");
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| answer(&echo, &done));
        // Whatever happens to the sender, the other end has to stop.
        let _stop = Stop(&done);
        send(&socket, bytes.div_ceil(PIECE), Instant::now() + limit);
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn answer(socket: &UdpSocket, done: &AtomicBool) {
    let mut buffer = [0; 2 * PIECE];
    while !done.load(Ordering::Relaxed) {
        let Ok((length, sender)) = socket.recv_from(&mut buffer) else { continue };
        check(&buffer[..length]);
        // A full socket loses the echo, and the piece comes again.
        let _ = socket.send_to(&buffer[..length], sender);
    }
}

fn send(socket: &UdpSocket, pieces: usize, end: Instant) {
    let mut missing: Vec<usize> = (0..pieces).rev().collect();
    let mut buffer = [0; 2 * PIECE];
    while !missing.is_empty() {
        assert!(Instant::now() < end, "{} of {pieces} pieces are missing still", missing.len());
        let window = missing.split_off(missing.len().saturating_sub(WINDOW));
        for number in &window {
            let _ = socket.send(&piece(*number));
        }
        let mut waiting = window;
        while let (false, Ok(length)) = (waiting.is_empty(), socket.recv(&mut buffer)) {
            let number = check(&buffer[..length]);
            waiting.retain(|other| *other != number);
        }
        missing.extend(waiting);
    }
}

/// The bytes of a piece: its number, then what follows from the number.
fn piece(number: usize) -> Vec<u8> {
    let mut bytes = vec![0; PIECE];
    StdRng::seed_from_u64(number as u64).fill_bytes(&mut bytes);
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    bytes
}

/// The number of a piece that arrived; fails if it has changed on its way.
fn check(bytes: &[u8]) -> usize {
    let number = bytes.first_chunk().map(|first| u64::from_le_bytes(*first) as usize);
    let number = number.expect("a piece begins with its number");
    assert!(bytes == piece(number), "piece {number} has changed on its way");
    number
}
