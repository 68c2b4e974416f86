//! Flows: each asks for some bytes over a separate connection, and takes from the first packet of
//! the handshake to the last byte (flow completion time; netperf's CRR).
//!
//! The connection that both ends keep names the port for these connections, and its end is theirs.
//! A request begins with the length of the answer and the run's id, so that no stranger is
//! answered.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{Exchange, LENGTH_BYTES, MAX_BYTES, Silence, read_exact, send_answer, write_all};
use crate::load::payload::Payload;
use crate::load::task::Protocol;
use crate::load::tcp::{Job, Shape, Way, socket_for};
use crate::load::worker_pool::{SharedState, WAIT_TIMEOUT, Work, WorkerResult};

/// Shortest request: the length of the answer and the run's id.
pub(super) const REQUEST_BYTES: usize = LENGTH_BYTES + 8;
/// Largest response, and the most different ones.
const MAX_FLOW_BYTES: u32 = 16 << 20;
const MAX_FLOWS: usize = 1_000;
/// A connection without a request for this long is a stranger's.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The first thing that is out of bounds, in words.
pub(super) fn problem(work: &Exchange) -> Option<String> {
    if work.protocol != Protocol::Tcp || work.every_us.is_some() {
        return Some("flows asked for without TCP, or each when it is due".to_owned());
    }
    if (work.request as usize) < REQUEST_BYTES {
        return Some(format!(
            "requests of {} bytes asked for, {REQUEST_BYTES} to {MAX_BYTES} are possible where each has a connection",
            work.request
        ));
    }
    if work.flows.len() > MAX_FLOWS {
        return Some(format!("{} sizes asked for, {MAX_FLOWS} are possible", work.flows.len()));
    }
    let wrong = work.flows.iter().find(|bytes| !(1..=MAX_FLOW_BYTES).contains(*bytes))?;
    Some(format!("flows of {wrong} bytes asked for, 1 to {MAX_FLOW_BYTES} are possible"))
}

fn job(work: &Exchange) -> Job {
    let shape = Shape { way: Way::Backward, window: work.sockets.window, mss: work.sockets.mss };
    Job { congestion: work.sockets.congestion, shape, ..Job::default() }
}

/// The end that asks: one flow after the other.
pub(super) fn ask(work: Exchange, mut kept: TcpStream) -> Work {
    let mut request = Payload::new(work.seed).chunk(0, 0, work.request as usize).to_vec();
    request[LENGTH_BYTES..REQUEST_BYTES].copy_from_slice(&work.run_id.to_be_bytes());
    Box::new(move |stage| {
        let over = || !stage.runs();
        let mut port = [0; 2];
        let named = read_exact(&mut kept, &mut port, &over)
            .and_then(|()| Ok(SocketAddr::new(kept.peer_addr()?.ip(), u16::from_be_bytes(port))));
        let address = match named {
            Ok(address) => address,
            Err(silence) => return WorkerResult { fault: silence.fault(), ..WorkerResult::default() },
        };
        let mut answer = vec![0; work.flows.iter().copied().max().unwrap_or(0) as usize];
        super::ask(stage, &work, |number| {
            let length = work.response_to(number);
            request[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
            let mut socket = connect(&work, address, &over)?;
            write_all(&mut socket, &request, &over)?;
            read_exact(&mut socket, &mut answer[..length as usize], &over)
        })
    })
}

/// Waits for the handshake, but never for long without a look at whether it is over.
fn connect(work: &Exchange, address: SocketAddr, over: &dyn Fn() -> bool) -> Result<TcpStream, Silence> {
    let socket = socket_for(address, &job(work)).map_err(|error| Silence::Broken(error.to_string()))?;
    socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
    // It limits the handshake, too; another call goes on waiting for that.
    socket.set_write_timeout(Some(WAIT_TIMEOUT))?;
    while let Err(error) = socket.connect(&address.into()) {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::ISCONN) => break,
            Some(Errno::INPROGRESS | Errno::ALREADY | Errno::INTR | Errno::AGAIN) => {}
            _ => return Err(Silence::Broken(format!("connecting to {address}: {error}"))),
        }
        if over() {
            return Err(Silence::Over);
        }
    }
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// The end that answers, until the other closes the connection that is kept.
pub(super) fn answer(work: Exchange, mut kept: TcpStream) -> Work {
    Box::new(move |stage| WorkerResult {
        fault: serve(stage, &work, &mut kept).err().and_then(Silence::fault),
        ..WorkerResult::default()
    })
}

