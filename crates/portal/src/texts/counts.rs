//! The catalogue's part about what is counted: dropped packets, and what the pages have refused.

use vpnd_proto::plane::DropReason;

/// The texts of a language. Each is shown with the name that the metrics have.
pub(crate) struct CountTexts {
    pub(crate) dropped: fn(DropReason) -> &'static str,
    /// By the name of a reason of `vpnd_portal_refusals_total`.
    pub(crate) refused: fn(&str) -> Option<&'static str>,
}

impl CountTexts {
    /// The label of a counter of dropped packets.
    pub(crate) fn of_drops(&self, name: &str) -> String {
        let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
        with_name(reason.map(|reason| (self.dropped)(*reason)), name)
    }

    /// The label of a counter of the pages' refusals.
    pub(crate) fn of_refusals(&self, name: &str) -> String {
        with_name((self.refused)(name), name)
    }
}

fn with_name(text: Option<&str>, name: &str) -> String {
    text.map_or_else(|| name.to_owned(), |text| format!("{text} ({name})"))
}

pub(super) const ENGLISH: CountTexts = CountTexts {
    dropped: |reason| match reason {
        DropReason::BadHeader => "not of this protocol",
        DropReason::UnknownIndex => "of a session that has ended, or of none",
        DropReason::WrongLane => "from a sender who may not send there",
        DropReason::Replayed => "came before, or far too late",
        DropReason::NotAuthentic => "forged or damaged",
        DropReason::UnknownInband => "a message of an unknown kind",
        DropReason::UnaskedReply => "a reply without a question",
        DropReason::BadPacket => "no well-formed IP packet",
        DropReason::ForeignSource => "from an address that is not the session's",
        DropReason::NotForUs => "to an address that is not the client's",
        DropReason::Policy => "the access profile forbids it",
        DropReason::NoRoute => "no session has the address",
        DropReason::NoSession => "the session has ended",
        DropReason::NoEpoch => "the session has no keys yet",
        DropReason::KeySpent => "the key was used up",
        DropReason::TooLong => "longer than a datagram carries",
        DropReason::TooBig => "too large for the path; its sender was told",
        DropReason::HalfAlone => "half of a packet whose other half was lost",
        DropReason::HopLimit => "its hop limit was used up",
        DropReason::RateLimit => "beyond a rate limit",
        DropReason::Congestion => "congestion on the way",
        DropReason::BadEpoch => "keys that could not be made",
        DropReason::AddressTaken => "sessions whose address another one has",
        DropReason::BadOffload => "the network device gave wrong lengths",
        DropReason::TunWrite => "the network device did not take it",
        DropReason::Send => "the network did not take it",
        DropReason::Overload => "the gateway was behind",
        DropReason::ShardQueue => "a queue between threads was full",
        DropReason::EventQueue => "reports that found a full queue",
    },
    refused: |name| {
        Some(match name {
            "connection_rate" => "connections of a network that made too many",
            "connection_place" => "connections that found no place",
            "request_rate" => "requests of a network that sent too many",
            "form" => "forms that were not from a page of ours, or too old",
            "login_at_once" => "logins that waited too long for their turn",
            "login_credentials" => "logins with a wrong name, password or code",
            "login_throttled" => "logins after too many wrong ones",
            "login_busy" => "logins while too many waited",
            "login_unavailable" => "logins at a source that did not answer",
            "login_not_confirmed" => "logins that a provider or a person did not confirm",
            "login_not_allowed" => "logins of users who may not come in",
            "login_other" => "other logins",
            "logout_token" => "logouts that a provider did not send, or sent twice",
            "cookie" => "cookies from another network than their login's",
            "short_code" => "short codes of no client",
            "desk" => "pages of the desk without the right to them",
            "api" => "requests of programs without the right to them",
            _ => return None,
        })
    },
};

