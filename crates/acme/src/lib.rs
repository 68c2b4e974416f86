//! The acme process of a gateway: it orders one certificate from an authority (RFC 8555), and ends.
//!
//! Invariants: it never has the certificate's key, only a request that the parent has signed with
//! it; it has no store and no file but those by which names are looked up, and connects to the
//! directory's port alone. Where web pages have the challenge's port, the portal answers there by
//! digests that it is given, and this process listens nowhere. Whatever the authority or a stranger
//! at the challenge's port sends costs at most this order, with bounded memory and time. What it
//! reports decides nothing: the parent takes a chain only if it is for the gateway's key and names.
#![deny(unsafe_code)]
// A library in form only: its user is the daemon's dispatch of roles.
#![allow(missing_docs)]

mod challenge;
mod http;

use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, ExternalAccountKey, Identifier,
    NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use minicbor::bytes::ByteVec;
use zeroize::Zeroizing;

use challenge::Answers;
use http::Https;
use vpnd_ipc::channel::Channel;
use vpnd_ipc::child::{self, ChildRole, Preparation, Started};
use vpnd_ipc::gateway::acme::{
    AcmeLaunch, FromAcme, MAX_ACCOUNT, MAX_CHAIN, MAX_REASON, ORDER_TIMEOUT, Proofs, ToAcme,
};
use vpnd_ipc::messages::{Prepared, SecretBytes};
use vpnd_pki::tls::{self, SystemTrust, Trust};

/// Limit for the authority to have made up its mind, and then to have made the certificate.
const POLL_TIMEOUT: Duration = Duration::from_secs(90);
/// Growth of the interval between two questions. None follows that would come after the limit, so
/// with 2 the last would come after a third of it.
const BACKOFF: f32 = 1.2;
/// Limit for the portal to answer challenges.
const PORTAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs it; `stream` leads to the parent.
pub fn run(stream: UnixStream) -> anyhow::Result<()> {
    let prepare = |launch: &AcmeLaunch| {
        let trust = match &launch.directory_ca {
            Some(ca) => tls::to_server(&Trust::Pinned(ca), None)?,
            None => tls::to_server(&Trust::System(SystemTrust::read()?), None)?,
        };
        let ca = launch.directory_ca.as_ref().map(|_| "the file 'directory_ca'");
        Ok(Preparation {
            writable: Vec::new(),
            tcp_ports: vec![launch.port],
            made: Https::new(trust, ca, launch.port),
        })
    };
    let started = child::start(ChildRole::Acme, &stream, |launch: &AcmeLaunch| &launch.common, prepare);
    let last = match started.and_then(|started| work(&stream, started)) {
        Ok(chain) => FromAcme::Issued(chain),
        Err(error) => FromAcme::Failed(readable(&error)),
    };
    child::finish(stream, &last)
}

/// An error in one line. The authority's words are a part of it.
fn readable(error: &anyhow::Error) -> String {
    vpnd_sys::text::harmless(&vpnd_sys::text::format_chain(error)).chars().take(MAX_REASON).collect()
}

fn work(stream: &UnixStream, started: Started<AcmeLaunch, Https>) -> anyhow::Result<ByteVec> {
    let mut chain = None;
    child::work(stream, async |parent| {
        let ordered = tokio::time::timeout(ORDER_TIMEOUT, order(started, parent)).await;
        chain = Some(ordered.map_err(|_| anyhow!("the authority takes too long"))??);
        Ok(())
    })?;
    chain.context("there is no certificate")
}

async fn order(started: Started<AcmeLaunch, Https>, parent: Channel) -> anyhow::Result<ByteVec> {
    let launch = started.launch.message;
    // Without one, the portal has the port.
    let listener = started.launch.descriptors.into_iter().next().map(TcpListener::from);
    parent.send(&Prepared::Prepared(started.protections), &[]).await?;
    let account = account(&launch, started.made, &parent).await?;
    let names: Vec<Identifier> = launch.names.iter().cloned().map(Identifier::Dns).collect();
    let order = account.new_order(&NewOrder::new(&names)).await;
    let mut order = order.context("the authority takes no order for these names")?;
    let answers = prepare_answers(&mut order, launch.over_http).await?;
    // Dropped with the answers at the end.
    let _answering = match listener {
        Some(listener) => Some(challenge::answer(listener, answers, launch.over_http)?),
        None => {
            answered_by_portal(answers, &parent).await?;
            None
        }
    };
    if order.state().status == OrderStatus::Pending {
        set_ready(&mut order, launch.over_http).await?;
    }
    let retries = RetryPolicy::new().backoff(BACKOFF).timeout(POLL_TIMEOUT);
    if order.poll_ready(&retries).await.context("the authority can't be asked about the order")?
        != OrderStatus::Ready
    {
        bail!(refusal(&mut order).await);
    }
    order.finalize_csr(&launch.request).await.context("the authority refuses the request")?;
    let chain = order.poll_certificate(&retries).await.context("the authority makes no certificate")?;
    if chain.len() > MAX_CHAIN {
        bail!("the authority's chain has more than {MAX_CHAIN} bytes");
    }
    Ok(chain.into_bytes().into())
}

