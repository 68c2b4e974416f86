use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::content::{Content, verify};
use super::seal::{self, End, Salt};
use super::target::{Disk, Received, serve};
use super::writer::{Wrote, write};
use super::*;
use crate::load::congestion::CongestionControl;

/// A disk in memory that knows which blocks were safe, and can fail.
struct Memory {
    data: Mutex<Vec<u8>>,
    written: AtomicU64,
    safe: AtomicU64,
    /// Syncs before one fails.
    syncs_left: AtomicU64,
}

impl Memory {
    fn new(blocks: &Blocks) -> Self {
        let data = Mutex::new(vec![0; blocks.span_bytes as usize]);
        let (written, safe) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { data, written, safe, syncs_left: AtomicU64::new(u64::MAX) }
    }
}

impl Disk for Memory {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.data.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
        self.written.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.syncs_left.fetch_sub(1, Ordering::SeqCst) == 0 {
            return Err(io::Error::other("worn out"));
        }
        let written = self.written.load(Ordering::SeqCst);
        // Slow, so that an answer that does not wait for it comes first.
        std::thread::sleep(Duration::from_millis(2));
        self.safe.store(written, Ordering::SeqCst);
        Ok(())
    }
}

fn blocks(protection: Protection, block_bytes: u32, count: u64) -> Blocks {
    Blocks {
        secret: Secret::random(),
        protection,
        sealing: Sealing::default(),
        block_bytes,
        span_bytes: count * u64::from(block_bytes),
        congestion: CongestionControl::default(),
        ready_first: false,
    }
}

fn job(blocks: &Blocks, ahead: u32, most_blocks: u64, listener: &TcpListener) -> WriterJob {
    WriterJob {
        blocks: blocks.clone(),
        seed: 3,
        ahead,
        warmup_ms: 0,
        duration_ms: 60_000,
        most_blocks: Some(most_blocks),
        peer: listener.local_addr().unwrap(),
    }
}

fn run(blocks: &Blocks, ahead: u32, count: u64, disk: &Memory) -> (Received, Wrote) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let job = job(blocks, ahead, count, &listener);
    std::thread::scope(|scope| {
        let target = scope.spawn(|| serve(&listener, blocks, disk, &mut || false).unwrap());
        let wrote = write(&job, &mut || false).unwrap();
        (target.join().unwrap(), wrote)
    })
}

fn holds(blocks: &Blocks, disk: &Memory, acknowledged: u64, sent: u64) -> content::Verified {
    let data = disk.data.lock().unwrap();
    let read = |offset: u64, to: &mut [u8]| {
        to.copy_from_slice(&data[offset as usize..][..to.len()]);
        Ok(())
    };
    verify(blocks, &Content::new(3), acknowledged, sent, read).unwrap()
}

#[test]
fn sealed_and_plain_blocks_are_written_unchanged_also_around_the_end() {
    let ways =
        [Protection::Plain, Protection::Sealed].map(|protection| [(protection, false), (protection, true)]);
    for (protection, ready_first) in ways.concat() {
        for block_bytes in [512, 40_000, 65_536] {
            let blocks = Blocks { ready_first, ..blocks(protection, block_bytes, 8) };
            let disk = Memory::new(&blocks);
            let (received, wrote) = run(&blocks, 4, 21, &disk);
            assert_eq!((received.fault.clone(), wrote.fault.clone()), (None, None));
            assert_eq!((received.written, received.acknowledged), (21, 21));
            assert_eq!((wrote.sent, wrote.acknowledged), (21, 21));
            let verified = holds(&blocks, &disk, 21, 21);
            assert_eq!((verified.right, verified.wrong, verified.open), (8, 0, 0), "{block_bytes}");
            assert_eq!(protection == Protection::Sealed, wrote.seal_ns > 0 && received.open_ns > 0);
        }
    }
}

