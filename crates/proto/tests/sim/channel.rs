//! The control channel: reliable, ordered messages over the lossy path, and a secret that both ends
//! share.
//!
//! Models of QUIC: a handshake of one and a half round trips; retransmission, so that loss is
//! delay; connections that die unnoticed when their path does, until an idle timeout; a reset by a
//! gateway that has forgotten them.

use std::time::Duration;

use rand::RngExt;
use vpnd_crypto::EpochSecret;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{Code, Explanation, Message, Offer, Refused};
use vpnd_proto::gateway::{Authenticated, Claim};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::{ConnectionId, SessionId};
use vpnd_proto::time::Time;

use crate::world::{HUB, Happening, World};

/// Silence of a connection after which it sends a keep-alive.
const KEEP_ALIVE: Duration = Duration::from_secs(25);
/// A connection that receives nothing dies after this time.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// A handshake that comes to nothing is given up after this time.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// One control connection.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) device: usize,
    /// The client's name for it; the gateway's is the channel's number.
    pub(crate) connection: ConnectionId,
    purpose: Purpose,
    offer: Offer,
    /// The exporter's secret for both ends.
    pub(crate) secret: [u8; 32],
    /// The device's network when it was made: it does not survive a move.
    network: u32,
    /// The gateway process that it was made with.
    life: u32,
    open_at_hub: bool,
    open_at_device: bool,
    answered: bool,
    /// When the last message arrives, each way: they keep their order.
    last_to_hub: Time,
    last_to_device: Time,
}

impl Channel {
    /// The purpose for which it was opened.
    pub(crate) fn purpose(&self) -> &Purpose {
        &self.purpose
    }
}

impl World {
    /// A client opens a connection.
    pub(crate) fn open_channel(
        &mut self,
        device: usize,
        connection: ConnectionId,
        purpose: Purpose,
        offer: Offer,
    ) {
        let number = self.next_channel;
        self.next_channel += 1;
        let channel = Channel {
            device,
            connection,
            purpose,
            offer,
            secret: self.rng.random(),
            network: self.devices[device].network,
            life: self.hub.life,
            open_at_hub: false,
            open_at_device: true,
            answered: false,
            last_to_hub: self.now,
            last_to_device: self.now,
        };
        self.channels.insert(number, channel);
        let (up, down) = (self.devices[device].up, self.devices[device].down);
        let ways = [up, down, up].map(|path| path.carry_reliably(&mut self.rng));
        match ways.into_iter().sum::<Option<Duration>>() {
            Some(delay) => self.after(delay, Happening::Request { channel: number }),
            None => self.after(HANDSHAKE_TIMEOUT, Happening::ClosedAtDevice { channel: number, code: None }),
        }
    }

    /// Whether what is sent on the channel can still arrive.
    fn is_whole(&self, channel: &Channel) -> bool {
        channel.network == self.devices[channel.device].network && channel.life == self.hub.life
    }

    pub(crate) fn request_arrives(&mut self, number: u64) {
        let Some(channel) = self.channels.get(&number) else { return };
        // A handshake takes a client that is still there.
        let gone = !channel.open_at_device || self.devices[channel.device].asleep || self.hub.asleep;
        if !self.is_whole(channel) || gone {
            self.after(HANDSHAKE_TIMEOUT, Happening::ClosedAtDevice { channel: number, code: None });
            return;
        }
        let (device, secret, offer) = (channel.device, channel.secret, channel.offer.clone());
        let (purpose, id) = (channel.purpose.clone(), ConnectionId(number));
        self.channels.get_mut(&number).expect("it was there a moment ago").open_at_hub = true;
        if matches!(purpose, Purpose::Login | Purpose::Move) && self.devices[device].disabled {
            self.refuse_login(number);
            return;
        }
        self.hub.latest_secret = secret;
        let exported = EpochSecret::new(secret);
        // The outcome is in the messages that follow.
        let _ = match purpose {
            Purpose::Login | Purpose::Move => {
                let who = self.authenticate(device);
                self.hub.core.login(self.now, id, who, &offer, exported)
            }
            Purpose::Attach { session, token } | Purpose::Transfer { session, token } => {
                let claim = Claim { session, token, device: self.devices[device].id };
                self.hub.core.attach(self.now, id, &claim, &offer, exported)
            }
        };
        self.settle_hub();
    }

    /// The store has no user of that name who may log in.
    fn refuse_login(&mut self, number: u64) {
        let code = Code::Credentials;
        let text = Explanation::cut(code.explanation());
        self.send_to_device(number, Message::Refused(Refused { code, text, retry_after_ms: None }));
        self.close_from_hub(number, code);
    }

    /// Forgets connections that both ends have given up.
    pub(crate) fn forget_closed_channels(&mut self) {
        let life = self.hub.life;
        self.channels.retain(|_, c| c.open_at_device || (c.open_at_hub && c.life == life));
    }

    /// Returns what the store has about the user of a device: every password is right here.
    fn authenticate(&mut self, device: usize) -> Authenticated {
        let session = SessionId(self.rng.random());
        let node = &self.devices[device];
        Authenticated {
            session,
            user: node.user.clone(),
            principal: Default::default(),
            limits: Default::default(),
            device: node.id,
            addresses: node.lease,
            deadline: self.now + self.hub.lifetime,
            idle_timeout: None,
            elsewhere: 0,
        }
    }

