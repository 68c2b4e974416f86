//! Logins of browsers at OpenID providers: from the button on the login page until the browser is
//! back.
//!
//! Invariants: a state is good once and for [`LIFETIME`], for the provider that it was made for and
//! for the browser that began the login, which shows its token; nonce and verifier are
//! this process's and idp's, so a portal that was taken over can redeem no code; what is kept is
//! bounded, and networks share it fairly; a provider that does not answer keeps nothing else
//! waiting.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use vpnd_proto::control::SecretText;
use vpnd_proto::time::Time;

use vpnd_ipc::gateway::idp::Random;
use vpnd_ipc::gateway::portal::Token;

/// Limit for a person at the provider.
const LIFETIME: Duration = Duration::from_secs(600);
/// A person who has taken this long makes room for another.
const DISPLACE_AFTER: Duration = Duration::from_secs(60);
/// Logins at most.
const LIMIT: usize = 4_096;

/// Requests for the address of a provider's login page at once: they only last where it has not
/// described itself lately.
pub(super) const ASKED: usize = 8;

type Hash = [u8; 32];

/// The logins that are under way.
pub(super) struct AtProvider {
    shares: Shares,
    /// By the hash of the state.
    waiting: HashMap<Hash, Waiting>,
    asking: Asking,
}

/// The providers whose addresses are being asked for.
#[derive(Default)]
struct Asking(HashMap<String, Arc<Semaphore>>);

impl Asking {
    fn begin(&mut self, source: &str) -> Option<OwnedSemaphorePermit> {
        let new = || Arc::new(Semaphore::new(ASKED));
        let of_one = self.0.entry(source.to_owned()).or_insert_with(new);
        Arc::clone(of_one).try_acquire_owned().ok()
    }
}

struct Waiting {
    source: String,
    /// Hash of the browser's token.
    browser: Hash,
    proof: Proof,
    since: Time,
    permit: PermitId,
}

/// Shows that a provider's answer belongs to a login.
pub(super) struct Proof {
    pub(super) nonce: Random,
    pub(super) verifier: SecretText<43>,
    pub(super) max_age_s: Option<u64>,
}

/// A login that begins.
pub(super) struct Begun {
    pub(super) token: Token,
    pub(super) state: Random,
    pub(super) nonce: Random,
    pub(super) challenge: Random,
}

impl Default for AtProvider {
    fn default() -> Self {
        let division =
            Division { limit: LIMIT, displace_after: DISPLACE_AFTER, displaced: Displaced::Oldest };
        Self { shares: Shares::new(division), waiting: HashMap::new(), asking: Asking::default() }
    }
}

impl AtProvider {
    /// Lets a configured provider be asked, if not too many requests are under way there.
    pub(super) fn ask(&mut self, source: &str) -> Option<OwnedSemaphorePermit> {
        self.asking.begin(source)
    }

    /// Begins a login; `None` if too many of its network are under way.
    pub(super) fn begin(
        &mut self,
        source: &str,
        address: IpAddr,
        max_age_s: Option<u64>,
        now: Time,
    ) -> Option<Begun> {
        self.remove_where(|waiting| now.since(waiting.since) >= LIFETIME);
        let Entered::In { permit, displaced } =
            self.shares.enter(now, Source::from(address), Standing::Stranger)
        else {
            return None;
        };
        self.waiting.retain(|_, waiting| Some(waiting.permit) != displaced);
        let [state, nonce, verifier] = [(); 3].map(|()| random());
        let token = Token(rand::random::<[u8; 32]>().into());
        let waiting = Waiting {
            source: source.to_owned(),
            browser: hash(&*token.0),
            proof: Proof { nonce: nonce.clone(), verifier: SecretText::new(&*verifier).ok()?, max_age_s },
            since: now,
            permit,
        };
        self.waiting.insert(hash(state.as_bytes()), waiting);
        let challenge = Random::cut(&URL_SAFE_NO_PAD.encode(hash(verifier.as_bytes())));
        Some(Begun { token, state, nonce, challenge })
    }

