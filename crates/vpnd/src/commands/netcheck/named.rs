//! Captive portals that the machine's networks announce (RFC 8910, RFC 8908).

use super::Finding;
use vpnd_client::capport::{self, Named};

/// The findings, and whether a network wants a login.
pub(super) async fn portals() -> (Vec<Finding>, bool) {
    const CHECK: &str = "login.named";
    const ADVICE: &str =
        "if nothing else answers, open any page in a browser: the network may ask for a login";
    let (mut findings, mut is_captive) = (Vec::new(), false);
    for word in capport::named() {
        let api = match word {
            Named::Unrestricted => {
                findings.push(Finding::good(CHECK, "this network says that it asks for no login"));
                continue;
            }
            Named::Nonsense => {
                let found = "this network names a captive portal at what is no address";
                findings.push(Finding::unknown(CHECK, found, ADVICE));
                continue;
            }
            Named::Api(api) => api,
        };
        findings.push(match capport::ask(&api).await {
            Ok(state) if state.is_captive => {
                is_captive = true;
                let page = state.page.unwrap_or_else(|| format!("by its API at {}", api.host()));
                let found = format!("this network says that it wants a login: {page}");
                Finding::problem(CHECK, found, "log in there in a browser, then try again")
            }
            Ok(state) => {
                let left = state.seconds.map(|s| format!(", for {s} s")).unwrap_or_default();
                Finding::good(CHECK, format!("this network says that it wants no login now{left}"))
            }
            Err(why) => {
                let found =
                    format!("this network names a captive portal, but of its API at {}: {why}", api.host());
                Finding::unknown(CHECK, found, ADVICE)
            }
        });
    }
    (findings, is_captive)
}
