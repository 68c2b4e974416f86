//! One control connection at the gateway: handshake, login or attach, then messages both ways.
//!
//! INVARIANT: a connection that has not authenticated holds one stream and one message of memory,
//! and has a deadline; it reaches the control plane only after its credentials proved good, or with
//! a token that the control plane checks.

mod browser;
mod login_log;
mod logins;
mod rounds;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quinn::{Connection, Incoming};
use rustls::server::ParsedCertificate;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use vpnd_control_channel::stream::{Reader, StreamError, Writer, close};
use vpnd_proto::control::{Attach, Code, End, Login, Message};
use vpnd_proto::device::{BadProof, CertificateKey, DeviceProof};
use vpnd_proto::gateway::Claim;
use vpnd_proto::session::{ConnectionId, DeviceId};

use crate::worker::auth_client::AuthClient;
use crate::worker::core::attach::Attaching;
use crate::worker::core::{Core, CoreRequest, OUTBOX, Outgoing};
use crate::worker::quic::acceptor::{Acceptor, Permit};
use login_log::LoggedIn;
pub(crate) use login_log::LoginLog;
pub(crate) use logins::Logins;
use rounds::{Decision, Peer};
use vpnd_ipc::gateway::auth::{Granted, LoginRequest};
use vpnd_ipc::gateway::refusal::{Refusal, Refused};
use vpnd_ipc::request::Reason;
use vpnd_ipc::requests::NoReply;
use vpnd_pki::revocation_list::CertificateNumber;
use vpnd_pki::tls;
use vpnd_sys::clock::wall_s;
use vpnd_sys::log_limit::REPORT_INTERVAL;

/// Limit for a client with a session to read what it was sent; then its connection is closed.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit before there is a session: such a connection may hold no permit, and an honest client
/// grants more credit with its first packet than a login's messages take.
const LOGIN_READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit for sending the last message of a connection.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves control connections: the state that all of them share.
pub(crate) struct ControlServer {
    pub core: Core,
    pub auth: AuthClient,
    pub deadline: Duration,
    pub acceptor: Acceptor,
    /// Logins and attaches by outcome.
    pub logins: Arc<Logins>,
    pub login_log: LoginLog,
    /// Nothing is ever sent: the receiver ends when the last connection is closed.
    pub _open: mpsc::Sender<Infallible>,
}

