//! The client's state, as people see it: in `systemctl status`, in `vpnd status`, and at the
//! terminal of a user without root.
//!
//! INVARIANT: all of these show the same state, and a login page of the network is named only while
//! the gateway does not answer. A client is shown as connected without more only if the gateway's
//! newest settings are in force.

use vpnd_config::profile::Profile;
use vpnd_proto::control::AsText;

use super::console::Console;
use super::layer::OwnLayer;
use super::login_page::LoginPages;
use super::transport::Transport;
use crate::messages::Measured;
use crate::user_messages::{self, TunnelDetails, TunnelState};
use vpnd_sys::service_manager;

pub(super) struct StateDisplay {
    /// The name that the gateway's certificate carries.
    gateway: String,
    interface: String,
    transport: Transport,
    /// The line about new settings that are not in force.
    refusal: Option<String>,
    login_pages: LoginPages,
    console: Console,
    /// Its file has the state for `vpnd status`.
    layer: OwnLayer,
}

impl StateDisplay {
    pub(super) fn new(profile: &Profile, interface: String, console: Console, layer: OwnLayer) -> Self {
        Self {
            gateway: profile.server_name.clone(),
            interface,
            transport: Transport::new(profile),
            refusal: None,
            login_pages: LoginPages::default(),
            console,
            layer,
        }
    }

    /// The person for whom the client runs.
    pub(super) fn console(&self) -> &Console {
        &self.console
    }

    pub(super) fn note(&mut self, state: TunnelState) {
        let words = self.transport.note(state);
        let refusal = self.refusal.as_deref().filter(|_| state == TunnelState::Connected);
        let words = refusal.unwrap_or(words);
        service_manager::status(words);
        self.layer.note(&format!("{} to {}: {words}", self.interface, self.gateway));
        self.console.note(state, self.transport.tcp_port(), refusal);
        // A login page can be opened in this state alone.
        if state == TunnelState::Connecting {
            self.look_for_login_page();
        }
    }

    /// Shows why new settings of the gateway are not in force, while they are not.
    pub(super) fn note_settings(&mut self, reason: Option<&str>) {
        let refusal = reason.map(|reason| {
            format!("the gateway's new settings are not in force, and the former ones stay: {reason}")
        });
        if self.refusal != refusal {
            self.refusal = refusal;
            if self.transport.is_connected() {
                self.note(TunnelState::Connected);
            }
        }
    }

    /// Shows which way the tunnel goes.
    pub(super) fn note_transport(&mut self, is_tcp: bool) {
        self.transport.set_tcp(is_tcp);
        if self.transport.is_connected() {
            self.note(TunnelState::Connected);
        }
    }

    /// Looks whether the machine's networks name login pages.
    pub(super) fn look_for_login_page(&mut self) {
        self.login_pages.look(self.transport.is_connected(), &self.console);
    }

    /// Sends the report, if one was requested: the settings `in_force` on this machine, and what
    /// the worker has measured.
    pub(super) fn report(&self, measured: Measured, in_force: impl FnOnce() -> TunnelDetails) {
        self.console.report(|| self.details(measured, in_force()));
    }

    fn details(&self, measured: Measured, in_force: TunnelDetails) -> TunnelDetails {
        let Measured { gateway, over_tcp, rtt_us, control_sent, control_lost, carried } = measured;
        let transport = if over_tcp { user_messages::Transport::Tcp } else { user_messages::Transport::Udp };
        TunnelDetails {
            gateway: self.gateway.clone(),
            gateway_address: gateway.map(|AsText(address)| address.to_string()),
            transport: Some(transport),
            rtt_us,
            control_sent,
            control_lost,
            rx_bytes: carried.rx_bytes,
            tx_bytes: carried.tx_bytes,
            rx_packets: carried.rx_packets,
            tx_packets: carried.tx_packets,
            refusal: self.refusal.clone(),
            ..in_force
        }
    }
}