fn serve(stage: &SharedState, work: &Exchange, kept: &mut TcpStream) -> Result<(), Silence> {
    let payload = Payload::new(work.seed);
    let listener = listen(work, SocketAddr::new(kept.local_addr()?.ip(), 0))?;
    let port = listener.local_addr()?.port().to_be_bytes();
    write_all(kept, &port, &|| stage.aborted())?;
    kept.set_nonblocking(true)?;
    let mut request = vec![0; work.request as usize];
    while !stage.aborted() {
        match listener.accept() {
            // A flow that breaks is noticed by the end that asked for it.
            Ok((socket, _)) => drop(serve_one(stage, work, &payload, &mut request, socket)),
            Err(_) if matches!(kept.read(&mut [0]), Ok(0)) => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // A connection that died in the queue.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn listen(work: &Exchange, address: SocketAddr) -> Result<TcpListener, Silence> {
    let socket = socket_for(address, &job(work)).map_err(|error| Silence::Broken(error.to_string()))?;
    socket.bind(&address.into())?;
    socket.listen(16)?;
    // The time that `accept` waits.
    socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
    Ok(socket.into())
}

fn serve_one(
    stage: &SharedState,
    work: &Exchange,
    payload: &Payload,
    request: &mut [u8],
    mut socket: TcpStream,
) -> Result<(), Silence> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
    socket.set_write_timeout(Some(WAIT_TIMEOUT))?;
    let until = Instant::now() + REQUEST_TIMEOUT;
    read_exact(&mut socket, request, &|| stage.aborted() || Instant::now() > until)?;
    if request[LENGTH_BYTES..REQUEST_BYTES] != work.run_id.to_be_bytes() {
        return Ok(());
    }
    stage.meter.received(1, request.len() as u64);
    let most = work.flows.iter().copied().max().unwrap_or(0);
    send_answer(&mut socket, payload, request, most, &|| stage.aborted())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::load::worker_pool::{Schedule, WorkerPool};

    #[test]
    fn only_requests_of_this_run_are_answered() {
        let own = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut asks = TcpStream::connect(own.local_addr().unwrap()).unwrap();
        let kept = own.accept().unwrap().0;
        let work = Exchange { run_id: 7, request: 12, flows: vec![5], ..Exchange::default() };
        let schedule = Schedule { start_ns: 0, begin_ns: 0, end_ns: u64::MAX, peer_ahead_ns: 0 };
        let pool = WorkerPool::begin(schedule, vec![answer(work, kept)]).unwrap();
        let mut port = [0; 2];
        asks.read_exact(&mut port).unwrap();
        let answer_to = |run_id: u64| {
            let mut socket = TcpStream::connect(("127.0.0.1", u16::from_be_bytes(port))).unwrap();
            socket.write_all(&[&5_u32.to_be_bytes()[..], &run_id.to_be_bytes()].concat()).unwrap();
            let mut answer = Vec::new();
            socket.read_to_end(&mut answer).unwrap();
            answer.len()
        };
        assert_eq!([7, 8, 7].map(answer_to), [5, 0, 5]);
        drop(asks);
        let found = pool.finish(Instant::now() + Duration::from_secs(60)).remove(0);
        assert_eq!(found.fault, None);
    }

    #[test]
    fn flows_that_cannot_be_made_are_refused() {
        let work = || Exchange { request: 64, flows: vec![10_000, 1_000_000], ..Exchange::default() };
        assert_eq!(work().problem(), None);
        assert_eq!([1, 2, 3].map(|number| work().response_to(number)), [10_000, 1_000_000, 10_000]);
        assert_eq!(Exchange::default().response_to(7), 1, "without flows");
        for wrong in [
            Exchange { protocol: Protocol::Udp, ..work() },
            Exchange { every_us: Some(1_000), ..work() },
            Exchange { request: 11, ..work() },
            Exchange { flows: vec![0], ..work() },
            Exchange { flows: vec![1, MAX_FLOW_BYTES + 1], ..work() },
            Exchange { flows: vec![1; MAX_FLOWS + 1], ..work() },
        ] {
            assert!(wrong.problem().is_some(), "{wrong:?}");
        }
    }
}