/// Reason why a connection ended before it had a session.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the handshake failed: {0}")]
    Handshake(#[from] quinn::ConnectionError),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("no login or attach in time")]
    TooSlow,
    #[error("displaced by a connection from a network that held less")]
    Displaced,
    #[error("the peer sent an unexpected message")]
    Unexpected,
    #[error("the peer ended its stream before it was answered")]
    Ended,
    #[error("refused: {}", .0.code())]
    Refused(Refusal),
    #[error(transparent)]
    Unproved(#[from] BadProof),
    #[error("the client certificate has expired, or is not valid yet")]
    Expired,
    #[error("no keys could be made from the handshake")]
    NoSecret,
    #[error("the daemon is stopping")]
    Stopped,
    #[error("the auth process could not decide: {0}")]
    Undecided(Reason),
}

impl From<NoReply> for Failure {
    fn from(none: NoReply) -> Self {
        match none {
            NoReply::Gone(_) => Self::Stopped,
            NoReply::Failed(why) => Self::Undecided(why),
        }
    }
}

impl Failure {
    /// The code of the close (PROTOCOL §14).
    fn code(&self) -> Code {
        match self {
            Self::Stream(StreamError::Message(_) | StreamError::Unread)
            | Self::Unexpected
            | Self::Ended
            | Self::TooSlow
            | Self::Unproved(_) => Code::BadRequest,
            Self::Refused(refusal) => refusal.code(),
            Self::Expired => Code::Certificate,
            Self::Displaced => Code::Busy,
            Self::Stopped => Code::Shutdown,
            Self::Handshake(_) | Self::Stream(_) | Self::NoSecret | Self::Undecided(_) => Code::Internal,
        }
    }
}

impl ControlServer {
    /// Accepts connections until the endpoint is closed.
    pub(crate) async fn run(self: Arc<Self>, endpoint: quinn::Endpoint) {
        // Not a task by itself, whose share of this server would keep the last connection from
        // being noticed.
        tokio::select! {
            () = self.accept(&endpoint) => {}
            () = self.report_log() => {}
        }
        self.login_log.report();
    }

    async fn accept(self: &Arc<Self>, endpoint: &quinn::Endpoint) {
        let mut number = 0;
        while let Some((incoming, permit)) = self.acceptor.next(endpoint).await {
            number += 1;
            let (server, id) = (Arc::clone(self), ConnectionId(number));
            tokio::spawn(async move {
                let remote = incoming.remote_address();
                if let Err(failure) = server.serve(id, incoming, permit).await {
                    tracing::debug!(%remote, %failure, "control connection ended");
                }
            });
        }
    }

    /// Logs how many lines were left out; never returns.
    async fn report_log(&self) {
        loop {
            tokio::time::sleep(REPORT_INTERVAL).await;
            self.login_log.report();
        }
    }

    async fn serve(&self, id: ConnectionId, incoming: Incoming, mut permit: Permit) -> Result<(), Failure> {
        let deadline = Instant::now() + self.deadline;
        // A handshake that is not complete by then is dropped without a code of ours: there are no
        // keys to send it with.
        let connection =
            within(deadline, unless_displaced(&mut permit, async { Ok(incoming.await?) })).await?;
        let served = self.after_handshake(id, &connection, permit, deadline).await;
        if let Err(failure) = &served {
            self.count(&connection, failure);
            close(&connection, failure.code(), &failure.to_string());
        }
        served
    }

    /// Serves a connection whose handshake is complete.
    async fn after_handshake(
        &self,
        id: ConnectionId,
        connection: &Connection,
        mut permit: Permit,
        deadline: Instant,
    ) -> Result<(), Failure> {
        // State that is needed only until there is a session is boxed: this future lives as long as
        // its connection.
        let (mut reader, mut writer, first) =
            Box::pin(within(deadline, unless_displaced(&mut permit, open(connection)))).await?;
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        let accepted = match first {
            Message::Login(login) => {
                // Password checks take long, so logins have separate permits and leave these to
                // attaches.
                drop(permit);
                let accepted = self.log_in(id, connection, &mut reader, &mut writer, login, outbox);
                Box::pin(accepted).await.map(Some)
            }
            Message::Attach(attach) => {
                let accepted = Box::pin(self.attach(id, connection, attach, outbox)).await;
                drop(permit);
                accepted.map(|()| None)
            }
            Message::LoginStart(start) => {
                let started = self.start_in_browser(connection, &mut writer, *start);
                // A database that hangs is no fault of the client: auth limits its answer's time.
                let started = Box::pin(unless_displaced(&mut permit, started)).await;
                drop(permit);
                finish_stream(&mut writer).await;
                return started.inspect(|()| close(connection, Code::Bye, ""));
            }
            _ => Err(Failure::Unexpected),
        };
        let logged_in = match accepted {
            Ok(logged_in) => logged_in,
            Err(failure) => {
                finish_stream(&mut writer).await;
                return Err(failure);
            }
        };
        let ended = self.relay_messages(id, connection, &mut reader, &mut writer, outgoing, logged_in).await;
        let _ = self.core.send(CoreRequest::Lost(id)).await;
        let code = ended?;
        finish_stream(&mut writer).await;
        close(connection, code, "");
        Ok(())
    }

    /// The client's address.
    fn remote(&self, connection: &Connection) -> SocketAddr {
        self.acceptor.client(connection.remote_address())
    }

    /// Counts and logs a peer that broke the protocol.
    fn count(&self, connection: &Connection, failure: &Failure) {
        let counter = match failure {
            Failure::TooSlow => &self.logins.timed_out,
            Failure::Unproved(_) => &self.logins.unproved,
            Failure::Stream(StreamError::Unread) => &self.logins.unread,
            failure if failure.code() == Code::BadRequest => &self.logins.bad_requests,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.login_log.closed(self.remote(connection), failure);
    }

    async fn log_in(
        &self,
        id: ConnectionId,
        connection: &Connection,
        reader: &mut Reader,
        writer: &mut Writer,
        login: Login,
        outbox: mpsc::Sender<Outgoing>,
    ) -> Result<LoggedIn, Failure> {
        let device = verify_device(connection, &login.device)?;
        if self.core.is_draining() {
            return self.refuse_here(connection, writer, &login, device, Refusal::Draining).await;
        }
        let admission = self.check(connection, reader, writer, &login, device).await?;
        let who = LoggedIn {
            user: admission.account.name.clone(),
            device,
            source: admission.account.source.clone(),
            profile: admission.profile.clone(),
        };
        self.logins.accepted.fetch_add(1, Ordering::Relaxed);
        let secret = tls::epoch_secret(connection).map_err(|_| Failure::NoSecret)?;
        let request = CoreRequest::Login {
            connection: id,
            outbox,
            device,
            admission: Box::new(admission.into()),
            certificate: certificate(connection).and_then(|shown| CertificateNumber::of(&shown)),
            offer: login.offer,
            secret,
        };
        self.core.send(request).await.map_err(|_| Failure::Stopped)?;
        Ok(who)
    }

    /// Counts a refused login, and says why to its client.
    async fn refuse<T>(&self, writer: &mut Writer, refused: Refused) -> Result<T, Failure> {
        self.logins.count_refused(refused.refusal);
        writer.send(&Message::Refused(refused.into())).await?;
        Err(Failure::Refused(refused.refusal))
    }

    /// Refuses a login of which the auth process has logged nothing.
    async fn refuse_here<T>(
        &self,
        connection: &Connection,
        writer: &mut Writer,
        login: &Login,
        device: DeviceId,
        refusal: Refusal,
    ) -> Result<T, Failure> {
        self.login_log.refused(self.remote(connection), &login.user, None, device, refusal.code());
        self.refuse(writer, refusal.into()).await
    }

    /// Has the credentials checked. On an error the client has got its refusal already.
    async fn check(
        &self,
        connection: &Connection,
        reader: &mut Reader,
        writer: &mut Writer,
        login: &Login,
        device: DeviceId,
    ) -> Result<Granted, Failure> {
        let Some(permit) = self.acceptor.login_permit() else {
            return self.refuse_here(connection, writer, login, device, Refusal::Busy).await;
        };
        match self.authenticate(connection, reader, writer, login, device, permit).await {
            Ok(Decision::Granted(granted)) => Ok(granted),
            Ok(Decision::Refused(Refused { refusal: refusal @ Refusal::NoAddress, .. })) => {
                self.refuse_here(connection, writer, login, device, refusal).await
            }
            Ok(Decision::Refused(refused)) => self.refuse(writer, browser::for_client(login, refused)).await,
            Err(Failure::Undecided(why)) => {
                tracing::error!(%why, "a login could not be completed");
                self.refuse_here(connection, writer, login, device, Refusal::Internal).await
            }
            Err(failure) => Err(failure),
        }
    }

    /// Has the auth process check a login, with all that it demands of a person beyond the
    /// password.
    async fn authenticate(
        &self,
        connection: &Connection,
        reader: &mut Reader,
        writer: &mut Writer,
        login: &Login,
        device: DeviceId,
        permit: OwnedSemaphorePermit,
    ) -> Result<Decision, Failure> {
        let request = LoginRequest {
            user: login.user.clone(),
            password: login.password.clone(),
            code: login.code.clone(),
            certificate: certificate_hash(connection).map(Into::into),
            source: self.remote(connection).ip().to_canonical(),
            device: device.0.into(),
            grant: login.grant.as_deref().cloned(),
        };
        let answer = self.auth.request(request).await?;
        // A person types for longer than a password check takes, so that wait has permits of its
        // own.
        drop(permit);
        let remote = connection.remote_address();
        let peer = Peer { remote, reader, writer, device, features: login.offer.features };
        self.go_on(peer, answer).await
    }

    async fn attach(
        &self,
        id: ConnectionId,
        connection: &Connection,
        attach: Attach,
        outbox: mpsc::Sender<Outgoing>,
    ) -> Result<(), Failure> {
        let secret = tls::epoch_secret(connection).map_err(|_| Failure::NoSecret)?;
        let Attach { token, offer, session, device, .. } = attach;
        let claim = Claim { session, token, device: verify_device(connection, &device)? };
        let certificate = certificate(connection).and_then(|shown| CertificateNumber::of(&shown));
        let attaching = Box::new(Attaching::new(id, claim, certificate, offer, secret));
        let request = CoreRequest::Attach { attaching, outbox };
        self.core.send(request).await.map_err(|_| Failure::Stopped)
    }

    /// Moves messages both ways until one end closes. Returns the code to close with, if nothing is
    /// wrong.
    async fn relay_messages(
        &self,
        id: ConnectionId,
        connection: &Connection,
        reader: &mut Reader,
        writer: &mut Writer,
        mut outgoing: mpsc::Receiver<Outgoing>,
        logged_in: Option<LoggedIn>,
    ) -> Result<Code, Failure> {
        let (mut session_guard, mut answered) = (None, false);
        loop {
            tokio::select! {
                message = reader.next() => match message {
                    Ok(Some(message)) => {
                        if self.core.send(CoreRequest::Message { connection: id, message }).await.is_err() {
                            return Ok(Code::Shutdown);
                        }
                    }
                    Ok(None) if !answered => return Err(Failure::Ended),
                    Err(error @ StreamError::Message(_)) => return Err(error.into()),
                    Ok(None) | Err(_) => return Ok(Code::Bye),
                },
                message = outgoing.recv() => match message {
                    Some(Outgoing::Message(message)) => {
                        match &logged_in {
                            _ if answered => {}
                            None => self.logins.count_attach(&message),
                            Some(who) => {
                                self.logins.count_answer(&message);
                                self.login_log.answered(self.remote(connection), who, &message);
                            }
                        }
                        answered = true;
                        if matches!(*message, Message::Established(_)) && session_guard.is_none() {
                            session_guard = Some(self.acceptor.session_started(connection.remote_address()));
                            writer.set_patience(READ_TIMEOUT);
                        }
                        match writer.send(&message).await {
                            Ok(()) => {}
                            Err(unread @ StreamError::Unread) => return Err(unread.into()),
                            Err(_) => return Ok(Code::Bye),
                        }
                    }
                    Some(Outgoing::Close(code)) => return Ok(code),
                    None => return Ok(Code::Shutdown),
                },
            }
        }
    }
}

/// The stream and the first message.
async fn open(connection: &Connection) -> Result<(Reader, Writer, Message), Failure> {
    let (send, receive) = connection.accept_bi().await?;
    let mut reader = Reader::new(receive, End::Client);
    let first = reader.next().await?.ok_or(Failure::Ended)?;
    let mut writer = Writer::new(send);
    writer.set_patience(LOGIN_READ_TIMEOUT);
    Ok((reader, writer, first))
}

/// Does `work` unless its permit is taken away before.
async fn unless_displaced<T>(
    permit: &mut Permit,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        done = work => done,
        () = permit.displaced() => Err(Failure::Displaced),
    }
}

/// Does `work` unless the time is up before.
async fn within<T>(deadline: Instant, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout_at(deadline, work).await.map_err(|_| Failure::TooSlow)?
}

/// The device at the other end. Its signature is checked before anything in its message is looked
/// up, so a wrong one changes nothing and shows nothing of a token or a password.
fn verify_device(connection: &Connection, proof: &DeviceProof) -> Result<DeviceId, Failure> {
    let binding = tls::device_binding(connection).map_err(|_| Failure::NoSecret)?;
    let certificate = certificate_key(connection)?;
    Ok(proof.verify(&binding, certificate.as_ref())?)
}

/// Closes the stream, and waits until the peer has what was sent, within limits.
async fn finish_stream(writer: &mut Writer) {
    let _ = tokio::time::timeout(FINISH_TIMEOUT, writer.finish()).await;
}

/// SHA-256 of the certificate that the client showed.
fn certificate_hash(connection: &Connection) -> Option<[u8; 32]> {
    certificate(connection).map(|certificate| Sha256::digest(certificate).into())
}

/// The key of the certificate that the client showed, if it showed one. One whose key can't be
/// parsed is no reason to go on as without a certificate.
fn certificate_key(connection: &Connection) -> Result<Option<CertificateKey>, Failure> {
    let Some(certificate) = certificate(connection) else { return Ok(None) };
    if !is_valid_at(&certificate, wall_s()) {
        return Err(Failure::Expired);
    }
    let parsed = ParsedCertificate::try_from(&certificate).map_err(|_| BadProof)?;
    Ok(Some(CertificateKey::of(&parsed.subject_public_key_info())))
}

/// Whether the dates of a certificate include this moment, in seconds since 1970. TLS looks at them
/// in a full handshake only: without this a client could go on from ticket to ticket with a
/// certificate that has long expired.
fn is_valid_at(certificate: &CertificateDer<'_>, now_s: u64) -> bool {
    x509_parser::parse_x509_certificate(certificate).is_ok_and(|(_, parsed)| {
        let dates = parsed.validity();
        i64::try_from(now_s)
            .is_ok_and(|now| (dates.not_before.timestamp()..=dates.not_after.timestamp()).contains(&now))
    })
}

/// The certificate that the client showed, which the handshake has verified; that of the first
/// handshake if it was resumed.
fn certificate(connection: &Connection) -> Option<CertificateDer<'static>> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.into_iter().next()
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use vpnd_pki::authority::Authority;

    #[test]
    fn a_certificate_is_good_between_its_dates_only() {
        let now = SystemTime::now();
        let identity = Authority::new("tests", now).unwrap().client("alice", now).unwrap();
        let certificate = CertificateDer::from(identity.certificate_der);
        let now_s = now.duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(is_valid_at(&certificate, now_s));
        assert!(!is_valid_at(&certificate, now_s + 10 * 365 * 86_400), "years later");
        assert!(!is_valid_at(&certificate, now_s - 10 * 365 * 86_400), "years before");
        assert!(!is_valid_at(&CertificateDer::from(&b"no certificate"[..]), now_s));
    }
}