#[test]
fn a_file_that_is_not_right_is_noticed() {
    let blocks = blocks(Protection::Plain, 512, 4);
    let disk = Memory::new(&blocks);
    run(&blocks, 1, 4, &disk);
    disk.data.lock().unwrap()[3 * 512 - 1] ^= 1;
    let verified = holds(&blocks, &disk, 4, 4);
    assert_eq!((verified.right, verified.wrong), (3, 1));
    assert_eq!(holds(&blocks, &disk, 4, 6).open, 2, "what is being overwritten may be anything");
}

/// A target by hand: no byte of a block comes before it was asked for, and each takes two round
/// trips.
#[test]
fn where_the_target_asks_first_data_wait_for_it() {
    let blocks = Blocks { ready_first: true, ..blocks(Protection::Plain, 512, 4) };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let job = job(&blocks, 2, 2, &listener);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&job, &mut || false).unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        io::Read::read_exact(&mut stream, &mut [0; 2 * SALT_BYTES]).unwrap();
        io::Write::write_all(&mut stream, &[0; SALT_BYTES]).unwrap();
        let mut headers = [0; 2 * HEADER_BYTES];
        io::Read::read_exact(&mut stream, &mut headers).unwrap();
        let commands = [0, 1].map(|number| target::encode_header(&blocks, number, Frame::Command));
        assert_eq!(headers[..], commands.concat(), "both are announced");
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(io::Read::read_exact(&mut stream, &mut [0]).is_err(), "and nothing is sent");
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        for number in 0..2_u64 {
            io::Write::write_all(&mut stream, &(READY | number).to_le_bytes()).unwrap();
            let mut block = [0; HEADER_BYTES + 512];
            io::Read::read_exact(&mut stream, &mut block).unwrap();
            assert_eq!(block[..HEADER_BYTES], target::encode_header(&blocks, number, Frame::Data));
            io::Write::write_all(&mut stream, &(number + 1).to_le_bytes()).unwrap();
        }
        let wrote = writer.join().unwrap();
        assert_eq!((wrote.acknowledged, wrote.fault), (2, None));
    });
}

#[test]
fn unexpected_readiness_and_unrequested_data_end_the_connection() {
    let blocks = Blocks { ready_first: true, ..blocks(Protection::Plain, 512, 4) };
    for word in [READY | 1, READY | u64::MAX, 1] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let job = job(&blocks, 1, 2, &listener);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&job, &mut || false).unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            io::Read::read_exact(&mut stream, &mut [0; 2 * SALT_BYTES]).unwrap();
            io::Write::write_all(&mut stream, &[0; SALT_BYTES]).unwrap();
            io::Write::write_all(&mut stream, &word.to_le_bytes()).unwrap();
            let fault = writer.join().unwrap().fault;
            assert!(fault.is_some(), "{word:x}");
        });
    }
    let disk = Memory::new(&blocks);
    for frame in [Frame::Data, Frame::Block] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        std::thread::scope(|scope| {
            let target = scope.spawn(|| serve(&listener, &blocks, &disk, &mut || false).unwrap());
            let mut stream = greeted(&listener, &blocks.secret);
            io::Write::write_all(&mut stream, &target::encode_header(&blocks, 0, frame)).unwrap();
            let received = target.join().unwrap();
            assert!(
                received.fault.is_some_and(|reason| reason.contains("not the next one"))
                    && received.written == 0
            );
        });
    }
}

/// A writer by hand that checks at each answer that the disk had synced what it covers.
#[test]
fn blocks_are_acknowledged_only_after_the_sync() {
    let blocks = blocks(Protection::Plain, 512, 64);
    let disk = Memory::new(&blocks);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    std::thread::scope(|scope| {
        let target = scope.spawn(|| serve(&listener, &blocks, &disk, &mut || false).unwrap());
        let mut stream = greeted(&listener, &blocks.secret);
        let content = Content::new(3);
        for number in 0..64 {
            let mut data = vec![0; 512];
            content.fill(number, &mut data);
            io::Write::write_all(&mut stream, &target::encode_header(&blocks, number, Frame::Block)).unwrap();
            io::Write::write_all(&mut stream, &data).unwrap();
        }
        let (mut answered, mut answers) = (0, 0);
        while answered < 64 {
            let mut answer = [0; 8];
            io::Read::read_exact(&mut stream, &mut answer).unwrap();
            answered = u64::from_le_bytes(answer);
            answers += 1;
            let safe = disk.safe.load(Ordering::SeqCst);
            assert!(safe >= answered, "{answered} answered, {safe} safe");
        }
        drop(stream);
        let received = target.join().unwrap();
        assert_eq!(received.syncs, answers);
        assert!(answers < 64, "blocks that came during a sync share the next one");
    });
}