pub(super) const GERMAN: CountTexts = CountTexts {
    dropped: |reason| match reason {
        DropReason::BadHeader => "nicht von diesem Protokoll",
        DropReason::UnknownIndex => "von einer beendeten oder von keiner Sitzung",
        DropReason::WrongLane => "von einem Absender, der dorthin nicht senden darf",
        DropReason::Replayed => "schon einmal gekommen oder viel zu spät",
        DropReason::NotAuthentic => "gefälscht oder beschädigt",
        DropReason::UnknownInband => "eine Nachricht unbekannter Art",
        DropReason::UnaskedReply => "eine Antwort ohne Frage",
        DropReason::BadPacket => "kein wohlgeformtes IP-Paket",
        DropReason::ForeignSource => "von einer Adresse, die nicht der Sitzung gehört",
        DropReason::NotForUs => "an eine Adresse, die nicht dem Client gehört",
        DropReason::Policy => "das Zugangsprofil verbietet es",
        DropReason::NoRoute => "keine Sitzung hat die Adresse",
        DropReason::NoSession => "die Sitzung ist beendet",
        DropReason::NoEpoch => "die Sitzung hat noch keine Schlüssel",
        DropReason::KeySpent => "der Schlüssel war verbraucht",
        DropReason::TooLong => "länger, als ein Datagramm fasst",
        DropReason::TooBig => "zu groß für den Weg; der Absender weiß es",
        DropReason::HalfAlone => "halbes Paket, dessen andere Hälfte verloren ging",
        DropReason::HopLimit => "das Hop-Limit war aufgebraucht",
        DropReason::RateLimit => "über einer Ratengrenze",
        DropReason::Congestion => "Stau auf dem Weg",
        DropReason::BadEpoch => "Schlüssel, die nicht gebildet werden konnten",
        DropReason::AddressTaken => "Sitzungen, deren Adresse eine andere hat",
        DropReason::BadOffload => "das Netzgerät nannte falsche Längen",
        DropReason::TunWrite => "das Netzgerät nahm es nicht an",
        DropReason::Send => "das Netz nahm es nicht an",
        DropReason::Overload => "das Gateway kam nicht nach",
        DropReason::ShardQueue => "eine Warteschlange zwischen Threads war voll",
        DropReason::EventQueue => "Meldungen, für die kein Platz war",
    },
    refused: |name| {
        Some(match name {
            "connection_rate" => "Verbindungen eines Netzes, das zu viele aufbaute",
            "connection_place" => "Verbindungen, für die kein Platz war",
            "request_rate" => "Anfragen eines Netzes, das zu viele sandte",
            "form" => "Formulare, die nicht von unseren Seiten oder zu alt waren",
            "login_at_once" => "Anmeldungen, die zu lange warteten",
            "login_credentials" => "Anmeldungen mit falschem Namen, Passwort oder Code",
            "login_throttled" => "Anmeldungen nach zu vielen falschen",
            "login_busy" => "Anmeldungen, während zu viele warteten",
            "login_unavailable" => "Anmeldungen an einer Quelle, die nicht antwortete",
            "login_not_confirmed" => "Anmeldungen, die niemand bestätigt hat",
            "login_not_allowed" => "Anmeldungen von Benutzern ohne Zugang",
            "login_other" => "andere Anmeldungen",
            "logout_token" => "Abmeldungen, die kein Anbieter oder einer zweimal sandte",
            "cookie" => "Cookies aus einem anderen Netz als dem ihrer Anmeldung",
            "short_code" => "kurze Codes, die zu keinem Client gehören",
            "desk" => "Seiten des Helpdesks ohne das Recht dazu",
            "api" => "Anfragen von Programmen ohne das Recht dazu",
            _ => return None,
        })
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_counter_has_a_text_of_its_own_in_each_language_with_its_name() {
        let refusals = vpnd_ipc::gateway::portal::refusals::PortalRefusals::default().named();
        for texts in [ENGLISH, GERMAN] {
            let dropped: BTreeSet<_> =
                DropReason::ALL.iter().map(|reason| (texts.dropped)(*reason)).collect();
            assert_eq!(dropped.len(), DropReason::ALL.len());
            assert!(texts.of_drops("policy").ends_with(" (policy)") && texts.of_drops("new") == "new");
            for (name, _) in refusals {
                assert_ne!(texts.of_refusals(name), name);
            }
        }
        assert_ne!(ENGLISH.of_drops("policy"), GERMAN.of_drops("policy"));
    }
}