/// Waits until the portal has the answers.
async fn answered_by_portal(answers: Answers, parent: &Channel) -> anyhow::Result<()> {
    let proofs = Proofs::new(answers.proofs).context("the authority asks for proofs of too many names")?;
    parent.send(&FromAcme::Proofs(proofs), &[]).await?;
    let answering = tokio::time::timeout(PORTAL_TIMEOUT, parent.receive::<ToAcme>()).await;
    let answering = answering.context("the web pages' process takes no challenge")??;
    let ToAcme::Answering = answering.context("the daemon's parent is lost")?.alone()?;
    Ok(())
}

/// The account, a new one if there is none of this directory; the parent keeps it before anything
/// is ordered.
async fn account(launch: &AcmeLaunch, https: Https, parent: &Channel) -> anyhow::Result<Account> {
    let builder = Account::builder_with_http(Box::new(https));
    if let Some(kept) = &launch.account {
        let kept: AccountCredentials =
            serde_json::from_slice(&kept.0).context("the account's file can't be read")?;
        let account = builder.from_credentials(kept).await;
        return account.context("the authority's directory can't be read");
    }
    let bound = match &launch.external_account {
        None => None,
        Some(external) => {
            let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
            let text =
                Zeroizing::new(external.key.0.iter().copied().filter(|b| *b != b'=').collect::<Vec<_>>());
            let key = engine.decode(&*text).context("the key in eab_key_file is not base64url")?;
            Some(ExternalAccountKey::new(external.key_id.clone(), &Zeroizing::new(key)))
        }
    };
    let contact: Vec<&str> = launch.contact.iter().map(String::as_str).collect();
    let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
    let made = builder.create(&new, launch.directory.clone(), bound.as_ref()).await;
    let (account, credentials) = made.context("the authority makes no account")?;
    let text = Zeroizing::new(serde_json::to_vec(&credentials)?);
    if text.len() > MAX_ACCOUNT {
        bail!("the authority's account has more than {MAX_ACCOUNT} bytes");
    }
    parent.send(&FromAcme::Account(SecretBytes(text)), &[]).await?;
    Ok(account)
}

/// The states of a proof (RFC 8555 section 7.1.6) that lead nowhere.
fn in_words(status: AuthorizationStatus) -> &'static str {
    match status {
        AuthorizationStatus::Invalid => "an earlier proof has failed",
        AuthorizationStatus::Revoked => "it has revoked the proof",
        AuthorizationStatus::Expired => "the proof has expired",
        AuthorizationStatus::Deactivated => "the proof was deactivated",
        _ => "the proof goes no further",
    }
}

fn kind(over_http: bool) -> ChallengeType {
    if over_http { ChallengeType::Http01 } else { ChallengeType::TlsAlpn01 }
}

/// The answers to the challenges of all names that the authority has not seen proved yet.
async fn prepare_answers(order: &mut Order, over_http: bool) -> anyhow::Result<Answers> {
    let mut answers = Answers::default();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.context("the authority does not send what is to be proved")?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            status => bail!(
                "the authority has given up on {}: {}; order again, and look at what it says of the name",
                authorization.identifier(),
                in_words(status)
            ),
        }
        let name = authorization.identifier().to_string();
        let Some(challenge) = authorization.challenge(kind(over_http)) else {
            bail!("the authority does not offer this challenge for {name}: set the other one in [acme]");
        };
        let proof = challenge.key_authorization();
        if over_http {
            answers.add_token(&challenge.token, proof.as_str());
        } else {
            answers.add_proof(&name, proof.digest().as_ref())?;
        }
    }
    Ok(answers)
}

/// Tells the authority that the answers are there.
async fn set_ready(order: &mut Order, over_http: bool) -> anyhow::Result<()> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status != AuthorizationStatus::Pending {
            continue;
        }
        if let Some(mut challenge) = authorization.challenge(kind(over_http)) {
            challenge.set_ready().await.context("the authority does not take the answer")?;
        }
    }
    Ok(())
}

/// Why an order came to nothing, in the authority's words.
async fn refusal(order: &mut Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        let errors = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        reasons.extend(errors.map(|error| format!("{name}: {error}")));
    }
    if reasons.is_empty() {
        return "the authority has given no reason".to_owned();
    }
    format!("the authority could not see that the name is this gateway's: {}", reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authoritys_words_are_one_short_line() {
        let error = anyhow!("no\n\x1b[2J{}", "x".repeat(5000)).context("the authority refuses");
        let line = readable(&error);
        assert!(line.starts_with("the authority refuses: no [2Jx") || line.contains("no"), "{line}");
        assert!(line.chars().count() <= MAX_REASON && !line.chars().any(char::is_control));
    }
}
