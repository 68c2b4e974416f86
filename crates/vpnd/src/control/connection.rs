//! One control connection at the gateway: handshake, login or attach, then messages both ways.
//!
//! INVARIANT: a connection that has not authenticated holds one stream and one message of memory, and has a deadline;
//! it reaches the control plane only after its credentials proved good, or with a token that the control plane checks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn::{Connection, Incoming};
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use vpnd_proto::control::{Attach, Code, Explanation, Login, Message, OneTimePassword, Refused};
use vpnd_proto::session::ConnectionId;

use crate::auth::BUSY_S;
use crate::control::core::{Core, Outgoing, Request};
use crate::control::quic::gate::{Gate, Place};
use crate::control::stream::{Reader, StreamError, Writer, close};
use crate::privsep::auth::client::AuthClient;
use crate::privsep::auth::message::{Answer, Granted, LoginRequest, Request as Asked};
use crate::store::CertificateHash;
use crate::tls;

/// How long a person has to type a one-time code after the password was right.
const CODE_DEADLINE: Duration = Duration::from_secs(90);
/// Wrong one-time codes that one connection may try.
const CODE_ATTEMPTS: usize = 3;
/// How long a last message may take on its way out.
const FAREWELL: Duration = Duration::from_secs(2);

/// What all connections share.
pub(crate) struct Door {
    pub(crate) core: Core,
    pub(crate) auth: AuthClient,
    pub(crate) deadline: Duration,
    /// Lets connections in.
    pub(crate) gate: Gate,
    /// What became of logins and attaches.
    pub(crate) logins: Arc<Logins>,
    /// Nothing is ever sent: the other end hears when the last connection has said goodbye.
    pub(crate) _open: mpsc::Sender<Infallible>,
}

/// What became of logins, counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Logins {
    accepted: AtomicU64,
    refused: AtomicU64,
    busy: AtomicU64,
    no_address: AtomicU64,
    attaches: AtomicU64,
}

impl Logins {
    /// The counts by outcome.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let count = |name: &str, counter: &AtomicU64| (name.to_owned(), counter.load(Ordering::Relaxed));
        BTreeMap::from([
            count("accepted", &self.accepted),
            count("refused", &self.refused),
            count("busy", &self.busy),
            count("no_address", &self.no_address),
            count("attaches", &self.attaches),
        ])
    }
}

/// Why a connection ended before it had a session.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the handshake failed: {0}")]
    Handshake(#[from] quinn::ConnectionError),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("nothing was asked for in time")]
    TooSlow,
    #[error("the peer sent something else than a login or attach")]
    Unexpected,
    #[error("refused: {0}")]
    Refused(Code),
    #[error("no keys could be made from the handshake")]
    NoSecret,
    #[error("the daemon is going down")]
    Stopped,
}

impl Door {
    /// Takes connections in until the endpoint is closed.
    pub(crate) async fn run(self: Arc<Self>, endpoint: quinn::Endpoint) {
        let mut number = 0;
        while let Some((incoming, place)) = self.gate.next(&endpoint).await {
            number += 1;
            let (door, id) = (Arc::clone(&self), ConnectionId(number));
            tokio::spawn(async move {
                let remote = incoming.remote_address();
                if let Err(failure) = door.serve(id, incoming, place).await {
                    tracing::debug!(%remote, %failure, "control connection ended");
                }
            });
        }
    }

    async fn serve(&self, id: ConnectionId, incoming: Incoming, place: Place) -> Result<(), Failure> {
        // What is needed only until there is a session is kept apart, for this future lives as long as its connection.
        let opened = Box::pin(tokio::time::timeout(self.deadline, open(incoming))).await;
        let (connection, mut reader, mut writer, first) = opened.map_err(|_| Failure::TooSlow)??;
        let (outbox, outgoing) = mpsc::unbounded_channel();
        let asked = match first {
            Message::Login(login) => {
                drop(place);
                Box::pin(self.log_in(id, &connection, &mut reader, &mut writer, login, outbox)).await
            }
            Message::Attach(attach) => {
                let asked = Box::pin(self.attach(id, &connection, attach, outbox)).await;
                drop(place);
                asked
            }
            _ => Err(Failure::Unexpected),
        };
        match asked {
            Ok(()) => {
                let code = self.converse(id, &connection, &mut reader, &mut writer, outgoing).await;
                writer_farewell(&mut writer).await;
                close(&connection, code, "");
                let _ = self.core.send(Request::Lost(id)).await;
                Ok(())
            }
            Err(Failure::Unexpected) => {
                close(&connection, Code::BadRequest, "expected a login or an attach");
                Err(Failure::Unexpected)
            }
            Err(failure) => {
                writer_farewell(&mut writer).await;
                let code = if let Failure::Refused(code) = failure { code } else { Code::Internal };
                close(&connection, code, "");
                Err(failure)
            }
        }
    }

    async fn log_in(
        &self,
        id: ConnectionId,
        connection: &Connection,
        reader: &mut Reader,
        writer: &mut Writer,
        login: Login,
        outbox: mpsc::UnboundedSender<Outgoing>,
    ) -> Result<(), Failure> {
        let Some(_place) = self.gate.login_place() else { return self.busy(writer).await };
        let admission = self.check(connection, reader, writer, &login).await?;
        self.logins.accepted.fetch_add(1, Ordering::Relaxed);
        let secret = tls::epoch_secret(connection).map_err(|_| Failure::NoSecret)?;
        let request = Request::Login {
            connection: id,
            outbox,
            device: login.device,
            admission: Box::new(admission.into()),
            offer: login.offer,
            secret,
        };
        self.core.send(request).await.map_err(|_| Failure::Stopped)
    }

