//! Users of a RADIUS server (RFC 2865), by their password.
//!
//! Invariants: each login has its own number and authenticator, and by UDP its own socket; a
//! repeated request is the same bytes; only the server that was asked can reply, by address, secret
//! and signature ([`packet`]), or in TLS by its certificate ([`radsec`]); whatever else comes by
//! UDP is dropped and waited past. Between the rounds of a login nothing is kept here: the auth
//! process has what the server recognises it by.

mod accept;
mod accounting;
pub mod packet;
mod radsec;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::UdpSocket;
use vpnd_proto::control::{ChallengeKind, ChallengeText, List, Text};
use zeroize::Zeroizing;

use super::servers::{Answered, ServerError};
use packet::{
    AccessRequest, Attribute, CLASS, Challenge, FILTER_ID, MAX_PACKET, MAX_PASSWORD, NoReply, Reply,
    accounting::made_for, status_server,
};
use radsec::Connections;
use vpnd_config::source::{Radius, RadiusAttribute, Source, SourceServer, Transport};
use vpnd_config::source_tls::SourceTls;
use vpnd_ipc::gateway::idp::{
    Continuation, GroupName, Identity, IdpChallenge, LoginAnswer, LoginCheck, SourceRefusal, Subject, Verdict,
};
use vpnd_sys::address_race;

/// Time after which a request is sent once more.
const RESEND: Duration = Duration::from_secs(1);
/// The time while a person may have to approve it: the server has it then, most likely, and works
/// on it.
const RESEND_PUSH: Duration = Duration::from_secs(5);
/// Time without a packet after which a connection is looked after.
const IDLE: Duration = Duration::from_secs(30);
const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(5);
/// Shown where a server challenges without a text.
const NO_TEXT: &str = "one more code is needed";

/// A RADIUS source, ready to be asked.
pub(super) struct Client {
    settings: Radius,
    secret: Zeroizing<String>,
    /// `None` if packets go by UDP.
    connections: Option<Connections>,
    /// Where they go then.
    answered: Answered,
    ignored: accept::Ignored,
}

impl Client {
    pub(super) fn prepare(settings: &Radius) -> anyhow::Result<Self> {
        let (secret, connections) = match &settings.transport {
            Transport::Udp(place) => (vpnd_config::secret_place::read(place)?, None),
            Transport::Tls(tls) => {
                let options = radsec::Options {
                    nas_identifier: settings.nas_identifier.clone(),
                    idle: IDLE,
                    timeout: WATCHDOG_TIMEOUT,
                    may_wait: settings.push.is_some(),
                };
                let connections = Connections::new(SourceTls::radius(tls)?, options);
                (Zeroizing::new(radsec::SECRET.to_owned()), Some(connections))
            }
        };
        let (settings, answered) = (settings.clone(), Answered::default());
        Ok(Self { settings, secret, connections, answered, ignored: accept::Ignored::default() })
    }

    /// Whether this is the user's password, by the word of this server.
    pub(super) async fn check(
        &self,
        source: &Source,
        server: &SourceServer,
        login: &LoginCheck,
    ) -> Result<Verdict, ServerError> {
        let password = login.password.expose();
        if password.is_empty() || password.len() > MAX_PASSWORD {
            return Ok(Verdict::Refused(SourceRefusal::WrongPassword));
        }
        let station = login.address.to_string();
        let request = self.request(&login.user, password, None, &station);
        self.reply(source, server, &request).await
    }

    /// Whether this is the answer to the challenge, by the word of the server that has challenged.
    pub(super) async fn answer(
        &self,
        source: &Source,
        server: &SourceServer,
        answer: &LoginAnswer,
    ) -> Result<Verdict, ServerError> {
        let typed = answer.answer.expose();
        if typed.len() > MAX_PASSWORD {
            return Ok(Verdict::Refused(SourceRefusal::WrongPassword));
        }
        let (station, state) = (answer.address.to_string(), answer.round.state.as_deref());
        let request = self.request(&answer.user, typed, state, &station);
        self.reply(source, server, &request).await
    }

