//! A client's first message on a connection, with identity and proof, and what the answer
//! says of the gateway.

use vpnd_control_channel::login::{RequestStream, request};
use vpnd_crypto::device::PUBLIC_KEY_LEN;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{Code, Grant, Message, Offer, SecretText, UserName};
use vpnd_proto::device::DeviceProof;

use super::browser::InBrowser;
use super::{DialError, DialOutcome, Dialer, Shaken};
use crate::messages::WorkerLaunch;

/// This program, for the gateway's log.
pub(super) const SOFTWARE: &str = concat!("vpnd/", env!("CARGO_PKG_VERSION"));

pub(in crate::worker) struct Credentials {
    pub(super) user: String,
    pub(super) password: SecretText<1024>,
    /// The public key of this device.
    pub(super) device: [u8; PUBLIC_KEY_LEN],
    pub(super) browser: InBrowser,
}

impl Credentials {
    pub(in crate::worker) fn of(launch: &WorkerLaunch) -> Self {
        Self {
            user: launch.user.clone(),
            password: launch.password.clone(),
            device: launch.device.into(),
            browser: InBrowser::of(launch),
        }
    }
}

impl Dialer {
    /// Sends the request, and waits for what comes of it.
    pub(super) async fn ask(
        &self,
        purpose: &Purpose,
        offer: Offer,
        grant: Option<Grant>,
        shaken: Shaken,
    ) -> Result<DialOutcome, DialError> {
        let gateway = shaken.gateway();
        let request = self.request(purpose, offer, grant);
        let waiting = self.unanswered.wait_on(&shaken.connection, &shaken.endpoint);
        let outcome = self.ask_on(request, shaken).await;
        waiting.answered();
        let outcome = outcome.map_err(DialError::with_cause)?;
        match &outcome {
            DialOutcome::Refused(refused) if refused.code == Code::Drain => {
                gateway.map(|gateway| self.search.addresses().note_drained(gateway));
            }
            DialOutcome::Established(..) => {
                self.credentials.browser.was_up();
                if let Some(gateway) = gateway {
                    self.search.addresses().answered(gateway);
                }
            }
            DialOutcome::Refused(_) => {}
        }
        Ok(outcome)
    }

    /// Has the parent sign, which alone has the device's key.
    pub(super) async fn prove(&self, stream: &RequestStream) -> Result<DeviceProof, DialError> {
        let proof = self.parent.prove(&stream.binding()?).await.map_err(DialError::NoProof)?;
        Ok(DeviceProof::new(self.credentials.device, proof))
    }

    fn request<'d>(
        &'d self,
        purpose: &'d Purpose,
        offer: Offer,
        grant: Option<Grant>,
    ) -> impl FnOnce(DeviceProof) -> Result<Message, DialError> + 'd {
        move |device| {
            let user = UserName::new(&self.credentials.user)?;
            let password = match grant {
                Some(_) => SecretText::new("")?,
                None => self.credentials.password.clone(),
            };
            let mut message = request(purpose, offer, (user, password), device, SOFTWARE);
            if let Message::Login(login) = &mut message {
                login.grant = grant.map(Box::new);
            }
            Ok(message)
        }
    }
}
