//! TCP connections as fast as they go, from a sender in one namespace to a receiver in the other
//! that discards.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use anyhow::Context;
use rustix::net::RecvFlags;
use socket2::{Domain, Socket, Type};

use crate::devices::enter;

/// Bytes of each send call, as the generators of `trafficspeed` have them.
const WRITE_BYTES: usize = 256 << 10;
/// Bytes that a receive call discards at most.
const READ_BYTES: usize = 256 << 10;
/// The congestion control of the connections.
const CONGESTION: &[u8] = b"cubic";

/// Connections while they last.
pub(super) struct Load {
    /// Both ends of each, to be shut from outside.
    handles: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Connects `streams` times from the namespace `near` to `address` in the namespace `far`.
    pub(super) fn start(
        (near, far): (&str, &str),
        address: Ipv4Addr,
        streams: usize,
    ) -> anyhow::Result<Self> {
        enter(far)?;
        let listener = TcpListener::bind((address, 0)).context("listening inside the tunnel")?;
        let address = listener.local_addr()?;
        enter(near)?;
        let mut load = Self { handles: Vec::new(), threads: Vec::new() };
        for _ in 0..streams {
            let sender = connect(address)?;
            let (receiver, _) = listener.accept()?;
            load.handles.extend([sender.try_clone()?, receiver.try_clone()?]);
            load.threads.push(spawn("live-send", move || send(sender))?);
            load.threads.push(spawn("live-receive", move || receive(&receiver))?);
        }
        Ok(load)
    }

    /// Ends all connections and waits for their threads.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.shut();
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow::anyhow!("a generator panicked"))?;
        }
        Ok(())
    }

    fn shut(&self) {
        for handle in &self.handles {
            // One that is shut already has ended by itself.
            let _ = handle.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shut();
    }
}

/// A connection that has its congestion control from the first segment on: another one's pacing
/// would stay.
fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_tcp_congestion(CONGESTION).context("choosing cubic")?;
    socket.connect_timeout(&address.into(), super::TIMEOUT).context("connecting through the tunnel")?;
    Ok(socket.into())
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(work)
}

fn send(mut stream: TcpStream) {
    let block = vec![0x5A; WRITE_BYTES];
    while stream.write_all(&block).is_ok() {}
}

fn receive(stream: &TcpStream) {
    let mut scratch = vec![0; READ_BYTES];
    loop {
        match rustix::net::recv(stream, &mut scratch[..], RecvFlags::TRUNC) {
            Ok((_, 1..)) => {}
            _ => return,
        }
    }
}
