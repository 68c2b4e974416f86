//! `trafficspeed serve`: lets the holder of a token run the generator on this host.
//!
//! One coordinator at a time. Before the token is proved a connection may send a few short lines
//! within [`HANDSHAKE_TIMEOUT`], and only [`MAX_UNPROVED`] such connections are kept; the oldest of
//! the address that has most makes room for another: a stranger can neither make this host send
//! anything, nor grow its memory, nor keep others out by silence. After it, the coordinator may
//! have this host listen on and connect to addresses, which is the tool's purpose; a coordinator
//! with the token is trusted with that. Blocks are written only into the place that this host's
//! owner named.

use std::io::{self, BufReader};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::agent::Agent;
use super::agent::blocks::BlockPermission;
use super::message::{Command, Report};
use super::token::{LineKeys, Token, TokenError, demand};
use crate::interrupt::Interrupt;
use crate::line::{LineReader, LineWriter};
use crate::load::block::place::Place;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_UNPROVED: usize = 16;
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves on `address` until interrupted, with permission to write blocks into `place` if there is
/// one, and passes each event to `log`.
///
/// # Errors
/// When the address cannot be listened on.
pub fn serve(
    address: SocketAddr,
    token: Token,
    mut place: Option<Place>,
    interrupt: &Interrupt,
    log: impl Fn(String) + Send + Sync + 'static,
) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    log(format!("waiting for a coordinator on {}", listener.local_addr()?));
    // A coordinator's thread may outlive this function, and must not keep the file.
    let _removal = place.as_mut().and_then(Place::removal);
    let state = Arc::new(ServeState {
        permission: Arc::new(BlockPermission::new(&token, place)),
        token,
        unproved: Mutex::default(),
        busy: AtomicBool::new(false),
        log: Box::new(log),
    });
    while !interrupt.is_set() {
        match listener.accept() {
            Ok((socket, peer)) => admit(&state, socket, peer),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    Ok(())
}

struct ServeState {
    token: Token,
    permission: Arc<BlockPermission>,
    unproved: Mutex<Vec<Unproved>>,
    busy: AtomicBool,
    log: Box<dyn Fn(String) + Send + Sync>,
}

/// A connection that has not proved the token yet.
struct Unproved {
    peer: SocketAddr,
    socket: TcpStream,
}

impl ServeState {
    /// Takes a connection in, in the place of another if there are too many.
    fn take_in(&self, peer: SocketAddr, socket: &TcpStream) -> io::Result<()> {
        let socket = socket.try_clone()?;
        let mut unproved = self.unproved();
        if unproved.len() >= MAX_UNPROVED {
            let count_of = |ip: IpAddr| unproved.iter().filter(|other| other.peer.ip() == ip).count();
            // The last of those that are as many is the oldest.
            let place = (0..unproved.len()).rev().max_by_key(|place| count_of(unproved[*place].peer.ip()));
            if let Some(place) = place {
                // An error here means that the connection is gone.
                let _ = unproved.remove(place).socket.shutdown(Shutdown::Both);
            }
        }
        unproved.push(Unproved { peer, socket });
        Ok(())
    }

    fn let_go(&self, peer: SocketAddr) {
        self.unproved().retain(|other| other.peer != peer);
    }

    fn unproved(&self) -> MutexGuard<'_, Vec<Unproved>> {
        self.unproved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn admit(state: &Arc<ServeState>, socket: TcpStream, peer: SocketAddr) {
    if let Err(error) = state.take_in(peer, &socket) {
        (state.log)(format!("refused {peer}: {error}"));
        return;
    }
    let state = Arc::clone(state);
    std::thread::spawn(move || {
        let proved = prove_within(&state.token, &socket);
        state.let_go(peer);
        match proved {
            Ok((input, keys)) => host(&state, socket, input, keys, peer),
            Err(error) => (state.log)(format!("refused {peer}: {error}")),
        }
    });
}

fn prove_within(token: &Token, socket: &TcpStream) -> Result<(BufReader<TcpStream>, LineKeys), TokenError> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    keep_alive(socket)?;
    socket.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
    // Each read may take the whole timeout; the watcher bounds the handshake as a whole.
    let watched = socket.try_clone()?;
    let finished = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&finished);
    let watcher = std::thread::spawn(move || {
        std::thread::park_timeout(HANDSHAKE_TIMEOUT);
        if !seen.load(Ordering::SeqCst) {
            // An error here means that the connection is gone, which is what was wanted.
            let _ = watched.shutdown(Shutdown::Both);
        }
    });
    let mut input = BufReader::new(socket.try_clone()?);
    let keys = demand(token, &mut input, &mut &*socket);
    finished.store(true, Ordering::SeqCst);
    watcher.thread().unpark();
    let keys = keys?;
    socket.set_read_timeout(None)?;
    Ok((input, keys))
}

