//! Logins in a browser (PROTOCOL §4.3): the client receives the page's address, and its connection
//! ends.

use quinn::Connection;
use vpnd_control_channel::stream::Writer;
use vpnd_proto::control::{FEATURE_BROWSER, Login, LoginStart, Message};

use super::{ControlServer, Failure, verify_device};
use vpnd_ipc::gateway::auth::{BrowserLogin, BrowserLoginReply};
use vpnd_ipc::gateway::refusal::{Refusal, Refused};

impl ControlServer {
    /// Tells a client where its login goes on.
    pub(super) async fn start_in_browser(
        &self,
        connection: &Connection,
        writer: &mut Writer,
        start: LoginStart,
    ) -> Result<(), Failure> {
        let device = verify_device(connection, &start.device)?;
        if self.core.is_draining() {
            return self.refuse(writer, Refusal::Draining.into()).await;
        }
        let request = BrowserLogin {
            device: device.0.into(),
            source: self.remote(connection).ip().to_canonical(),
            port: start.port,
            state: start.state,
            challenge: start.challenge,
            name: start.name,
            short_code: start.short_code,
        };
        match self.auth.request(request).await? {
            BrowserLoginReply::At(at) => Ok(writer.send(&Message::LoginAt(at)).await?),
            BrowserLoginReply::Refused(refused) => self.refuse(writer, refused).await,
        }
    }
}

/// The refusal for this client, which may be able to log in in a browser.
pub(super) fn for_client(login: &Login, refused: Refused) -> Refused {
    match refused.refusal {
        Refusal::NeedsBrowser if login.offer.features & FEATURE_BROWSER != 0 => {
            Refusal::StartInBrowser.into()
        }
        _ => refused,
    }
}