fn greeted(listener: &TcpListener, secret: &Secret) -> TcpStream {
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let salt: Salt = rand::random();
    io::Write::write_all(&mut stream, &[salt, seal::proof(secret, &salt)].concat()).unwrap();
    io::Read::read_exact(&mut stream, &mut [0; SALT_BYTES]).unwrap();
    stream
}

#[test]
fn after_a_failed_sync_nothing_more_is_answered_and_both_ends_say_so() {
    let blocks = blocks(Protection::Sealed, 512, 64);
    let disk = Memory::new(&blocks);
    disk.syncs_left.store(3, Ordering::SeqCst);
    let (received, wrote) = run(&blocks, 1, 64, &disk);
    assert_eq!((received.acknowledged, wrote.acknowledged), (3, 3));
    assert!(received.fault.is_some_and(|reason| reason.contains("cannot sync: worn out")));
    assert!(wrote.fault.is_some());
}

#[test]
fn a_writer_without_the_secret_gets_nothing() {
    let blocks = blocks(Protection::Plain, 512, 4);
    let disk = Memory::new(&blocks);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stranger = Blocks { secret: Secret::random(), ..blocks.clone() };
    let job = job(&stranger, 1, 4, &listener);
    std::thread::scope(|scope| {
        let target = scope.spawn(|| serve(&listener, &blocks, &disk, &mut || false));
        assert!(write(&job, &mut || false).is_err());
        assert!(matches!(target.join().unwrap(), Err(BlockError::NotAuthentic)));
    });
    assert_eq!(disk.written.load(Ordering::SeqCst), 0);
}

#[test]
fn a_block_that_was_changed_moved_or_cut_off_is_not_written() {
    let blocks = blocks(Protection::Sealed, 512, 4);
    type Tamper = fn(&mut Vec<u8>);
    let tampers: [Tamper; 4] = [
        |frame| frame[HEADER_BYTES + 5] ^= 1,
        |frame| frame[8] ^= 1,
        |frame| frame[0] ^= 1,
        |frame| frame.truncate(frame.len() - 1),
    ];
    for tamper in tampers {
        let disk = Memory::new(&blocks);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let received = std::thread::scope(|scope| {
            let target = scope.spawn(|| serve(&listener, &blocks, &disk, &mut || false).unwrap());
            let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (own, mut other): (Salt, Salt) = (rand::random(), [0; SALT_BYTES]);
            io::Write::write_all(&mut stream, &[own, seal::proof(&blocks.secret, &own)].concat()).unwrap();
            io::Read::read_exact(&mut stream, &mut other).unwrap();
            let (mut sealer, _) = seal::keys(&blocks.secret, blocks.sealing, End::Writer, (&own, &other));
            let header = target::encode_header(&blocks, 0, Frame::Block);
            let mut data = vec![7; seal::sealed_len(512)];
            sealer.seal(&header, &mut data).unwrap();
            let mut frame = [&header[..], &data].concat();
            tamper(&mut frame);
            io::Write::write_all(&mut stream, &frame).unwrap();
            drop(stream);
            target.join().unwrap()
        });
        assert_eq!((received.written, disk.written.load(Ordering::SeqCst)), (0, 0));
        assert!(received.fault.is_some());
    }
}

