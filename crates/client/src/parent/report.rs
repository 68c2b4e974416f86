//! The state of a running tunnel, for its user: settings in force on this machine, and what the
//! worker has measured.

use vpnd_proto::control::AsText;

use super::RunningClient;
use crate::messages::{Measured, Tell, ToWorker};
use crate::user_messages::{Transport, TunnelDetails};

impl RunningClient {
    /// Sends the report, if one was requested, and replies to the worker.
    pub(super) fn report(&self, number: u64, measured: Measured) -> ToWorker {
        self.console.report(|| self.details(measured));
        ToWorker::reply::<Measured>(number, Ok(()))
    }

    /// Has the user told what a server behind the gateway says.
    pub(super) fn tell(&self, number: u64, text: &str) -> ToWorker {
        self.console.tell(text);
        ToWorker::reply::<Tell>(number, Ok(()))
    }

    fn details(&self, measured: Measured) -> TunnelDetails {
        let Measured { gateway, over_tcp, rtt_us, control_sent, control_lost, carried } = measured;
        let in_force = self.setup.in_force();
        TunnelDetails {
            gateway: self.gateway.clone(),
            gateway_address: gateway.map(|AsText(address)| address.to_string()),
            transport: Some(if over_tcp { Transport::Tcp } else { Transport::Udp }),
            rtt_us,
            control_sent,
            control_lost,
            rx_bytes: carried.rx_bytes,
            tx_bytes: carried.tx_bytes,
            rx_packets: carried.rx_packets,
            tx_packets: carried.tx_packets,
            ..in_force
        }
    }
}
