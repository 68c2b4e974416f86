//! Any bytes as a line of the control socket, at either end: nothing panics, what is read can be
//! written and is then read as the same, and nothing that a gateway says plays with an
//! administrator's terminal.

use std::time::Duration;

use crate::commands::admin::table::{Rates, render};
use vpnd_ipc::admin::{Request, Response};

/// Checks one input.
pub fn run(data: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(data) {
        let written = serde_json::to_vec(&request).expect("a request can always be written");
        assert_eq!(serde_json::from_slice::<Request>(&written).expect("it was written"), request);
    }
    let Ok(response) = serde_json::from_slice::<Response>(data) else { return };
    let written = serde_json::to_vec(&response).expect("a response can always be written");
    let again: Response = serde_json::from_slice(&written).expect("it was written");
    if let Response::Status(status) = again {
        let rates = Rates::between(&status, &status, Duration::from_secs(1));
        for text in [render(&status, None), render(&status, Some(&rates))] {
            assert_eq!(text, vpnd_sys::text::plain(&text));
        }
    }
}
