//! Users of a RADIUS server (RFC 2865), by their password.
//!
//! Invariants: each login has a socket, a number and an authenticator of its own, and a repeated request is the same bytes; only the
//! server that was asked can reply, by address, secret and signature ([`packet`]); whatever else comes is dropped and waited past.

pub(crate) mod packet;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use vpnd_proto::control::List;
use zeroize::Zeroizing;

use super::servers::{ServerError, look_up};
use crate::config::source::{Radius, RadiusAttribute, Source, SourceServer};
use crate::gateway::messages::idp::{GroupName, Identity, IdpReply, LoginCheck, Refusal, Subject};
use packet::{AccessRequest, Attribute, CLASS, FILTER_ID, MAX_PACKET, MAX_PASSWORD, Reply};

/// Time after which a request is sent once more.
const RESEND: Duration = Duration::from_secs(1);

/// A RADIUS source, ready to be asked.
pub(super) struct Client {
    settings: Radius,
    secret: Zeroizing<String>,
}

impl Client {
    pub(super) fn prepare(settings: &Radius) -> anyhow::Result<Self> {
        Ok(Self { settings: settings.clone(), secret: super::read_secret(&settings.secret)? })
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
        let request = AccessRequest {
            id: rand::random(),
            authenticator: rand::random(),
            user: &login.user,
            password,
            nas_identifier: &self.settings.nas_identifier,
            station: &station,
        };
        let address = look_up(server).await?.into_iter().next();
        let address = address.ok_or_else(|| ServerError::Answer("its name has no address".to_owned()))?;
        Ok(match self.ask(address, &request).await? {
            Reply::Accept(attributes) => self.identity(source, login, &attributes),
            Reply::Reject(text) => {
                tracing::debug!(text, "refused by a RADIUS server");
                IdpReply::Refused(Refusal::WrongPassword)
            }
            Reply::Challenge(_) => IdpReply::Refused(Refusal::SecondFactor),
        })
    }

    /// Sends the request until there is a reply; the caller limits the time.
    async fn ask(&self, address: SocketAddr, request: &AccessRequest<'_>) -> Result<Reply, ServerError> {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        // The kernel then drops what comes from elsewhere.
        socket.connect(address).await.map_err(ServerError::Connect)?;
        let secret = self.secret.as_bytes();
        let bytes = request.encode(secret);
        let mut buffer = Zeroizing::new(vec![0; MAX_PACKET]);
        let mut dropped = 0u32;
        loop {
            socket.send(&bytes).await.map_err(ServerError::Connect)?;
            let until = tokio::time::Instant::now() + RESEND;
            while let Ok(received) = tokio::time::timeout_at(until, socket.recv(&mut buffer)).await {
                match request.reply(&buffer[..received?], secret) {
                    Ok(reply) => return Ok(reply),
                    Err(why) if dropped == 0 => {
                        tracing::warn!(%address, %why, "a RADIUS packet does not count")
                    }
                    Err(_) => {}
                }
                dropped = dropped.saturating_add(1);
            }
        }
    }

    fn identity(&self, source: &Source, login: &LoginCheck, attributes: &[Attribute]) -> IdpReply {
        let kinds: Vec<u8> =
            self.settings.group_attributes.iter().map(|attribute| kind(*attribute)).collect();
        let values = attributes.iter().filter(|attribute| kinds.contains(&attribute.kind));
        let groups: BTreeSet<&str> = values.filter_map(|attribute| group(&attribute.value)).collect();
        if groups.len() > source.max_groups {
            return IdpReply::Refused(Refusal::TooManyGroups);
        }
        let groups = groups.into_iter().filter_map(|name| GroupName::new(name).ok()).collect();
        match (Subject::new(&*login.user), List::new(groups)) {
            (Ok(subject), Ok(groups)) => IdpReply::Accepted(Identity { subject, groups }),
            _ => IdpReply::Refused(Refusal::NoSubject),
        }
    }
}

fn kind(attribute: RadiusAttribute) -> u8 {
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
