//! What the pages about logins of clients say, in each language.

/// The texts of a language.
pub(crate) struct ConnectTexts {
    pub(crate) question: &'static str,
    pub(crate) asks: &'static str,
    pub(crate) device: &'static str,
    pub(crate) at: &'static str,
    pub(crate) only_if: &'static str,
    pub(crate) yes: &'static str,
    pub(crate) no: &'static str,
    pub(crate) over: &'static str,
    pub(crate) over_text: &'static str,
}

pub(super) const ENGLISH: ConnectTexts = ConnectTexts {
    question: "Connect this device?",
    asks: "A device asks to connect to the VPN with your account:",
    device: "It calls itself",
    at: "Its address",
    only_if: "Agree only if you have just started the VPN on this computer. If somebody has sent you here, refuse.",
    yes: "Yes, connect it",
    no: "No",
    over: "This link has ended",
    over_text: "It is good once and for ten minutes. Start the VPN on your computer again.",
};

pub(super) const GERMAN: ConnectTexts = ConnectTexts {
    question: "Dieses Gerät verbinden?",
    asks: "Ein Gerät will sich mit Ihrem Konto mit dem VPN verbinden:",
    device: "Es nennt sich",
    at: "Seine Adresse",
    only_if: "Stimmen Sie nur zu, wenn Sie das VPN gerade an diesem Rechner gestartet haben. Hat jemand Sie hierher geschickt, lehnen Sie ab.",
    yes: "Ja, verbinden",
    no: "Nein",
    over: "Dieser Link ist abgelaufen",
    over_text: "Er gilt einmal und zehn Minuten lang. Starten Sie das VPN an Ihrem Rechner noch einmal.",
};
