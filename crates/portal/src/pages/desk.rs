//! Pages of the help desk and of administrators.

pub(crate) mod sessions;

use askama::Template;

use super::Frame;
use super::devices::{Reader, ShownDevice};
use crate::texts::desk::DeskTexts;
use crate::typed::{Draft, Typed};
use vpnd_ipc::gateway::auth::{PoolUsage, SourceHealth};
use vpnd_ipc::gateway::portal::desk::{
    AuditRecord, DeskRefusal, DeskState, FoundUser, FoundUsers, LOCAL, ListedFinding, RefusedLogin, Role,
    ShownUser, UserState, Whois,
};
use vpnd_ipc::gateway::portal::devices::OwnDevice;
use vpnd_ipc::health::Verdict;
use vpnd_proto::control::Text;
use vpnd_sys::date::{Expiry, rfc3339};

/// A name and what is said of it.
type Line = (String, String);

#[derive(Template)]
#[template(path = "desk.html")]
pub(crate) struct DeskPage<'p> {
    frame: Frame<'p>,
    form: String,
    role: &'static str,
    profiles: Vec<Line>,
    /// Verdicts with findings that are not good.
    findings: Vec<(&'static str, &'p ListedFinding)>,
    health: Vec<Line>,
    drops: Vec<Line>,
    refused: Vec<Line>,
    /// Whether the person may ask about addresses, and may add users.
    asks: bool,
    adds: bool,
    again: Retold,
    /// The forms' fields as they were typed before.
    question: Typed,
    account: Typed,
}

/// A form that is shown again as it was typed.
pub(crate) struct Again<'p> {
    pub(crate) draft: &'p Draft,
    /// Why it was not followed; `None` if the person has logged in meanwhile.
    pub(crate) refusal: Option<DeskRefusal>,
}

/// The text about such a form at the top of its page.
#[derive(Clone, Copy, Default)]
struct Retold {
    problem: Option<&'static str>,
    /// Its person has to send it again.
    not_yet: Option<&'static str>,
}

impl Retold {
    fn new(texts: &DeskTexts, again: Option<&Again<'_>>) -> Self {
        match again.map(|again| again.refusal) {
            None => Self::default(),
            Some(Some(refusal)) => Self { problem: Some((texts.why_not)(refusal)), not_yet: None },
            Some(None) => Self { problem: None, not_yet: Some(texts.not_yet) },
        }
    }
}

#[derive(Template)]
#[template(path = "desk_search.html")]
pub(crate) struct SearchPage<'p> {
    frame: Frame<'p>,
    /// The search as it was typed.
    text: &'p str,
    problem: Option<&'static str>,
    users: Vec<Found<'p>>,
    /// The number that is not shown, and the query of the next page.
    more: Option<(String, String)>,
}

/// A user of a list.
struct Found<'p> {
    user: &'p FoundUser,
    /// Its name in an address.
    query: String,
    state: &'static str,
}

#[derive(Template)]
#[template(path = "desk_user.html")]
pub(crate) struct UserPage<'p> {
    frame: Frame<'p>,
    form: String,
    notice: Option<&'static str>,
    again: Retold,
    /// The form that is shown again.
    draft: Draft,
    name: &'p str,
    facts: Vec<Line>,
    refused: &'p [RefusedLogin],
    /// With the traffic of its session.
    devices: Vec<(ShownDevice, Option<String>)>,
    /// Why nothing can be changed, if that is so.
    locked: Option<&'static str>,
    is_enabled: bool,
    /// The meaning of a reset of the user's one-time codes, if there are any.
    reset_codes: Option<&'static str>,
    /// Whether there is a certificate that could be revoked.
    has_certificate: bool,
    can_be_extended: bool,
    can_be_invited: bool,
}

#[derive(Template)]
#[template(path = "desk_link.html")]
pub(crate) struct LinkPage<'p> {
    pub(crate) frame: Frame<'p>,
    pub(crate) name: &'p str,
    pub(crate) link: &'p str,
}

#[derive(Template)]
#[template(path = "desk_whois.html")]
pub(crate) struct WhoisPage<'p> {
    frame: Frame<'p>,
    /// The address as it was typed.
    address: &'p str,
    found: Vec<Vec<Line>>,
    notes: &'p [Text<512>],
}

