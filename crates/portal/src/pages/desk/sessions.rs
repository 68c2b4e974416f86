//! The page of live sessions.

use askama::Template;

use super::{Frame, Line};
use vpnd_ipc::gateway::portal::desk::sessions::{ListedSession, ListedSessions, Order, Throughput};
use vpnd_sys::date::rfc3339;

#[derive(Template)]
#[template(path = "desk_sessions.html")]
pub(crate) struct SessionsPage<'p> {
    frame: Frame<'p>,
    /// When it was made.
    at: String,
    /// The query of this very page.
    here: String,
    is_by_rate: bool,
    profiles: Vec<Line>,
    sessions: Vec<Shown<'p>>,
    /// The number of those that are not shown, and the query of the next page, if there is one.
    more: Option<(String, Option<String>)>,
}

/// A session, in words.
struct Shown<'p> {
    user: &'p str,
    /// The user's name in an address.
    query: String,
    lines: Vec<(&'static str, String)>,
}

impl<'p> SessionsPage<'p> {
    pub(crate) fn new(frame: Frame<'p>, order: &Order, list: &'p ListedSessions, now_s: u64) -> Self {
        let texts = &frame.texts.desk;
        let profiles = list.profiles.iter().map(|sum| {
            let name = sum.profile.as_ref().map_or(texts.no_profile, |name| name);
            let sessions = (texts.sessions_with)(sum.sessions);
            (name.to_owned(), format!("{sessions}; {}", said(&frame, &sum.throughput)))
        });
        let next = list.next.as_ref().map(|next| query(&Order::ByUser(Some(next.clone()))));
        let more = (list.more > 0).then(|| ((texts.more)(list.more), next));
        Self {
            at: rfc3339(now_s),
            here: query(order),
            is_by_rate: *order == Order::ByRate,
            profiles: profiles.collect(),
            sessions: list.sessions.iter().map(|session| shown(&frame, session)).collect(),
            more,
            frame,
        }
    }
}

/// The query of a list in this order.
fn query(order: &Order) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    match order {
        Order::ByUser(None) => {}
        Order::ByUser(Some(after)) => _ = query.append_pair("after", after),
        Order::ByRate => _ = query.append_pair("order", "rate"),
    }
    query.finish()
}

fn said(frame: &Frame<'_>, throughput: &Throughput) -> String {
    (frame.texts.desk.traffic)(throughput.bytes, throughput.rates)
}

fn shown<'p>(frame: &Frame<'_>, session: &'p ListedSession) -> Shown<'p> {
    let (all, texts, own) = (frame.texts, &frame.texts.desk, &frame.texts.devices);
    let kind = match session.wireguard.as_deref() {
        Some("") => own.wireguard.to_owned(),
        Some(name) => format!("{}: {name}", own.wireguard),
        None => own.client.to_owned(),
    };
    let addresses: Vec<_> = session.addresses.iter().map(ToString::to_string).collect();
    let known = |text: Option<String>| text.unwrap_or_else(|| all.not_known.to_owned());
    let lines = [
        Some((texts.device, kind)),
        session.walled.then(|| (own.state, own.has_to_be_renewed.to_owned())),
        Some((texts.source, session.source.to_string())),
        session.profile.as_ref().map(|profile| (texts.profile, profile.to_string())),
        Some((all.since, (all.ago)(session.age_s))),
        Some((all.addresses, addresses.join(", "))),
        Some((texts.from_network, known(session.network.as_ref().map(ToString::to_string)))),
        Some((texts.traffic_of, known(session.throughput.as_ref().map(|used| said(frame, used))))),
    ];
    Shown {
        user: &session.user,
        query: form_urlencoded::byte_serialize(session.user.as_bytes()).collect(),
        lines: lines.into_iter().flatten().collect(),
    }
}
