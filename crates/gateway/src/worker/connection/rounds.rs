//! The rounds of a login after its password: a one-time code, answers to challenges, an approval
//! elsewhere (PROTOCOL §4, §4.2).
//!
//! INVARIANT: the auth process decides which step comes next and whether a login is over; this side
//! passes on what is shown and typed. A connection that waits has a permit, of which each network
//! has its share, and leaves nothing behind when it ends.

use std::net::SocketAddr;
use std::time::Duration;

use vpnd_control_channel::stream::{Reader, StreamError, Writer};
use vpnd_proto::control::{Challenge, ChallengeAnswer, ChallengeKind, FEATURE_CHALLENGES, Message};
use vpnd_proto::session::DeviceId;

use super::{ControlServer, Failure, unless_displaced};
use vpnd_ipc::gateway::auth::{Abandon, ApprovalQuery, Demand, Granted, LoginReply, TypedAnswer};
use vpnd_ipc::gateway::refusal::{Refusal, Refused};

/// Time for a person to type a one-time code.
const CODE_TIMEOUT: Duration = Duration::from_secs(90);

/// The other end of a connection whose login is under way.
pub(super) struct Peer<'c> {
    pub(super) remote: SocketAddr,
    pub(super) reader: &'c mut Reader,
    pub(super) writer: &'c mut Writer,
    pub(super) device: DeviceId,
    /// The features of the client's offer.
    pub(super) features: u32,
}

/// The end of a login at the auth process.
pub(super) enum Decision {
    Granted(Granted),
    Refused(Refused),
}

impl ControlServer {
    /// Goes on after this reply of the auth process until it has decided.
    pub(super) async fn go_on(&self, mut peer: Peer<'_>, first: LoginReply) -> Result<Decision, Failure> {
        let mut reply = first;
        loop {
            reply = match reply {
                LoginReply::CodeRequired(login) => self.typed(&mut peer, login, one_time_code).await?,
                LoginReply::Challenge(demand) if peer.features & FEATURE_CHALLENGES == 0 => {
                    self.abandon(demand.login).await?;
                    return Ok(Decision::Refused(Refusal::LacksChallenges.into()));
                }
                LoginReply::Challenge(demand) if demand.kind == ChallengeKind::Push => {
                    self.approval(&mut peer, &demand).await?
                }
                LoginReply::Challenge(demand) => {
                    let ask = async |reader: &mut Reader, writer: &mut Writer| {
                        challenge(reader, writer, &demand).await
                    };
                    self.typed(&mut peer, demand.login, ask).await?
                }
                LoginReply::Granted(granted) => return Ok(Decision::Granted(granted)),
                LoginReply::Refused(refused) => return Ok(Decision::Refused(refused)),
            };
        }
    }

    /// Has the person type something, and the auth process check it.
    async fn typed(
        &self,
        peer: &mut Peer<'_>,
        login: u64,
        ask: impl AsyncFnOnce(&mut Reader, &mut Writer) -> Result<ChallengeAnswer, Failure>,
    ) -> Result<LoginReply, Failure> {
        let typed = match self.acceptor.code_permit(peer.remote) {
            Some(mut permit) => unless_displaced(&mut permit, ask(peer.reader, peer.writer)).await,
            None => Err(Failure::Displaced),
        };
        match typed {
            Ok(answer) => {
                let device = peer.device.0.into();
                Ok(self.auth.request(TypedAnswer { login, answer, device }).await?)
            }
            Err(failure) => {
                // A client that leaves has made an attempt, too: the auth process counts it.
                self.abandon(login).await?;
                if matches!(failure, Failure::Displaced) {
                    Ok(refused(Refusal::WaitingFull))
                } else {
                    Err(failure)
                }
            }
        }
    }

    /// Waits for a decision that a person makes elsewhere, as long as the client is there.
    async fn approval(&self, peer: &mut Peer<'_>, demand: &Demand) -> Result<LoginReply, Failure> {
        let Some(mut permit) = self.acceptor.code_permit(peer.remote) else {
            self.abandon(demand.login).await?;
            return Ok(refused(Refusal::WaitingFull));
        };
        let left = match send(peer.writer, demand).await {
            Ok(()) => loop {
                let query = ApprovalQuery { login: demand.login, device: peer.device.0.into() };
                tokio::select! {
                    reply = self.auth.request(query) => if let Some(decided) = reply? {
                        return Ok(decided);
                    },
                    read = peer.reader.next() => break match read {
                        Ok(Some(_)) => Failure::Unexpected,
                        Ok(None) => Failure::Ended,
                        Err(error) => error.into(),
                    },
                    () = permit.displaced() => break Failure::Displaced,
                }
            },
            Err(error) => error.into(),
        };
        self.abandon(demand.login).await?;
        if matches!(left, Failure::Displaced) { Ok(refused(Refusal::WaitingFull)) } else { Err(left) }
    }

    /// The login is over: the client has left, or can't answer.
    async fn abandon(&self, login: u64) -> Result<(), Failure> {
        Ok(self.auth.request(Abandon(login)).await?)
    }
}

fn refused(refusal: Refusal) -> LoginReply {
    LoginReply::Refused(refusal.into())
}

async fn send(writer: &mut Writer, demand: &Demand) -> Result<(), StreamError> {
    let Demand { kind, text, time_s, .. } = demand;
    writer.send(&Message::Challenge(Challenge { kind: *kind, text: text.clone(), time_s: *time_s })).await
}

/// Has the client answer a challenge.
async fn challenge(
    reader: &mut Reader,
    writer: &mut Writer,
    demand: &Demand,
) -> Result<ChallengeAnswer, Failure> {
    send(writer, demand).await?;
    match next(reader, Duration::from_secs(demand.time_s.into())).await? {
        Message::ChallengeResponse(typed) => Ok(typed.answer),
        _ => Err(Failure::Unexpected),
    }
}

/// Requests a one-time code from the client.
async fn one_time_code(reader: &mut Reader, writer: &mut Writer) -> Result<ChallengeAnswer, Failure> {
    writer.send(&Message::OneTimeCodeWanted).await?;
    match next(reader, CODE_TIMEOUT).await? {
        Message::OneTimeCode(typed) => {
            ChallengeAnswer::new(typed.code.expose()).map_err(|_| Failure::Unexpected)
        }
        _ => Err(Failure::Unexpected),
    }
}

/// The client's next message.
async fn next(reader: &mut Reader, longest: Duration) -> Result<Message, Failure> {
    let message = tokio::time::timeout(longest, reader.next()).await;
    message.map_err(|_| Failure::TooSlow)??.ok_or(Failure::Ended)
}