impl<'p> DeskPage<'p> {
    pub(crate) fn new(frame: Frame<'p>, form: String, state: &'p DeskState) -> Self {
        let texts = &frame.texts.desk;
        let profiles = state.profiles.iter().map(|count| {
            let name = count.profile.as_ref().map_or(texts.no_profile, |name| name);
            (name.to_owned(), count.sessions.to_string())
        });
        let pool = |PoolUsage { pool, taken, total }: &PoolUsage| {
            (format!("{} {pool}", texts.pools), (texts.in_use)(*taken, *total))
        };
        let source = |source: &SourceHealth| {
            let answers = match source.up {
                Some(true) => texts.answers,
                Some(false) => texts.is_silent,
                None => texts.not_asked,
            };
            let missing = (source.missing > 0).then(|| (texts.missing_users)(source.missing));
            let said = [Some(answers.to_owned()), missing].into_iter().flatten().collect::<Vec<_>>();
            (source.name.to_string(), said.join("; "))
        };
        let worker = state.worker.as_ref();
        let drops = worker.iter().flat_map(|worker| worker.drops.iter());
        let drops = drops.map(|drop| (texts.counts.of_drops(&drop.name), drop.count.to_string())).collect();
        let mut health: Vec<Line> = worker
            .map(|worker| {
                let days = worker.certificate_left_s / 86_400;
                let runs = (texts.runs)(&worker.version, worker.uptime_s);
                [(texts.gateway.to_owned(), runs), (texts.certificate_of.to_owned(), (texts.good_for)(days))]
            })
            .into_iter()
            .flatten()
            .collect();
        let certificate = state.portal.and_then(|portal| portal.certificate_left_s);
        health.extend(
            certificate
                .map(|left_s| (texts.certificate_of_pages.to_owned(), (texts.good_for)(left_s / 86_400))),
        );
        health.extend([(texts.users.to_owned(), state.users.to_string())]);
        health.extend(state.pools.iter().map(pool));
        health.extend(state.sources.iter().map(source));
        health.extend(state.audit.as_ref().map(|audit| {
            let said = match &audit.failure {
                Some(why) => format!("{} {why}", texts.records_nothing),
                None => texts.records_well.to_owned(),
            };
            (texts.records.to_owned(), said)
        }));
        health.extend(state.portal.map(|portal| (texts.visits.to_owned(), portal.visits.to_string())));
        let refused = state.refused.iter();
        let refused = refused
            .map(|refused| (texts.counts.of_refusals(&refused.name), refused.count.to_string()))
            .collect();
        let bad = state.findings.iter().filter(|finding| finding.verdict > Verdict::Good);
        let findings = bad.map(|finding| ((texts.verdict)(finding.verdict), finding)).collect();
        let role = (texts.role)(state.role);
        let (asks, adds) = (state.role != Role::Viewer, state.role == Role::Administrator);
        let profiles = profiles.collect();
        Self {
            role,
            form,
            profiles,
            findings,
            health,
            drops,
            refused,
            asks,
            adds,
            again: Retold::default(),
            question: Typed::default(),
            account: Typed::default(),
            frame,
        }
    }

    /// The page with a form as it was typed.
    pub(crate) fn filled_in(self, again: &Again<'_>) -> Self {
        let (question, account) = (again.draft.of("whois"), again.draft.of("add"));
        Self { again: Retold::new(&self.frame.texts.desk, Some(again)), question, account, ..self }
    }
}

impl<'p> SearchPage<'p> {
    pub(crate) fn new(
        frame: Frame<'p>,
        text: &'p str,
        found: &'p FoundUsers,
        refusal: Option<DeskRefusal>,
    ) -> Self {
        let texts = &frame.texts.desk;
        let problem = refusal.map(texts.why_not);
        let users = found.users.iter().map(|user| Found {
            user,
            query: form_urlencoded::byte_serialize(user.name.as_bytes()).collect(),
            state: (texts.user_state)(user.state),
        });
        let more = found.next().map(|after| {
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.append_pair("text", text).append_pair("after", after);
            ((texts.more)(found.more), query.finish())
        });
        Self { text, problem, users: users.collect(), more, frame }
    }
}

impl<'p> UserPage<'p> {
    pub(crate) fn new(
        frame: Frame<'p>,
        form: String,
        shown: &'p ShownUser,
        notice: bool,
        again: Option<Again<'_>>,
    ) -> Self {
        let texts = &frame.texts.desk;
        let traffic = |device: &OwnDevice| {
            let of_device = shown.traffic.iter().find(|traffic| traffic.device == device.device)?;
            Some((texts.traffic)(of_device.throughput.bytes, of_device.throughput.rates))
        };
        let devices = shown.devices.devices.iter();
        let devices = devices.map(|device| (ShownDevice::new(&frame, device, Reader::Desk), traffic(device)));
        Self {
            form,
            notice: notice.then_some(texts.done),
            again: Retold::new(texts, again.as_ref()),
            draft: again.map(|again| again.draft.clone()).unwrap_or_default(),
            name: &shown.user.name,
            facts: facts(&frame, shown),
            refused: shown.logins.as_ref().map_or(&[], |logins| &logins.refused),
            devices: devices.collect(),
            locked: shown.locked.map(texts.why_not),
            is_enabled: shown.user.state != UserState::Disabled,
            reset_codes: (shown.codes == Some(true)).then_some(if *shown.user.source == *LOCAL {
                texts.reset_codes_text
            } else {
                texts.reset_codes_of_source_text
            }),
            has_certificate: has_certificate(shown),
            can_be_extended: shown.can_be_extended,
            can_be_invited: shown.can_be_invited,
            frame,
        }
    }
}

