//! TCP connections to servers that the configuration names, which notice within seconds that the
//! other end is gone.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Time without an acknowledgement after which a connection ends.
const DEAD_PEER: Duration = Duration::from_secs(10);
const PROBE_AFTER: Duration = Duration::from_secs(4);
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Connects; blocks for this long at most.
///
/// # Errors
/// Why the server can't be reached.
pub fn connect(server: &SocketAddr, timeout: Duration) -> io::Result<OwnedFd> {
    let stream = TcpStream::connect_timeout(server, timeout)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(&stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_user_timeout(&stream, u32::try_from(DEAD_PEER.as_millis()).unwrap_or(u32::MAX))?;
    Ok(stream.into())
}