    fn request<'r>(
        &'r self,
        user: &'r str,
        password: &'r str,
        state: Option<&'r [u8]>,
        station: &'r str,
    ) -> AccessRequest<'r> {
        let nas_identifier = &self.settings.nas_identifier;
        // The number is that of the way to the server.
        AccessRequest { id: 0, authenticator: rand::random(), user, password, state, nas_identifier, station }
    }

    async fn reply(
        &self,
        source: &Source,
        server: &SourceServer,
        request: &AccessRequest<'_>,
    ) -> Result<Verdict, ServerError> {
        let secret = self.secret.as_bytes();
        let resend = if self.settings.push.is_some() { RESEND_PUSH } else { RESEND };
        let encode = |id| AccessRequest { id, ..*request }.encode(secret);
        let check =
            |packet: &[u8], reply: &[u8]| AccessRequest { id: packet[1], ..*request }.reply(reply, secret);
        Ok(match self.exchange(server, resend, encode, check).await? {
            Reply::Accept(attributes) => self.identity(source, request.user, &attributes),
            Reply::Reject(text) => {
                tracing::debug!(text, "refused by a RADIUS server");
                Verdict::Refused(SourceRefusal::WrongPassword)
            }
            Reply::Challenge(challenge) => Verdict::Challenge(demand(server, challenge)),
        })
    }

    /// Sends the packet of a number to a server; the reply to it, as `check` has it. The caller
    /// limits the time.
    async fn exchange<T>(
        &self,
        server: &SourceServer,
        resend: Duration,
        encode: impl Fn(u8) -> Zeroizing<Vec<u8>>,
        check: impl Fn(&[u8], &[u8]) -> Result<T, NoReply>,
    ) -> Result<T, ServerError> {
        match &self.connections {
            Some(connections) => connections.exchange(server, encode, check).await,
            None => {
                let packet = encode(rand::random());
                let mut addresses = self.addresses(server).await?;
                let last = addresses.pop();
                // A server counts a wrong password at each of its addresses: the next has its turn
                // when one was silent for long.
                for address in addresses {
                    let asked = self.answered.asking(server, address);
                    let sent = accept(address, &packet, resend, |reply| check(&packet, reply));
                    if let Ok(Ok(reply)) = tokio::time::timeout(resend, sent).await {
                        asked.has_answered();
                        return Ok(reply);
                    }
                }
                let address = last.ok_or_else(|| ServerError::Name(io::ErrorKind::NotFound.into()))?;
                let asked = self.answered.asking(server, address);
                let reply = accept(address, &packet, resend, |reply| check(&packet, reply)).await?;
                asked.has_answered();
                Ok(reply)
            }
        }
    }

    /// The addresses of a server that are to be asked: the one that is known to answer, or all of
    /// them.
    async fn addresses(&self, server: &SourceServer) -> Result<Vec<SocketAddr>, ServerError> {
        let (mut addresses, is_known) = self.answered.look_up(server).await?;
        if is_known || addresses.len() == 1 {
            addresses.truncate(1);
            return Ok(addresses);
        }
        let answering = address_race::first(addresses.clone(), |address| self.is_there(address));
        if let Ok(Ok(address)) = tokio::time::timeout(RESEND, answering).await {
            self.answered.asking(server, address).has_answered();
            return Ok(vec![address]);
        }
        Ok(addresses)
    }

    /// Asks whether a server answers at this address (RFC 5997), which counts for nothing there.
    /// Not every server replies.
    async fn is_there(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let secret = self.secret.as_bytes();
        let question = status_server(rand::random(), rand::random(), &self.settings.nas_identifier, secret);
        let check = |reply: &[u8]| made_for(&question, reply, secret).map(drop);
        accept(address, &question, RESEND, check).await.map_err(io::Error::other)?;
        Ok(address)
    }

    fn identity(&self, source: &Source, user: &str, attributes: &[Attribute]) -> Verdict {
        let kinds: Vec<u8> =
            self.settings.group_attributes.iter().map(|attribute| kind(*attribute)).collect();
        self.ignored.note(&source.name, attributes, &kinds);
        let values = attributes.iter().filter(|attribute| kinds.contains(&attribute.kind));
        let groups: BTreeSet<&str> = values.filter_map(|attribute| group(&attribute.value)).collect();
        if groups.len() > source.max_groups {
            return Verdict::Refused(SourceRefusal::TooManyGroups);
        }
        let groups = groups.into_iter().filter_map(|name| GroupName::new(name).ok()).collect();
        match (Subject::new(user), List::new(groups)) {
            (Ok(subject), Ok(groups)) => Verdict::Accepted(Identity {
                subject,
                groups,
                accept: accept::attributes(user, attributes),
                name: None,
            }),
            _ => Verdict::Refused(SourceRefusal::NoSubject),
        }
    }
}