impl UserPage<'_> {
    fn time(&self, at_s: &u64) -> String {
        rfc3339(*at_s)
    }

    /// The fields of this change's form as they were typed, for this device or none.
    fn before(&self, deed: impl AsRef<str>, device: impl AsRef<str>) -> Option<&Typed> {
        let is_it = self.draft.deed == deed.as_ref() && self.draft.typed.device == device.as_ref();
        is_it.then_some(&self.draft.typed)
    }

    fn reason(&self, deed: impl AsRef<str>, device: impl AsRef<str>) -> &str {
        self.before(deed, device).map_or("", |typed| &typed.reason)
    }
}

/// Whether the user has a certificate that is good.
fn has_certificate(shown: &ShownUser) -> bool {
    shown.certificates.iter().any(|certificate| !certificate.revoked)
}

fn facts(frame: &Frame<'_>, shown: &ShownUser) -> Vec<Line> {
    let texts = &frame.texts.desk;
    let factor = match shown.codes {
        Some(true) => texts.codes,
        Some(false) => texts.password_alone,
        None => texts.of_source,
    };
    let factor = match shown.certificates.is_empty() {
        true => factor.to_owned(),
        false if has_certificate(shown) => format!("{factor}, {}", texts.certificate),
        false => format!("{factor}, {}", texts.certificate_missing),
    };
    let disabled = shown.disabled.as_ref();
    let disabled = disabled.map(|disabled| {
        (texts.disabled, (texts.disabled_by)(rfc3339(disabled.at_s), &disabled.by, &disabled.reason))
    });
    let groups: Vec<&str> = shown.groups.iter().map(|group| &**group).collect();
    let expires = shown.expires_s.map_or_else(|| texts.never.to_owned(), |s| Expiry::At(s).to_string());
    let last = shown.logins.as_ref().map(|logins| {
        let last = logins.last_s.map_or_else(|| texts.not_lately.to_owned(), rfc3339);
        (texts.last_login, last)
    });
    let facts = [
        Some((texts.state, (texts.user_state)(shown.user.state).to_owned())),
        disabled,
        shown.role.map(|role| (texts.role_here, (texts.role_name)(role).to_owned())),
        Some((texts.source, shown.user.source.to_string())),
        Some((texts.profile, shown.profile.as_ref().map_or(texts.no_profile, |name| name).to_owned())),
        Some((texts.groups, groups.join(", "))),
        Some((texts.factors, factor)),
        Some((texts.expires, expires)),
        shown.sponsor.as_ref().map(|sponsor| (texts.sponsor, sponsor.to_string())),
        Some((texts.note, shown.note.to_string())),
        Some((texts.added, rfc3339(shown.created_s))),
        last,
    ];
    let said = |(name, text): (&str, String)| (name.to_owned(), text);
    facts.into_iter().flatten().filter(|(_, text)| !text.is_empty()).map(said).collect()
}

impl<'p> WhoisPage<'p> {
    pub(crate) fn new(frame: Frame<'p>, address: &'p str, answer: &'p Whois) -> Self {
        let found = answer.found.iter().map(|record| record_lines(&frame, record)).collect();
        Self { address, found, notes: &answer.notes, frame }
    }
}

fn record_lines(frame: &Frame<'_>, record: &AuditRecord) -> Vec<Line> {
    fn given<const MAX: usize>(text: &Option<Text<MAX>>) -> Option<String> {
        text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned)
    }
    let (all, texts) = (frame.texts, &frame.texts.desk);
    let known = |text: Option<String>| Some(text.unwrap_or_else(|| texts.erased.to_owned()));
    let until = record.until_s.map_or_else(|| texts.goes_on.to_owned(), rfc3339);
    let until = given(&record.detail).map_or(until.clone(), |why| format!("{until} ({why})"));
    let inner = record.ipv4.map(|v4| v4.to_string()).into_iter().chain(record.ipv6.map(|v6| v6.to_string()));
    let ports = record.public.map(|(address, first, last)| format!("{address}:{first}-{last}"));
    let lines = [
        (texts.user, known(given(&record.user))),
        (texts.source, known(given(&record.source))),
        (texts.profile, given(&record.profile)),
        (all.since, Some(rfc3339(record.at_s))),
        (texts.until, Some(until)),
        (all.addresses, Some(inner.collect::<Vec<_>>().join(", "))),
        (texts.ports, ports),
        (all.from, known(given(&record.outer))),
        (texts.device, known(given(&record.device))),
        (texts.gateway, given(&record.gateway)),
    ];
    lines.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?))).collect()
}