    /// The gateway sends a message.
    pub(crate) fn send_to_device(&mut self, number: u64, message: Message) {
        let Some(channel) = self.channels.get(&number) else { return };
        if matches!(message, Message::Established(_)) && self.lose_answers > 0 {
            self.lose_answers -= 1;
            self.break_channel(number);
            return;
        }
        let path = self.devices[channel.device].down;
        match path.carry_reliably(&mut self.rng) {
            Some(delay) => {
                let at = (self.now + delay).max(channel.last_to_device);
                self.channels.get_mut(&number).expect("it was there a moment ago").last_to_device = at;
                self.at(at, Happening::MessageToDevice { channel: number, message });
            }
            None => self.break_channel(number),
        }
    }

    /// A client sends a message.
    pub(crate) fn send_to_hub(&mut self, number: u64, message: Message) {
        let Some(channel) = self.channels.get(&number) else { return };
        let path = self.devices[channel.device].up;
        match path.carry_reliably(&mut self.rng) {
            Some(delay) => {
                let at = (self.now + delay).max(channel.last_to_hub);
                self.channels.get_mut(&number).expect("it was there a moment ago").last_to_hub = at;
                self.at(at, Happening::MessageToHub { channel: number, message });
            }
            None => self.break_channel(number),
        }
    }

    pub(crate) fn message_to_device(&mut self, number: u64, message: Message) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let (device, connection, secret) = (channel.device, channel.connection, channel.secret);
        let whole = channel.network == self.devices[device].network && channel.life == self.hub.life;
        if !channel.open_at_device || !whole {
            return;
        }
        let answer = matches!(message, Message::Established(_) | Message::Refused(_));
        channel.answered |= answer;
        self.devices[device].latest_secret = secret;
        let now = self.now;
        let Some(core) = &mut self.devices[device].core else { return };
        match message {
            Message::Established(established) => {
                let gateway = Endpoint { remote: HUB.parse().expect("an address"), local: None };
                core.established(now, connection, &established, EpochSecret::new(secret), gateway);
            }
            Message::Refused(refused) => {
                let retry = Duration::from_millis(refused.retry_after_ms.unwrap_or(0).into());
                core.refused(now, connection, refused.code, &refused.text, retry);
            }
            message => core.handle_message(now, connection, message),
        }
        self.settle_device(device);
    }

    pub(crate) fn message_to_hub(&mut self, number: u64, message: &Message) {
        let Some(channel) = self.channels.get(&number) else { return };
        if channel.open_at_hub && self.is_whole(channel) {
            self.hub.core.handle_message(ConnectionId(number), message);
            self.settle_hub();
        }
    }

    /// One end closes the channel: the other learns of it after what was sent before.
    pub(crate) fn close_from_hub(&mut self, number: u64, code: Code) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.open_at_hub = false;
        let at = channel.last_to_device.max(self.now + Duration::from_millis(20));
        self.at(at, Happening::ClosedAtDevice { channel: number, code: Some(code) });
    }

    pub(crate) fn close_from_device(&mut self, number: u64) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.open_at_device = false;
        let whole = channel.network == self.devices[channel.device].network;
        let at = channel.last_to_hub.max(self.now + Duration::from_millis(20));
        let at = if whole { at } else { self.now + IDLE_TIMEOUT };
        self.at(at, Happening::ClosedAtHub { channel: number });
    }

    /// The path died: both ends find out by themselves.
    pub(crate) fn break_channel(&mut self, number: u64) {
        self.after(HANDSHAKE_TIMEOUT, Happening::ClosedAtDevice { channel: number, code: None });
        self.after(IDLE_TIMEOUT, Happening::ClosedAtHub { channel: number });
    }

    pub(crate) fn closed_at_hub(&mut self, number: u64) {
        let life = self.hub.life;
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if core::mem::replace(&mut channel.open_at_hub, false) && channel.life == life {
            self.hub.core.connection_lost(ConnectionId(number));
            self.settle_hub();
        }
    }

    pub(crate) fn closed_at_device(&mut self, number: u64, code: Option<Code>) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if !core::mem::replace(&mut channel.open_at_device, false) {
            return;
        }
        let (device, connection, answered) = (channel.device, channel.connection, channel.answered);
        let now = self.now;
        let Some(core) = &mut self.devices[device].core else { return };
        if answered {
            core.connection_lost(now, connection, code);
        } else {
            core.connect_failed(now, connection);
        }
        self.settle_device(device);
    }

    /// The device's network is gone, and with it whatever its connections had under way. Unless the
    /// device notices the change, it finds out when they time out.
    pub(crate) fn break_channels_of(&mut self, device: usize) {
        let channels = self.channels.iter().filter(|(_, channel)| channel.device == device);
        let numbers: Vec<u64> = channels.map(|(number, _)| *number).collect();
        for number in numbers {
            self.after(IDLE_TIMEOUT, Happening::ClosedAtHub { channel: number });
            self.after(IDLE_TIMEOUT, Happening::ClosedAtDevice { channel: number, code: None });
        }
    }

    /// The device's process died: the gateway finds out by its idle timeout.
    pub(crate) fn forsake_channels_of(&mut self, device: usize) {
        self.break_channels_of(device);
        for channel in self.channels.values_mut().filter(|channel| channel.device == device) {
            channel.open_at_device = false;
        }
    }

    /// The gateway has forgotten these connections; clients find out when they next show on them
    /// that they live.
    pub(crate) fn reset_channels(&mut self, which: impl Fn(&Channel) -> bool) {
        let forgotten = self.channels.iter().filter(|(_, channel)| which(channel));
        let numbers: Vec<u64> = forgotten.map(|(number, _)| *number).collect();
        for number in numbers {
            let delay = self.rng.random_range(Duration::ZERO..KEEP_ALIVE);
            self.after(delay, Happening::ClosedAtDevice { channel: number, code: None });
        }
    }
}
