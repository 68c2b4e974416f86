//! Against a socket of the machine's own, which keeps packets apart as a TUN device does.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;

use super::*;

/// Both ends of a connection; the second does not wait.
fn pair() -> (UnixDatagram, UnixDatagram) {
    let (one, other) = UnixDatagram::pair().unwrap();
    socket2::SockRef::from(&one).set_send_buffer_size(4 << 20).unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

fn received(socket: &UnixDatagram) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 65_536];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())).collect()
}

/// Writes `packets`, each in two parts. Returns how many were taken, and the places of those that
/// failed with their errors.
fn write(writes: &Writes, to: &UnixDatagram, packets: &[Vec<u8>]) -> (usize, Vec<(usize, Option<i32>)>) {
    let parts: Vec<[IoSlice<'_>; 2]> = packets
        .iter()
        .map(|packet| packet.split_at(packet.len() / 2))
        .map(|(front, back)| [IoSlice::new(front), IoSlice::new(back)])
        .collect();
    let all: Vec<&[IoSlice<'_>]> = parts.iter().map(|parts| &parts[..]).collect();
    let mut failed = Vec::new();
    let taken = writes.write(to.as_fd(), &all, |place, error| failed.push((place, error.raw_os_error())));
    (taken, failed)
}

fn packets(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| vec![number as u8; 3 + number]).collect()
}

#[test]
fn all_are_written_in_order_before_the_call_returns() {
    let (writes, (to, from)) = (Writes::new().unwrap(), pair());
    for count in [1, 2, MAX_WRITES] {
        for _ in 0..3 {
            assert_eq!(write(&writes, &to, &packets(count)), (count, vec![]));
            assert_eq!(received(&from), packets(count));
        }
    }
    assert_eq!(write(&writes, &to, &[]), (0, vec![]));
}

#[test]
fn no_more_are_taken_than_have_room() {
    let (writes, (to, from)) = (Writes::new().unwrap(), pair());
    assert_eq!(write(&writes, &to, &packets(MAX_WRITES + 9)), (MAX_WRITES, vec![]));
    assert_eq!(received(&from), packets(MAX_WRITES));
}

#[test]
fn a_failed_write_is_named_and_blocks_no_other() {
    let (writes, (to, from)) = (Writes::new().unwrap(), pair());
    let mut sent = packets(9);
    // Longer than the socket takes at all.
    for bad in [0, 4, 8] {
        sent[bad] = vec![0; 9 << 20];
    }
    let too_long = Some(libc::EMSGSIZE);
    assert_eq!(write(&writes, &to, &sent), (9, vec![(0, too_long), (4, too_long), (8, too_long)]));
    let good: Vec<_> = sent.into_iter().filter(|packet| packet.len() < 100).collect();
    assert_eq!(received(&from), good);
    // No result is left over for the next.
    assert_eq!(write(&writes, &to, &packets(3)), (3, vec![]));
}

#[test]
fn nothing_waits_for_room() {
    let (writes, (to, from)) = (Writes::new().unwrap(), pair());
    to.set_nonblocking(true).unwrap();
    socket2::SockRef::from(&to).set_send_buffer_size(8 << 10).unwrap();
    let (taken, failed) = write(&writes, &to, &packets(MAX_WRITES));
    let got = received(&from).len();
    assert_eq!((taken, got + failed.len()), (MAX_WRITES, MAX_WRITES));
    assert!(got > 0 && !failed.is_empty(), "{got}");
    assert!(failed.iter().all(|(_, error)| *error == Some(libc::EAGAIN)), "{failed:?}");
}