/// Sends the packet again and again until `check` accepts a reply; the caller limits the time. An
/// error of the kind [`ServerError::Connect`] means that no server has the packet.
async fn accept<T>(
    address: SocketAddr,
    packet: &[u8],
    resend: Duration,
    check: impl Fn(&[u8]) -> Result<T, NoReply>,
) -> Result<T, ServerError> {
    let socket = connected(address).map_err(ServerError::Connect)?;
    let mut buffer = Zeroizing::new(vec![0; MAX_PACKET]);
    let (mut dropped, mut failure): (u32, fn(io::Error) -> ServerError) = (0, ServerError::Connect);
    loop {
        socket.send(packet).await.map_err(failure)?;
        let until = tokio::time::Instant::now() + resend;
        while let Ok(received) = tokio::time::timeout_at(until, socket.recv(&mut buffer)).await {
            match check(&buffer[..received.map_err(failure)?]) {
                Ok(reply) => return Ok(reply),
                Err(reason) if dropped == 0 => {
                    tracing::warn!(%address, %reason, "a RADIUS packet does not count")
                }
                Err(_) => {}
            }
            dropped = dropped.saturating_add(1);
        }
        // A server that refuses later may have worked on the request before.
        failure = ServerError::Io;
    }
}

/// A socket for this server alone: the kernel drops what comes from elsewhere, and chooses the
/// port, which this process may not.
fn connected(server: SocketAddr) -> io::Result<UdpSocket> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    rustix::net::connect(&socket, &server)?;
    UdpSocket::from_std(socket.into())
}

/// A challenge in the terms of the gateway.
fn demand(server: &SourceServer, challenge: Challenge) -> IdpChallenge {
    let text = if challenge.text.trim().is_empty() { NO_TEXT } else { &challenge.text };
    IdpChallenge {
        kind: if challenge.is_shown { ChallengeKind::Choice } else { ChallengeKind::Code },
        text: ChallengeText::cut(text),
        round: Continuation {
            server: Text::cut(&server.to_string()),
            // No attribute holds more than fits.
            state: challenge.state.map(|state| List::new(state).unwrap_or_default()),
        },
    }
}

pub(super) fn kind(attribute: RadiusAttribute) -> u8 {
    match attribute {
        RadiusAttribute::FilterId => FILTER_ID,
        RadiusAttribute::Class => CLASS,
    }
}

/// A group's name; a value that is none, as many a `Class`, is left out.
pub fn group(value: &[u8]) -> Option<&str> {
    let text = str::from_utf8(value).ok()?;
    let is_valid = !text.is_empty() && !text.chars().any(|c| c.is_control() || c == ',');
    is_valid.then_some(text)
}

#[cfg(test)]
#[path = "../../vpnd/tests/netns/freeradius.rs"]
mod freeradius;
#[cfg(test)]
mod tests;
