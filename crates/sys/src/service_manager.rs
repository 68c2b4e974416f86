//! Messages to the service manager, such as systemd, that has started this process
//! (`sd_notify(3)`).
//!
//! Only a privileged parent sends: children are started without the variable that names the socket,
//! and a unit's `NotifyAccess=main` would ignore them.

use sd_notify::NotifyState;

use crate::text::harmless;

/// The start is complete, so what waits for this service may start.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// `status` is the line that `systemctl status` shows. Only its first line counts: others would be
/// separate messages.
pub fn status(status: &str) {
    send(&[NotifyState::Status(&harmless(status.lines().next().unwrap_or_default()))]);
}

/// The process ends by intention.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager could not be informed; it may take this start for a failed one");
    }
}