#[test]
fn keys_differ_with_each_salt_and_direction_and_records_open_once_in_order() {
    let secret = Secret::random();
    let (a, b): (Salt, Salt) = ([1; 16], [2; 16]);
    let sealed = |end, writer: &Salt, target: &Salt| {
        let mut data = vec![0; seal::sealed_len(64)];
        seal::keys(&secret, Sealing::default(), end, (writer, target)).0.seal(b"x", &mut data).unwrap();
        data
    };
    let first = sealed(End::Writer, &a, &b);
    assert_eq!(first, sealed(End::Writer, &a, &b));
    for other in [sealed(End::Target, &a, &b), sealed(End::Writer, &b, &a), sealed(End::Writer, &a, &a)] {
        assert_ne!(first, other);
    }
    let mut sealer = seal::keys(&secret, Sealing::default(), End::Writer, (&a, &b)).0;
    let (mut one, mut two) = (first.clone(), first.clone());
    one.fill(0);
    two.fill(0);
    sealer.seal(b"x", &mut one).unwrap();
    sealer.seal(b"x", &mut two).unwrap();
    assert_ne!(one, two, "the second record has another nonce");
    let mut opener = seal::keys(&secret, Sealing::default(), End::Target, (&a, &b)).1;
    let again = one.clone();
    assert_eq!(opener.open(b"x", &mut one).unwrap(), 64);
    assert!(matches!(opener.open(b"x", &mut again.clone()), Err(BlockError::NotAuthentic)), "no replay");
}

#[test]
fn each_cipher_seals_and_opens_and_its_records_are_no_others() {
    let (secret, a, b): (Secret, Salt, Salt) = (Secret::random(), [1; 16], [2; 16]);
    for sealing in Sealing::ALL {
        let blocks = Blocks { sealing, ..blocks(Protection::Sealed, 40_000, 8) };
        let disk = Memory::new(&blocks);
        let (received, wrote) = run(&blocks, 4, 12, &disk);
        assert_eq!((received.fault.clone(), wrote.fault.clone()), (None, None), "{sealing:?}");
        assert_eq!((holds(&blocks, &disk, 12, 12).right, received.written), (8, 12), "{sealing:?}");
        for other in Sealing::ALL {
            let mut data = vec![0; seal::sealed_len(64)];
            seal::keys(&secret, sealing, End::Writer, (&a, &b)).0.seal(b"x", &mut data).unwrap();
            let opened = seal::keys(&secret, other, End::Target, (&a, &b)).1.open(b"x", &mut data);
            assert_eq!(opened.is_ok(), sealing == other, "{sealing:?} {other:?}");
        }
    }
}

#[test]
fn a_job_carries_its_cipher_and_an_older_one_means_aes_256_gcm() {
    let as_json = |sealing| {
        let blocks = Blocks { sealing, ..blocks(Protection::Sealed, 512, 4) };
        (serde_json::to_value(&blocks).unwrap(), blocks)
    };
    for sealing in Sealing::ALL {
        let (json, blocks) = as_json(sealing);
        assert_eq!(serde_json::from_value::<Blocks>(json.clone()).unwrap(), blocks, "{json}");
        let named = json.get("sealing").map(|name| name.as_str().unwrap().to_owned());
        // An older agent knows no such field, and needs none for the cipher that it has.
        let expected = (sealing != Sealing::Aes256Gcm).then(|| sealing.name().to_owned());
        assert_eq!(named, expected);
    }
}

#[test]
fn jobs_out_of_bounds_are_named() {
    assert!(blocks(Protection::Plain, 100, 4).problem().unwrap().contains("100 bytes"));
    assert!(blocks(Protection::Plain, 512, 0).problem().is_some());
    let uneven = Blocks { span_bytes: 513, ..blocks(Protection::Plain, 512, 1) };
    assert!(uneven.problem().unwrap().contains("no whole number"));
    assert_eq!(blocks(Protection::Plain, 512, 4).problem(), None);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let many = Blocks { ready_first: true, ..blocks(Protection::Plain, 16 << 20, 4) };
    assert!(job(&many, 17, 1, &listener).problem().unwrap().contains("would be held"));
    assert_eq!(job(&many, 16, 1, &listener).problem(), None);
    assert_eq!(format!("{:?}", Secret::random()), "Secret(..)");
}
