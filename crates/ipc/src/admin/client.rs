//! The administrator's end of the control socket.
//!
//! Blocking, because a command line tool has nothing else to do. Whatever the other end sends, time
//! and memory have their bounds, and no text of it keeps its control characters: it goes to a
//! person's terminal.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use crate::admin::{FleetGateway, Kicked, MAX_RESPONSE, Request, Response, Status};

/// Longest wait for the gateway; it has a shorter one for itself.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of an upgrade.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(70);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "no gateway answers at {}: start one with `vpnd server`, or name another with --socket or --config",
        .0.display()
    )]
    NotRunning(PathBuf),
    #[error("no permission to use {}: run this as root or as the user of the gateway", .0.display())]
    Forbidden(PathBuf),
    #[error("the control socket {} failed: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The response does not match the request.
    #[error(
        "{} did not answer as a gateway of this version ({why}): is it another program's or another version's?",
        path.display()
    )]
    InvalidResponse { path: PathBuf, why: String },
    #[error("the gateway says: {0}")]
    Refused(String),
}

/// A connection to the control socket of a running gateway.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`], [`ClientError::Forbidden`] or [`ClientError::Io`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
            stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
            Ok(stream)
        });
        let path = path.to_owned();
        match stream {
            Ok(stream) => Ok(Self { stream: BufReader::new(stream), path }),
            Err(source) => Err(match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning(path),
                io::ErrorKind::PermissionDenied => ClientError::Forbidden(path),
                _ => ClientError::Io { path, source },
            }),
        }
    }

    /// The gateway's status.
    pub fn status(&mut self) -> Result<Status, ClientError> {
        match self.request(&Request::Status)? {
            Response::Status(status) => Ok(*status),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The gateways of its fleet.
    pub fn fleet(&mut self) -> Result<Vec<FleetGateway>, ClientError> {
        match self.request(&Request::Fleet)? {
            Response::Fleet(gateways) => Ok(gateways),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Ends all sessions of a user, or the one with this id.
    pub fn kick(&mut self, target: &str) -> Result<Kicked, ClientError> {
        match self.request(&Request::Kick { target: target.to_owned() })? {
            Response::Ended(sessions) => Ok(Kicked { sessions, is_kept: true }),
            Response::EndedForNow(sessions) => Ok(Kicked { sessions, is_kept: false }),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Lets the gateway read its configuration again; returns what has changed, in words.
    pub fn reload(&mut self) -> Result<String, ClientError> {
        match self.request(&Request::Reload)? {
            Response::Reloaded(what) => Ok(vpnd_sys::text::plain(&what)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Lets the program that is installed now go on instead; returns what goes on, in words.
    ///
    /// # Errors
    /// [`ClientError`]; if the gateway refused, it goes on as it was.
    pub fn upgrade(&mut self) -> Result<String, ClientError> {
        let extended = self.stream.get_ref().set_read_timeout(Some(UPGRADE_TIMEOUT));
        extended.map_err(|source| ClientError::Io { path: self.path.clone(), source })?;
        match self.request(&Request::Upgrade)? {
            Response::Upgraded(what) => Ok(vpnd_sys::text::plain(&what)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Lets no client in any more; those that are left after `within_s` seconds are closed. With
    /// `fleet_safe` the gateway refuses if it is the fleet's last.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn drain(&mut self, within_s: Option<u64>, fleet_safe: bool) -> Result<(), ClientError> {
        self.done(&Request::Drain { within_s, fleet_safe })
    }

    /// Lets clients in again.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn cancel_drain(&mut self) -> Result<(), ClientError> {
        self.done(&Request::CancelDrain)
    }

    /// Takes the users whom this source shows no more for gone; returns how many there are.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn confirm_absences(&mut self, source: &str) -> Result<u64, ClientError> {
        match self.request(&Request::ConfirmAbsences { source: source.to_owned() })? {
            Response::Confirmed(users) => Ok(users),
            other => Err(self.unexpected(&other)),
        }
    }

    fn done(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.request(request)? {
            Response::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The process that has opened the socket, by the kernel's account: the gateway's first one.
    pub fn peer(&self) -> io::Result<Pid> {
        Ok(rustix::net::sockopt::socket_peercred(self.stream.get_ref())?.pid)
    }

    fn request(&mut self, request: &Request) -> Result<Response, ClientError> {
        let line =
            self.exchange(request).map_err(|source| ClientError::Io { path: self.path.clone(), source })?;
        if line.last() != Some(&b'\n') {
            return Err(self.invalid_response("its answer is cut off or too long".to_owned()));
        }
        match serde_json::from_slice(&line) {
            Ok(Response::Error(text)) => Err(ClientError::Refused(vpnd_sys::text::plain(&text))),
            Ok(response) => Ok(response),
            Err(error) => Err(self.invalid_response(error.to_string())),
        }
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        match self.stream.get_mut().write_all(&line) {
            // A gateway that refuses us sends the reason and closes, maybe before it has read the
            // request.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
        line.clear();
        self.stream.by_ref().take(MAX_RESPONSE as u64).read_until(b'\n', &mut line)?;
        Ok(line)
    }

    fn unexpected(&self, response: &Response) -> ClientError {
        let kind = match response {
            Response::Status(_) => "a status",
            Response::Fleet(_) => "the gateways of a fleet",
            Response::Ended(_) | Response::EndedForNow(_) => "a number of sessions",
            Response::Reloaded(_) => "a report of changes",
            Response::Upgraded(_) => "a report of an upgrade",
            Response::Done => "that it is done",
            Response::Confirmed(_) => "a number of users",
            Response::Error(_) => "an error",
        };
        self.invalid_response(format!("it answered with {kind}"))
    }

    fn invalid_response(&self, why: String) -> ClientError {
        ClientError::InvalidResponse { path: self.path.clone(), why: vpnd_sys::text::plain(&why) }
    }
}
