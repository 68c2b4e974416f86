//! Limits of TLS session resumption (PROTOCOL §3).
//!
//! In a resumed handshake the gateway proves that it can read its tickets and nothing else, and it
//! issues the next ticket itself. An attacker who has the key of the tickets can therefore answer a
//! client as the gateway for as long as that client only resumes. INVARIANT: no client does so for
//! longer than [`RESUMPTION_LIFETIME`]; then it forgets all tickets, and the gateway has to sign
//! with the key of its certificate, which the process that makes the tickets does not have.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::{GetRandomFailed, aws_lc_rs};
use rustls::server::ProducesTickets;
use rustls::ticketer::TicketRotator;
use vpnd_proto::time::Time;

use super::TlsError;

/// Time for which a client resumes from ticket to ticket before it demands the gateway's
/// certificate again.
pub(super) const RESUMPTION_LIFETIME: Duration = Duration::from_secs(3600);
/// Time for which the gateway issues tickets under one key, seconds. It accepts them for as long
/// again.
const TICKET_KEY_LIFETIME_S: u32 = 1800;
/// Tickets that a client keeps. It has one gateway, and each is good once.
const MAX_TICKETS: usize = 8;

/// A client's side of TLS, with the tickets of its gateway.
pub struct Client {
    config: ClientConfig,
    clock: fn() -> Time,
    current: Mutex<Option<(Time, Arc<ClientConfig>)>>,
}

impl Client {
    pub(super) fn new(config: ClientConfig, clock: fn() -> Time) -> Self {
        Self { config, clock, current: Mutex::default() }
    }

    /// The settings of the next connection.
    ///
    /// # Errors
    /// If the provider lacks what QUIC needs.
    pub fn quic(&self) -> Result<Arc<QuicClientConfig>, TlsError> {
        Ok(Arc::new(self.for_next_connection().try_into()?))
    }

    /// The settings of TLS alone. Connections keep the settings they began with, so a ticket that
    /// one of them gets later is not taken for a newer one.
    pub(super) fn for_next_connection(&self) -> Arc<ClientConfig> {
        let now = (self.clock)();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, config)) = &*current
            && now.since(*since) < RESUMPTION_LIFETIME
        {
            return Arc::clone(config);
        }
        let mut fresh = self.config.clone();
        fresh.resumption = Resumption::in_memory_sessions(MAX_TICKETS);
        let fresh = Arc::new(fresh);
        *current = Some((now, Arc::clone(&fresh)));
        fresh
    }
}

/// Makes a gateway's tickets. Their keys are in this process's memory alone, and change.
pub(super) fn ticketer() -> Result<Arc<dyn ProducesTickets>, TlsError> {
    let rotator = TicketRotator::new(TICKET_KEY_LIFETIME_S, || Ok(Box::new(OneKey::new()?)));
    match rotator {
        Ok(rotator) => Ok(Arc::new(rotator)),
        Err(source) => Err(TlsError::Refused { what: "the random source for tickets", source }),
    }
}

/// The library's tickets. It changes their key by itself too, but later than this is dropped.
#[derive(Debug)]
struct OneKey(Arc<dyn ProducesTickets>);

impl OneKey {
    fn new() -> Result<Self, GetRandomFailed> {
        aws_lc_rs::Ticketer::new().map(Self).map_err(|_| GetRandomFailed)
    }
}

impl ProducesTickets for OneKey {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.0.decrypt(cipher)
    }
}
