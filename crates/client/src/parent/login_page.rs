//! The login page that a network names itself, for a person whose gateway does not answer.

use super::console::Console;
use crate::capport::{self, Named};
use vpnd_sys::logging::NEWS;

/// Login pages that the machine's networks have announced so far.
#[derive(Default)]
pub(super) struct LoginPages(Vec<Named>);

impl LoginPages {
    /// Says each once, but not while the gateway answers (`is_connected`): then there is nothing to
    /// do, and `vpnd captive-portal` is refused.
    pub(super) fn look(&mut self, is_connected: bool, console: &Console) {
        let named = capport::named();
        if is_connected {
            self.0.retain(|word| named.contains(word));
        } else {
            self.say(named, console);
        }
    }

    fn say(&mut self, named: Vec<Named>, console: &Console) {
        for word in named.iter().filter(|word| !self.0.contains(word)) {
            if let Named::Api(api) = word {
                let line = format!(
                    "this network has a login page (captive portal, {}): if the gateway does not answer, open any web page and log \
                     in first; under a kill switch or a full tunnel by `vpnd captive-portal`",
                    api.host()
                );
                tracing::info!(target: NEWS, "{line}");
                console.say(&line);
            }
        }
        self.0 = named;
    }
}