    /// Ends the login of this state. Returns what proves an answer, if it is the browser's that
    /// began at this provider.
    pub(super) fn finish(&mut self, state: &str, source: &str, token: &Token, now: Time) -> Option<Proof> {
        let waiting = self.waiting.remove(&hash(state.as_bytes()))?;
        self.shares.leave(waiting.permit);
        let is_same = waiting.browser == hash(&*token.0) && waiting.source == source;
        (is_same && now.since(waiting.since) < LIFETIME).then_some(waiting.proof)
    }

    fn remove_where(&mut self, is_over: impl Fn(&Waiting) -> bool) {
        let shares = &mut self.shares;
        self.waiting.retain(|_, waiting| {
            let stays = !is_over(waiting);
            if !stays {
                shares.leave(waiting.permit);
            }
            stays
        });
    }
}

fn random() -> Random {
    Random::cut(&URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()))
}

fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_state_is_good_once_for_its_browser_and_its_provider() {
        let mut logins = AtProvider::default();
        let begin =
            |logins: &mut AtProvider| logins.begin("uni", address("192.0.2.1"), None, Time::ZERO).unwrap();
        let (ann, eve) = (begin(&mut logins), begin(&mut logins));
        assert!(logins.finish(&ann.state, "uni", &eve.token, Time::ZERO).is_none(), "another browser's");
        assert!(logins.finish(&ann.state, "uni", &ann.token, Time::ZERO).is_none(), "it was tried");
        assert!(logins.finish(&eve.state, "other", &eve.token, Time::ZERO).is_none(), "another provider's");
        let ann = begin(&mut logins);
        let proof = logins.finish(&ann.state, "uni", &ann.token, Time::ZERO).unwrap();
        assert_eq!(proof.nonce, ann.nonce);
        assert_eq!(&*ann.challenge, URL_SAFE_NO_PAD.encode(hash(proof.verifier.expose().as_bytes())));
        assert!(logins.finish(&ann.state, "uni", &ann.token, Time::ZERO).is_none(), "used");
        let late = begin(&mut logins);
        assert!(logins.finish(&late.state, "uni", &late.token, Time::ZERO + LIFETIME).is_none());
        assert!(logins.finish("", "uni", &late.token, Time::ZERO).is_none());
    }

    #[test]
    fn tokens_states_and_nonces_are_256_random_bits() {
        let mut logins = AtProvider::default();
        let begun: Vec<[Vec<u8>; 3]> = (0..=255)
            .map(|host| {
                let begun = logins.begin("uni", [192, 0, host, 1].into(), None, Time::ZERO).unwrap();
                let bytes = |text: &Random| URL_SAFE_NO_PAD.decode(text.as_bytes()).unwrap();
                [begun.token.0.to_vec(), bytes(&begun.state), bytes(&begun.nonce)]
            })
            .collect();
        for kind in 0..3 {
            for bit in 0..256 {
                let ones = begun.iter().filter(|all| all[kind][bit / 8] >> (bit % 8) & 1 == 1).count();
                assert!((64..192).contains(&ones), "bit {bit} is set in {ones} of 256");
            }
        }
    }

    #[test]
    fn an_unresponsive_provider_is_limited_to_its_share() {
        let mut asking = Asking::default();
        let slow: Vec<_> = std::iter::from_fn(|| asking.begin("slow")).collect();
        assert_eq!(slow.len(), ASKED);
        let _good = asking.begin("good").expect("others are asked");
        drop(slow);
        assert!(asking.begin("slow").is_some());
    }

    #[test]
    fn waiting_logins_of_a_crowd_do_not_block_other_networks() {
        let mut logins = AtProvider::default();
        for _ in 0..2 * LIMIT {
            let _ = logins.begin("uni", address("192.0.2.1"), None, Time::ZERO);
        }
        assert!(logins.waiting.len() <= LIMIT && logins.waiting.len() == logins.shares.taken());
        let ann = logins.begin("uni", address("198.51.100.1"), None, Time::ZERO).unwrap();
        assert!(logins.finish(&ann.state, "uni", &ann.token, Time::ZERO).is_some());
        let _ = logins.begin("uni", address("198.51.100.1"), None, Time::ZERO + LIFETIME).unwrap();
        assert_eq!((logins.waiting.len(), logins.shares.taken()), (1, 1));
    }
}
