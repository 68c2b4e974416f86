//! Users of a RADIUS server (RFC 2865), by their password.
//!
//! Invariants: each login has a socket, a number and an authenticator of its own, and a repeated request is the same bytes; only the
//! server that was asked can reply, by address, secret and signature ([`packet`]); whatever else comes is dropped and waited past. Between the
//! rounds of a login nothing is kept here: the auth process has what the server recognises it by.

mod accounting;
pub(crate) mod packet;

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use vpnd_proto::control::{ChallengeKind, ChallengeText, List, Text};
use zeroize::Zeroizing;

use super::servers::{ServerError, look_up};
use crate::config::source::{Radius, RadiusAttribute, Source, SourceServer};
use crate::gateway::messages::idp::{
    AcceptAttributes, Classes, Continuation, GroupName, Identity, IdpChallenge, IdpReply, LoginAnswer,
    LoginCheck, MAX_CLASSES, Refusal, Subject,
};
use packet::{
    ACCT_INTERIM_INTERVAL, AccessRequest, Attribute, CLASS, Challenge, FILTER_ID, MAX_PACKET, MAX_PASSWORD,
    NoReply, Reply,
};

/// Time after which a request is sent once more.
const RESEND: Duration = Duration::from_secs(1);
/// The same while a person may have to approve it: the server has it then, most likely, and works on it.
const RESEND_PUSH: Duration = Duration::from_secs(5);
/// Shown where a server challenges without a text.
const NO_TEXT: &str = "one more code is needed";

/// A RADIUS source, ready to be asked.
pub(super) struct Client {
    settings: Radius,
    secret: Zeroizing<String>,
}

impl Client {
    pub(super) fn prepare(settings: &Radius) -> anyhow::Result<Self> {
        Ok(Self { settings: settings.clone(), secret: crate::secret_place::read(&settings.secret)? })
    }

    /// Whether this is the user's password, by the word of this server.
    pub(super) async fn check(
        &self,
        source: &Source,
        server: &SourceServer,
        login: &LoginCheck,
    ) -> Result<IdpReply, ServerError> {
        let password = login.password.expose();
        if password.is_empty() || password.len() > MAX_PASSWORD {
            return Ok(IdpReply::Refused(Refusal::WrongPassword));
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
    ) -> Result<IdpReply, ServerError> {
        let typed = answer.answer.expose();
        if typed.len() > MAX_PASSWORD {
            return Ok(IdpReply::Refused(Refusal::WrongPassword));
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
        let (id, authenticator) = (rand::random(), rand::random());
        AccessRequest { id, authenticator, user, password, state, nas_identifier, station }
    }

    async fn reply(
        &self,
        source: &Source,
        server: &SourceServer,
        request: &AccessRequest<'_>,
    ) -> Result<IdpReply, ServerError> {
        let address = address_of(server).await?;
        let secret = self.secret.as_bytes();
        let packet = request.encode(secret);
        let resend = if self.settings.push.is_some() { RESEND_PUSH } else { RESEND };
        let reply = accept(address, &packet, resend, |reply| request.reply(reply, secret)).await?;
        Ok(match reply {
            Reply::Accept(attributes) => self.identity(source, request.user, &attributes),
            Reply::Reject(text) => {
                tracing::debug!(text, "refused by a RADIUS server");
                IdpReply::Refused(Refusal::WrongPassword)
            }
            Reply::Challenge(challenge) => IdpReply::Challenge(demand(server, challenge)),
        })
    }

    fn identity(&self, source: &Source, user: &str, attributes: &[Attribute]) -> IdpReply {
        let kinds: Vec<u8> =
            self.settings.group_attributes.iter().map(|attribute| kind(*attribute)).collect();
        let values = attributes.iter().filter(|attribute| kinds.contains(&attribute.kind));
        let groups: BTreeSet<&str> = values.filter_map(|attribute| group(&attribute.value)).collect();
        if groups.len() > source.max_groups {
            return IdpReply::Refused(Refusal::TooManyGroups);
        }
        let groups = groups.into_iter().filter_map(|name| GroupName::new(name).ok()).collect();
        match (Subject::new(user), List::new(groups)) {
            (Ok(subject), Ok(groups)) => {
                IdpReply::Accepted(Identity { subject, groups, accept: accept_attributes(attributes) })
            }
            _ => IdpReply::Refused(Refusal::NoSubject),
        }
    }
}

/// The address of a server that packets go to.
async fn address_of(server: &SourceServer) -> Result<SocketAddr, ServerError> {
    look_up(server)
        .await?
        .into_iter()
        .next()
        .ok_or_else(|| ServerError::Name(io::Error::new(io::ErrorKind::NotFound, "its name has no address")))
}

/// Sends the packet again and again until `check` accepts a reply; the caller limits the time. An error of the kind
/// [`ServerError::Connect`] means that no server has the packet.
async fn accept<T>(
    address: SocketAddr,
    packet: &[u8],
    resend: Duration,
    check: impl Fn(&[u8]) -> Result<T, NoReply>,
) -> Result<T, ServerError> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    // The kernel then drops what comes from elsewhere.
    socket.connect(address).await.map_err(ServerError::Connect)?;
    let mut buffer = Zeroizing::new(vec![0; MAX_PACKET]);
    let (mut dropped, mut failure): (u32, fn(io::Error) -> ServerError) = (0, ServerError::Connect);
    loop {
        socket.send(packet).await.map_err(failure)?;
        let until = tokio::time::Instant::now() + resend;
        while let Ok(received) = tokio::time::timeout_at(until, socket.recv(&mut buffer)).await {
            match check(&buffer[..received.map_err(failure)?]) {
                Ok(reply) => return Ok(reply),
                Err(why) if dropped == 0 => tracing::warn!(%address, %why, "a RADIUS packet does not count"),
                Err(_) => {}
            }
            dropped = dropped.saturating_add(1);
        }
        // A server that refuses later may have worked on the request before.
        failure = ServerError::Io;
    }
}

/// The part of an Access-Accept that accounting goes by. A server that sends more than is kept gets less back.
fn accept_attributes(attributes: &[Attribute]) -> AcceptAttributes {
    let values = |kind| attributes.iter().filter(move |attribute| attribute.kind == kind);
    let classes = values(CLASS).take(MAX_CLASSES).filter_map(|class| List::new(class.value.clone()).ok());
    let interim = values(ACCT_INTERIM_INTERVAL).find_map(|interim| interim.value[..].try_into().ok());
    AcceptAttributes {
        classes: Classes::new(classes.collect()).unwrap_or_default(),
        interim_s: interim.map(u32::from_be_bytes),
    }
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
pub(crate) fn group(value: &[u8]) -> Option<&str> {
    let text = str::from_utf8(value).ok()?;
    let fine = !text.is_empty() && !text.chars().any(|c| c.is_control() || c == ',');
    fine.then_some(text)
}

#[cfg(test)]
mod tests;