fn host(
    state: &ServeState,
    socket: TcpStream,
    input: BufReader<TcpStream>,
    keys: LineKeys,
    peer: SocketAddr,
) {
    let mut writer = LineWriter::new(&socket, Some(keys.write));
    if state.busy.swap(true, Ordering::SeqCst) {
        (state.log)(format!("refused {peer}: another coordinator is at work"));
        let reason = "another coordinator is at work on this host".to_owned();
        // The refused coordinator may have left already.
        let _ = writer.write(&Report::Failed { why: reason });
        return;
    }
    (state.log)(format!("coordinator {peer} took over"));
    let (commands, inbox) = channel();
    let (outbox, reports) = channel();
    let reader = LineReader::new(input, Some(keys.read));
    let reading = std::thread::spawn(move || take_commands(reader, &commands));
    let agent = Agent::new(inbox, outbox).with_block_permission(Arc::clone(&state.permission));
    let working = std::thread::spawn(move || agent.run());
    give_reports(&reports, &mut writer);
    // An error here means that the connection is already closed.
    let _ = socket.shutdown(Shutdown::Both);
    for thread in [reading, working] {
        if thread.join().is_err() {
            (state.log)("the generator failed; see above".into());
        }
    }
    state.busy.store(false, Ordering::SeqCst);
    (state.log)(format!("coordinator {peer} left"));
}

/// Has the kernel notice within two minutes that the other host vanished without a word.
pub fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    let probes =
        TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
    SockRef::from(socket).set_tcp_keepalive(&probes)
}

/// Reads commands until the coordinator leaves or misbehaves; the agent sees both as its leaving.
pub fn take_commands<R: io::BufRead>(mut reader: LineReader<R>, commands: &Sender<Command>) {
    while let Ok(Some(command)) = reader.read() {
        if commands.send(command).is_err() {
            return;
        }
    }
}

/// Writes reports until the agent has ended or the coordinator cannot be reached.
pub fn give_reports<W: io::Write>(reports: &Receiver<Report>, writer: &mut LineWriter<W>) {
    while let Ok(report) = reports.recv() {
        if writer.write(&report).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_make_room_for_another_address() {
        let state = ServeState {
            permission: Arc::new(BlockPermission::new(&Token::for_tests(b"token"), None)),
            token: Token::for_tests(b"token"),
            unproved: Mutex::default(),
            busy: AtomicBool::new(false),
            log: Box::new(|_| {}),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let honest: SocketAddr = "192.0.2.1:5".parse().unwrap();
        state.take_in(honest, &socket).unwrap();
        for port in 1..=3 * MAX_UNPROVED as u16 {
            let silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            state.take_in(SocketAddr::from(([192, 0, 2, 2], port)), &silent).unwrap();
        }
        let unproved = state.unproved();
        assert_eq!(unproved.len(), MAX_UNPROVED);
        assert_eq!(unproved[0].peer, honest, "it is not the one that makes room");
        assert_eq!(unproved[1].peer.port() as usize, 3 * MAX_UNPROVED - (MAX_UNPROVED - 2), "the oldest do");
    }
}