    /// Tells a client to come back later.
    async fn busy<T>(&self, writer: &mut Writer) -> Result<T, Failure> {
        self.logins.busy.fetch_add(1, Ordering::Relaxed);
        refuse(writer, Code::Busy, Some(Duration::from_secs(BUSY_S))).await?;
        Err(Failure::Refused(Code::Busy))
    }

    /// Has the credentials checked; asks for a one-time code if that is all that is missing. If they are wrong or there is
    /// no place, the client has been told.
    async fn check(
        &self,
        connection: &Connection,
        reader: &mut Reader,
        writer: &mut Writer,
        login: &Login,
    ) -> Result<Granted, Failure> {
        let mut code = login.code.clone();
        for _ in 0..=CODE_ATTEMPTS {
            let attempt = LoginRequest {
                user: login.user.clone(),
                password: login.password.clone(),
                code: code.take(),
                certificate: certificate_hash(connection).map(Into::into),
                source: connection.remote_address().ip().to_canonical(),
                device: login.device.0.into(),
            };
            let (code_number, retry_after_s) = match self.auth.ask(Asked::Login(attempt)).await {
                Ok(Answer::Granted(granted)) => return Ok(granted),
                Ok(Answer::CodeWanted) => {
                    code = Some(one_time_code(reader, writer).await?);
                    continue;
                }
                Ok(Answer::Busy) => return self.busy(writer).await,
                Ok(Answer::Refused { retry_after_s }) => (Code::Credentials, retry_after_s),
                Ok(Answer::NoAddress(why)) => {
                    self.logins.no_address.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(user = %login.user, %why, "no inner address for a login");
                    refuse(writer, Code::NoAddress, None).await?;
                    return Err(Failure::Refused(Code::NoAddress));
                }
                Ok(other) => {
                    tracing::error!(answer = ?other, "a login could not be completed");
                    (Code::Internal, None)
                }
                Err(_) => return Err(Failure::Stopped),
            };
            self.logins.refused.fetch_add(1, Ordering::Relaxed);
            refuse(writer, code_number, retry_after_s.map(Duration::from_secs)).await?;
            return Err(Failure::Refused(code_number));
        }
        self.logins.refused.fetch_add(1, Ordering::Relaxed);
        refuse(writer, Code::Credentials, None).await?;
        Err(Failure::Refused(Code::Credentials))
    }

    async fn attach(
        &self,
        id: ConnectionId,
        connection: &Connection,
        attach: Attach,
        outbox: mpsc::UnboundedSender<Outgoing>,
    ) -> Result<(), Failure> {
        let secret = tls::epoch_secret(connection).map_err(|_| Failure::NoSecret)?;
        self.logins.attaches.fetch_add(1, Ordering::Relaxed);
        let Attach { token, offer, session, .. } = attach;
        let request = Request::Attach { connection: id, outbox, token, session, offer, secret };
        self.core.send(request).await.map_err(|_| Failure::Stopped)
    }

    /// Moves messages both ways until one end closes. Returns the code to close with.
    async fn converse(
        &self,
        id: ConnectionId,
        connection: &Connection,
        reader: &mut Reader,
        writer: &mut Writer,
        mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    ) -> Code {
        let mut settled = None;
        loop {
            tokio::select! {
                message = reader.next() => match message {
                    Ok(Some(message)) => {
                        if self.core.send(Request::Message { connection: id, message }).await.is_err() {
                            return Code::Shutdown;
                        }
                    }
                    Ok(None) => return Code::Bye,
                    Err(StreamError::Message(error)) => {
                        tracing::debug!(%error, "a client broke the protocol");
                        return Code::BadRequest;
                    }
                    Err(_) => return Code::Bye,
                },
                order = outgoing.recv() => match order {
                    Some(Outgoing::Message(message)) => {
                        if matches!(*message, Message::Established(_)) && settled.is_none() {
                            settled = Some(self.gate.settle(connection.remote_address()));
                        }
                        if writer.send(&message).await.is_err() {
                            return Code::Bye;
                        }
                    }
                    Some(Outgoing::Close(code)) => return code,
                    None => return Code::Shutdown,
                },
            }
        }
    }
}

/// The handshake, the stream and the first message.
async fn open(incoming: Incoming) -> Result<(Connection, Reader, Writer, Message), Failure> {
    let connection = incoming.await?;
    let (send, receive) = connection.accept_bi().await?;
    let mut reader = Reader::new(receive);
    let first = reader.next().await?.ok_or(Failure::Unexpected)?;
    Ok((connection, reader, Writer(send), first))
}

/// Asks the person for a code.
async fn one_time_code(reader: &mut Reader, writer: &mut Writer) -> Result<OneTimePassword, Failure> {
    writer.send(&Message::OneTimeCodeWanted).await?;
    let answer = tokio::time::timeout(CODE_DEADLINE, reader.next()).await;
    match answer.map_err(|_| Failure::TooSlow)?? {
        Some(Message::OneTimeCode(typed)) => Ok(typed.code),
        _ => Err(Failure::Unexpected),
    }
}

async fn refuse(writer: &mut Writer, code: Code, retry_after: Option<Duration>) -> Result<(), StreamError> {
    let retry_after_ms = retry_after.map(|wait| u32::try_from(wait.as_millis()).unwrap_or(u32::MAX));
    let text = Explanation::cut(code.explanation());
    writer.send(&Message::Refused(Refused { code, text, retry_after_ms })).await
}

/// Gives what was sent a moment to arrive.
async fn writer_farewell(writer: &mut Writer) {
    let _ = tokio::time::timeout(FAREWELL, writer.finish()).await;
}

/// SHA-256 of the certificate that the client showed, which the handshake has verified.
fn certificate_hash(connection: &Connection) -> Option<CertificateHash> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.first().map(|certificate| Sha256::digest(certificate).into())
}
