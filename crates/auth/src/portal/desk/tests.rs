//! The desk over a store, by requests as the portal sends them.

use std::sync::Arc;

use super::authority::Act;
use super::*;
use crate::portal::{Offer, Portal};
use vpnd_admission::access::Access;
use vpnd_admission::accounting::Accounting;
use vpnd_admission::authenticator::sources::Sources;
use vpnd_admission::authenticator::{Authenticator, QUEUE_TIMEOUT, Settings, Surroundings};
use vpnd_admission::wireguard::WireGuard;
use vpnd_config::Tunnel;
use vpnd_config::endpoint::Endpoint;
use vpnd_config::factor::Factors;
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_crypto::Secret;
use vpnd_ipc::gateway::auth::{SessionUse, WorkerState};
use vpnd_ipc::gateway::portal::Browser;
use vpnd_ipc::gateway::portal::desk::sessions::{ListSessions, Order};
use vpnd_ipc::gateway::portal::desk::{
    AccountChange, AskWhois, Caller, ChangeUser, Deed, DeskQuery, DeskRefusal, ExportAudit, FindUsers, Made,
    NewAccount, Replied, Role, ShowUser, UserState,
};
use vpnd_ipc::gateway::portal::devices::{AddDevice, DeviceChange};
use vpnd_ipc::gateway::portal::invitations::{AcceptInvitation, InvitationStep, OpenInvitation};
use vpnd_ipc::gateway::portal::visits::BrowserKind;
use vpnd_ipc::gateway::portal::{LoginStep, PortalLogin};
use vpnd_ipc::request::{Answer, Request};
use vpnd_proto::attach::{TokenHash, Tokens};
use vpnd_proto::control::{SecretText, Text, UserName};
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_store::audit::AuditFile;
use vpnd_store::audit::query::Record;
use vpnd_store::audit::testing::{Recorded, all};
use vpnd_store::password::{Hasher, Password};
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{
    ApiToken, ApiTokens as _, ExternalUser, Fleet as _, NewUser, Revocations as _, SessionChange,
    SessionRecord, Sessions as _, TotpSecret, User, UserChange, UserImport, Users as _,
    WireGuardDevices as _,
};
use vpnd_sys::clock::{Clocks, now};
use vpnd_wireguard::key::StaticKey;

const INSIDE: [u8; 4] = [10, 86, 0, 7];
const PORTAL: &str = "[portal]\nenabled = true\ncertificate = 'p'\nkey = 'k'\nviewer_groups = 'viewers'\n\
                      help_desk_groups = 'desk'\nadministrator_groups = 'admins'\n\
                      url = 'https://vpn.uni.example'\n\
                      [[source]]\nname = 'campus'\nkind = 'ldap'\nrealm = 'uni.example'\n\
                      servers = 'ldaps://a.example'\nuser_dn = 'uid={user}'\n\
                      [[source]]\nname = 'tokens'\nkind = 'radius'\nrealm = 'tokens.example'\n\
                      servers = 'radius://192.0.2.9'\nsecret_file = 's'\n";

pub(in crate::portal) struct Bench {
    _directory: tempfile::TempDir,
    pub(in crate::portal) store: Arc<Sqlite>,
    pub(in crate::portal) portal: Arc<Portal>,
    pub(in crate::portal) audit: Recorded,
    access: Arc<Access>,
    config: ServerConfig,
}

impl Bench {
    pub(in crate::portal) fn new() -> Self {
        Self::with_profiles(vpnd_config::AccessProfiles::of_everybody())
    }

    pub(in crate::portal) fn with_profiles(profiles: vpnd_config::AccessProfiles) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Sqlite::open_or_create(&directory.path().join("vpnd.db")).unwrap());
        let hasher = Hasher::with_cost(8, 1);
        let hash = hasher.hash(&Password::new("right".to_owned())).unwrap();
        for (name, group) in [("ann", "admins"), ("dora", "desk"), ("vic", "viewers"), ("gus", "guests")] {
            let user = NewUser { groups: vec![group.to_owned()], ..NewUser::new(name, hash.clone()) };
            store.add_user(&user, 1).unwrap();
        }
        let state_dir = directory.path().display();
        let config =
            vpnd_config::testing::smallest(&format!("[server]\nstate_dir = '{state_dir}'\n{PORTAL}"));
        let access = Arc::new(Access::new(profiles, &Tunnel::default()));
        let settings =
            Settings { workers: 1, queue: 4, longest_wait: QUEUE_TIMEOUT, require_certificate: false };
        let accounting = Arc::new(Accounting::new(&config.sources, Arc::default()));
        let surroundings = Surroundings {
            access: Arc::clone(&access),
            sources: Sources::new(&config.sources, Arc::default(), accounting),
            ..Surroundings::default()
        };
        let authenticator =
            Authenticator::within(Arc::clone(&store) as _, hasher, settings, surroundings).unwrap();
        let audit = Recorded::default();
        let portal = Portal::new(
            Arc::clone(&store) as _,
            Arc::new(authenticator),
            Arc::clone(&access),
            Clocks::default(),
            Some(audit.recorder()),
        );
        portal.set_desk(Desk::of(&config));
        AuditFile::open_or_create(&directory.path().join(audit::FILE_NAME)).unwrap();
        let portal = Arc::new(portal);
        Self { _directory: directory, store, portal, audit, access, config }
    }

    pub(in crate::portal) async fn ask<R: Request>(&self, request: R) -> R::Reply
    where
        Portal: Answer<R>,
    {
        self.portal.answer(request).await.unwrap()
    }

    pub(in crate::portal) async fn browser(&self, user: &str, address: [u8; 4]) -> Browser {
        let login = PortalLogin {
            user: UserName::new(user).unwrap(),
            password: SecretText::new("right").unwrap(),
            address: address.into(),
        };
        let LoginStep::LoggedIn(token) = self.ask(login).await else { panic!("{user} is not let in") };
        Browser { token, address: address.into(), kind: BrowserKind::default() }
    }

    async fn change(&self, browser: &Browser, user: &str, deed: Deed, reason: &str) -> Replied<()> {
        self.link(browser, user, deed, reason).await.map(drop)
    }

    async fn link(&self, browser: &Browser, user: &str, deed: Deed, reason: &str) -> Replied<Option<Made>> {
        let (user, reason) = (Text::cut(user), Text::cut(reason));
        self.ask(ChangeUser { caller: Caller::Browser(browser.clone()), user, deed, reason }).await
    }

    /// The audit file's records of this kind, in order.
    fn recorded(&self, kind: &str) -> Vec<Record> {
        let mut records = all(&self.portal.desk.callers.desk().unwrap().audit_file().unwrap());
        records.retain(|record| record.kind == kind);
        records
    }

    fn user(&self, name: &str) -> User {
        self.store.user(name).unwrap().unwrap()
    }
}

#[tokio::test]
async fn each_role_does_what_it_may_with_a_reason() {
    let bench = Bench::new();
    let [ann, dora, vic, gus] = [
        bench.browser("ann", INSIDE).await,
        bench.browser("dora", INSIDE).await,
        bench.browser("vic", INSIDE).await,
        bench.browser("gus", INSIDE).await,
    ];
    let disable = |browser, user, reason| bench.change(browser, user, Deed::Disable, reason);
    assert_eq!(disable(&gus, "vic", "because").await, Err(DeskRefusal::NoRole));
    assert_eq!(disable(&vic, "gus", "because").await, Err(DeskRefusal::NoRole));
    for without in ["", "  ", "two\nlines"] {
        assert_eq!(disable(&dora, "gus", without).await, Err(DeskRefusal::NoReason), "{without}");
    }
    assert_eq!(disable(&dora, "nobody", "because").await, Err(DeskRefusal::NotThere));
    assert_eq!(disable(&dora, "ann", "because").await, Err(DeskRefusal::Senior));
    assert_eq!(disable(&dora, "dora", "because").await, Err(DeskRefusal::Own));
    let elsewhere = bench.browser("ann", [192, 0, 2, 1]).await;
    assert_eq!(disable(&elsewhere, "gus", "because").await, Err(DeskRefusal::Elsewhere));
    assert!(["ann", "dora", "vic", "gus"].into_iter().all(|name| bench.user(name).enabled));

    assert_eq!(disable(&dora, "gus", "call 4711").await, Ok(()));
    assert!(!bench.user("gus").enabled);
    let disabled = bench.recorded("user-disabled");
    let entry = &disabled[0];
    assert_eq!((disabled.len(), entry.user.as_deref()), (1, Some("gus")), "no refused one");
    assert_eq!(entry.by.as_deref(), Some("dora on the web pages"));
    assert_eq!((entry.detail.as_deref(), entry.outer.as_deref()), (Some("call 4711"), Some("10.86.0.7")));
    let shown =
        bench.ask(ShowUser { caller: Caller::Browser(vic.clone()), user: Text::cut("gus") }).await.unwrap();
    assert_eq!((shown.user.state, shown.locked), (UserState::Disabled, Some(DeskRefusal::NoRole)));
    let disabled = shown.disabled.unwrap();
    assert_eq!((&*disabled.by, &*disabled.reason), ("dora on the web pages", "call 4711"));
    assert_eq!(bench.change(&dora, "gus", Deed::Enable, "call 4712").await, Ok(()));
    assert!(bench.user("gus").enabled);
    let show = |user| bench.ask(ShowUser { caller: Caller::Browser(vic.clone()), user: Text::cut(user) });
    let (gus, helper) = (show("gus").await.unwrap(), show("dora").await.unwrap());
    assert_eq!((gus.disabled, gus.role, helper.role), (None, None, Some(Role::HelpDesk)));
    assert_eq!(disable(&ann, "dora", "has left").await, Ok(()), "an administrator");
    assert_eq!(disable(&dora, "gus", "because").await, Err(DeskRefusal::NoVisit), "she is out");
    // A person who is no longer in the group is out at once.
    let change = UserChange { groups: Some(vec!["viewers".to_owned()]), ..UserChange::default() };
    bench.store.modify_user("ann", &change, 9).unwrap();
    assert!(disable(&ann, "gus", "because").await.is_err());
}

#[tokio::test]
async fn a_reload_gives_a_person_no_more_requests() {
    let bench = Bench::new();
    let dora = bench.browser("dora", INSIDE).await;
    let change = || bench.change(&dora, "gus", Deed::Enable, "call 4711");
    let mut done = 0;
    while done < 100 && change().await == Ok(()) {
        done += 1;
    }
    assert!((20..100).contains(&done), "{done}");
    bench.portal.set_desk(Desk::of(&bench.config));
    assert_eq!(change().await, Err(DeskRefusal::TooOften));
}

#[tokio::test]
async fn required_codes_can_not_be_reset_at_the_desk() {
    for required in ["otp", "mfa"] {
        let profiles = format!(
            "[[profile]]\nname = 'strict'\ngroups = ['guests']\nrequire = ['{required}']\n\
             [[profile]]\nname = 'rest'\n"
        );
        let bench = Bench::with_profiles(vpnd_config::testing::smallest(&profiles).profiles);
        let ann = bench.browser("ann", INSIDE).await;
        let totp = UserChange { totp: Some(Some(TotpSecret::new(vec![7; 20]))), ..UserChange::default() };
        for (user, expected) in [("gus", Err(DeskRefusal::Unusable)), ("vic", Ok(()))] {
            bench.store.modify_user(user, &totp, 9).unwrap();
            assert_eq!(bench.change(&ann, user, Deed::ResetCodes, "call 4711").await, expected, "{user}");
            assert_eq!(bench.user(user).totp.is_some(), expected.is_err(), "{required} {user}");
        }
    }
}

#[tokio::test]
async fn an_unknown_user_is_disabled_by_any_spelling_of_the_name() {
    let bench = Bench::new();
    let dora = bench.browser("dora", INSIDE).await;
    let change = |user: &'static str, deed| bench.change(&dora, user, deed, "call 4711");
    assert_eq!(change("UNI.EXAMPLE\\Eva", Deed::Disable).await, Ok(()));
    let eva = bench.user("eva@uni.example");
    assert!(!eva.enabled && eva.source == "campus");
    assert_eq!(bench.recorded("user-disabled")[0].user.as_deref(), Some("eva@uni.example"));
    assert_eq!(change("Eva@Uni.Example", Deed::Enable).await, Ok(()));
    assert!(bench.user("eva@uni.example").enabled);
    for (user, deed) in [("nobody", Deed::Disable), ("max@uni.example", Deed::Kick(None))] {
        assert_eq!(change(user, deed).await, Err(DeskRefusal::NotThere), "{user}");
    }
}

#[tokio::test]
async fn in_a_fleet_a_user_is_disabled_although_the_store_can_not_be_written() {
    let bench = Bench::new();
    let dora = bench.browser("dora", INSIDE).await;
    let path = bench.portal.desk.callers.desk().unwrap().audit.with_file_name(vpnd_config::STORE_FILE_NAME);
    let other = rusqlite::Connection::open(path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let disable = || ChangeUser {
        caller: Caller::Browser(dora.clone()),
        user: Text::cut("gus"),
        deed: Deed::Disable,
        reason: Text::cut("call 4711"),
    };
    assert!(bench.portal.answer(disable()).await.is_err() && bench.user("gus").enabled, "it is of no fleet");
    bench.portal.share(&Arc::new(vpnd_admission::notices::Notices::new(Arc::clone(&bench.store) as _)));
    assert!(bench.ask(disable()).await.is_ok() && !bench.user("gus").enabled);
    other.execute_batch("ROLLBACK").unwrap();
    let clocks = Clocks::default();
    bench.store.kicks().see(clocks).unwrap();
    assert_eq!(bench.store.write_kicks(&|_| true, false, clocks).unwrap(), 1);
    bench.store.set_enabled("gus", true, (clocks.wall)()).unwrap();
    assert!(bench.user("gus").enabled, "it is written, and the store's word counts");
}

#[tokio::test]
async fn kicks_codes_and_guests() {
    let bench = Bench::new();
    let dora = bench.browser("dora", INSIDE).await;
    let change = |deed| bench.change(&dora, "gus", deed, "call 4711");
    let seen = bench.store.last_revocation().unwrap();
    assert_eq!(change(Deed::Kick(None)).await, Ok(()));
    let revoked = bench.store.revocations_since(seen).unwrap();
    assert_eq!((revoked.len(), revoked[0].cause), (1, RevocationCause::Kicked));
    assert_eq!(change(Deed::Kick(Some([1; 16].into()))).await, Err(DeskRefusal::NotThere));

    assert_eq!(change(Deed::ResetCodes).await, Err(DeskRefusal::Unusable), "he has none");
    let totp = UserChange { totp: Some(Some(TotpSecret::new(vec![7; 20]))), ..UserChange::default() };
    bench.store.modify_user("gus", &totp, 9).unwrap();
    assert_eq!(change(Deed::ResetCodes).await, Ok(()));
    assert!(bench.user("gus").totp.is_none());
    // Users of a source may have codes of the gateway besides.
    bench.store.refresh_external(&ExternalUser::expected("campus", "eva@uni.example"), 9).unwrap();
    bench.store.modify_user("eva@uni.example", &totp, 9).unwrap();
    let eva = ShowUser { caller: Caller::Browser(dora.clone()), user: Text::cut("eva@uni.example") };
    assert_eq!(bench.ask(eva).await.unwrap().codes, Some(true));
    assert_eq!(bench.change(&dora, "eva@uni.example", Deed::ResetCodes, "call 4711").await, Ok(()));
    assert!(bench.user("eva@uni.example").totp.is_none());

    let extend = |until: &str| change(Deed::Extend(Text::cut(until)));
    assert_eq!(extend("2999-01-01").await, Err(DeskRefusal::NoGuest));
    let ends = UserChange { expires_s: Some(Some(5)), ..UserChange::default() };
    bench.store.modify_user("gus", &ends, 9).unwrap();
    assert_eq!(extend("2027-01-31").await, Err(DeskRefusal::NoGuest), "nobody answers for him");
    let sponsor = UserChange { sponsor: Some(Some("ann".to_owned())), ..UserChange::default() };
    bench.store.modify_user("gus", &sponsor, 9).unwrap();
    for wrong in ["", "never", "2020-01-01", "2999-01-01", "soon"] {
        assert_eq!(extend(wrong).await, Err(DeskRefusal::Unusable), "{wrong}");
    }
    let in_a_month = vpnd_sys::date::rfc3339(vpnd_sys::clock::wall_s() + 30 * 86_400);
    assert_eq!(extend(&in_a_month[..10]).await, Ok(()));
    assert!(!bench.user("gus").has_expired(vpnd_sys::clock::wall_s()));
    let modified = bench.recorded("user-modified");
    assert!(modified.iter().any(|entry| entry.detail.as_ref().unwrap().starts_with("expires: ")));
}

#[tokio::test]
async fn certificates_are_revoked_one_or_all_of_a_user_and_on_record() {
    let bench = Bench::new();
    let [dora, vic] = [bench.browser("dora", INSIDE).await, bench.browser("vic", INSIDE).await];
    let revoke = |browser, user, one: Option<u8>| {
        let deed = Deed::RevokeCertificates(one.map(|byte| [byte; 32].into()));
        bench.change(browser, user, deed, "stolen laptop")
    };
    assert_eq!(revoke(&dora, "gus", None).await, Err(DeskRefusal::NotThere), "he has none");
    for (user, byte) in [("gus", 1), ("gus", 2), ("gus", 3), ("ann", 4)] {
        bench.store.add_certificate(user, &[byte; 32]).unwrap();
    }
    assert_eq!(revoke(&vic, "gus", None).await, Err(DeskRefusal::NoRole));
    assert_eq!(revoke(&dora, "ann", None).await, Err(DeskRefusal::Senior));
    assert_eq!(revoke(&dora, "gus", Some(4)).await, Err(DeskRefusal::NotThere), "it is not his");
    assert!(
        bench.user("gus").revoked_certificates.is_empty() && bench.recorded("certificate-revoked").is_empty()
    );
    let seen = bench.store.last_revocation().unwrap();
    assert_eq!(revoke(&dora, "gus", Some(2)).await, Ok(()));
    assert_eq!(bench.user("gus").revoked_certificates, [[2; 32]]);
    assert_eq!(bench.store.revocations_since(seen).unwrap()[0].cause, RevocationCause::Certificate);
    assert_eq!(revoke(&dora, "gus", Some(2)).await, Err(DeskRefusal::NotThere), "it is revoked");
    assert_eq!(revoke(&dora, "gus", None).await, Ok(()));
    let gus = bench.user("gus");
    assert_eq!(gus.revoked_certificates, gus.certificates, "he goes on having to show one");
    let recorded = bench.recorded("certificate-revoked");
    let details: Vec<_> = recorded.iter().map(|record| record.detail.clone().unwrap()).collect();
    let all = format!("{} {}: stolen laptop", "01".repeat(32), "03".repeat(32));
    assert_eq!(details, [format!("{}: stolen laptop", "02".repeat(32)), all]);
    assert_eq!(recorded[0].by.as_deref(), Some("dora on the web pages"));
    let shown = bench.ask(ShowUser { caller: Caller::Browser(dora), user: Text::cut("gus") }).await.unwrap();
    assert!(shown.certificates.len() == 3 && shown.certificates.iter().all(|shown| shown.revoked));
}

#[tokio::test]
async fn users_are_found_by_name_and_address_and_questions_are_recorded() {
    let bench = Bench::new();
    let [vic, dora] = [bench.browser("vic", INSIDE).await, bench.browser("dora", INSIDE).await];
    let find_as = async |browser: &Browser, text: &str| {
        let (caller, reason) = (Caller::Browser(browser.clone()), Some(Text::cut("call 4711")));
        let find = FindUsers { caller, text: Text::cut(text), after: None, reason };
        let found = bench.ask(find).await?;
        Ok(found.users.iter().map(|user| user.name.to_string()).collect::<Vec<_>>())
    };
    let find = async |text: &str| find_as(&vic, text).await.unwrap();
    assert_eq!(find("").await, ["ann", "dora", "gus", "vic"]);
    assert_eq!((find("OR").await, find("zz").await), (vec!["dora".to_owned()], vec![]));
    let gus = bench.user("gus").id;
    let device = DeviceId([3; 16]);
    let from = [192, 0, 2, 9].into();
    bench.portal.heard().began(SessionId([2; 16]), gus, device, from);
    for address in ["192.0.2.9", " ::ffff:192.0.2.9 "] {
        assert_eq!(find_as(&vic, address).await, Err(DeskRefusal::NoRole), "{address}");
    }
    assert!(bench.recorded("whois").is_empty());
    assert_eq!(find_as(&dora, "192.0.2.9").await, Ok(vec!["gus".to_owned()]));
    let search = &bench.recorded("whois")[0];
    let detail = search.detail.as_ref().unwrap();
    assert!(detail.starts_with("192.0.2.9 at ") && detail.ends_with(": call 4711"), "{search:?}");
    for reason in [None, Some(Text::cut(" "))] {
        let caller = Caller::Browser(dora.clone());
        let find = FindUsers { caller, text: Text::cut("192.0.2.9"), after: None, reason };
        assert_eq!(bench.ask(find).await.err(), Some(DeskRefusal::NoReason));
    }
    assert_eq!(search.by.as_deref(), Some("dora on the web pages"));
    let state = bench.ask(DeskQuery(Caller::Browser(vic.clone()))).await.unwrap();
    assert_eq!((state.role, state.users), (Role::Viewer, 4));

    let ask = |browser: &Browser, address: &str, reason: &str| {
        let (address, at) = (Text::cut(address), Text::cut(""));
        bench.ask(AskWhois {
            caller: Caller::Browser(browser.clone()),
            address,
            at,
            reason: Text::cut(reason),
        })
    };
    assert_eq!(ask(&vic, "10.86.0.9", "why").await.err(), Some(DeskRefusal::NoRole));
    assert_eq!(ask(&dora, "10.86.0.9", " ").await.err(), Some(DeskRefusal::NoReason));
    assert_eq!(ask(&dora, "host", "why").await.err(), Some(DeskRefusal::Unusable));
    let answer = ask(&dora, "10.86.0.9", "complaint 4711").await.unwrap();
    assert!(answer.found.is_empty() && answer.notes[0].contains("no client is on record"), "{answer:?}");
    let asked = bench.recorded("whois");
    let whois = asked.iter().find(|record| record.detail.as_ref().unwrap().ends_with(": complaint 4711"));
    assert_eq!(whois.unwrap().by.as_deref(), Some("dora on the web pages"));
}

#[tokio::test]
async fn an_administrators_program_changes_last_day_sponsor_and_note() {
    let bench = Bench::new();
    let now_s = vpnd_sys::clock::wall_s();
    let token = |name: &str, role| {
        let (token, text) = ApiToken::new(name, role, now_s, now_s + 60);
        assert!(bench.store.add_api_token(&token).unwrap());
        text
    };
    let (idm, desk) = (token("idm", Role::Administrator), token("desk", Role::HelpDesk));
    let guest = UserChange {
        sponsor: Some(Some("ann".to_owned())),
        expires_s: Some(Some(now_s + 60)),
        ..UserChange::default()
    };
    bench.store.modify_user("gus", &guest, 9).unwrap();
    let modify = async |token: &str, expires: Option<&str>, sponsor: Option<&str>, note: Option<&str>| {
        let text = |text: Option<&str>| text.map(Text::cut);
        let account =
            AccountChange { expires: text(expires), sponsor: text(sponsor), note: note.map(Text::cut) };
        let caller = Caller::Program { token: SecretText::new(token).unwrap(), address: INSIDE.into() };
        let (user, reason) = (Text::cut("gus"), Text::cut("sync"));
        bench.ask(ChangeUser { caller, user, deed: Deed::Modify(account), reason }).await.map(drop)
    };
    assert_eq!(modify(&desk, Some("2030-09-30"), None, None).await, Err(DeskRefusal::NoRole));
    for (expires, sponsor, note) in [
        (None, None, None),
        (Some("soon"), None, None),
        (Some("never"), None, None),
        (None, None, Some("\n")),
    ] {
        let refused = modify(&idm, expires, sponsor, note).await;
        assert_eq!(refused, Err(DeskRefusal::Unusable), "{expires:?} {sponsor:?} {note:?}");
    }
    assert_eq!(modify(&idm, Some("never"), Some(""), Some("stays")).await, Ok(()));
    let gus = bench.user("gus");
    assert_eq!((gus.expires_s, gus.sponsor, &*gus.note), (None, None, "stays"));
    let modified = bench.recorded("user-modified");
    let detail = modified.last().unwrap().detail.as_deref().unwrap().to_owned();
    assert!(detail.starts_with("expires: never, sponsor: none, note: stays"), "{detail}");
}

#[tokio::test]
async fn nothing_is_done_or_shown_that_cannot_be_recorded() {
    let bench = Bench::new();
    let dora = bench.browser("dora", INSIDE).await;
    let show = || ShowUser { caller: Caller::Browser(dora.clone()), user: Text::cut("gus") };
    assert!(bench.ask(show()).await.is_ok());
    assert_eq!(bench.recorded("user-shown").len(), 1);
    std::fs::remove_file(&bench.portal.desk.callers.desk().unwrap().audit).unwrap();
    assert_eq!(bench.ask(show()).await.err(), Some(DeskRefusal::NotRecorded));
    let caller = Caller::Browser(dora.clone());
    let find = FindUsers { caller, text: Text::cut("192.0.2.9"), after: None, reason: Some(Text::cut("x")) };
    assert_eq!(bench.ask(find).await.err(), Some(DeskRefusal::NotRecorded));
    for deed in [Deed::Disable, Deed::Kick(None), Deed::Invite] {
        let changed = bench.change(&dora, "gus", deed.clone(), "call 4711").await;
        assert_eq!(changed, Err(DeskRefusal::NotRecorded), "{deed:?}");
    }
    assert!(bench.user("gus").enabled);
}

#[tokio::test]
async fn an_administrators_browser_neither_makes_nor_takes_over_staff() {
    let bench = Bench::new();
    let ann = bench.browser("ann", INSIDE).await;
    let groups = || vpnd_proto::control::List::new(vec![Text::cut("admins")]).unwrap();
    let account = NewAccount { groups: groups(), expires: None, sponsor: None, note: Text::cut("") };
    for (user, deed) in [
        ("eva", Deed::Add(account)),
        ("gus", Deed::SetGroups(groups())),
        ("gus", Deed::Remove),
        ("gus", Deed::RemoveDevice([1; 16].into())),
        ("gus", Deed::RenewDevice { device: [1; 16].into(), reset_clock: true }),
        ("dora", Deed::Invite),
        ("vic", Deed::Invite),
    ] {
        let changed = bench.link(&ann, user, deed.clone(), "because").await;
        assert_eq!(changed.err(), Some(DeskRefusal::NoRole), "{user}: {deed:?}");
    }
    assert!(bench.store.user("eva").unwrap().is_none());
    assert_eq!(bench.user("gus").groups, ["guests"]);
    // Without a role it may be, and by an administrator alone.
    let account = NewAccount {
        groups: vpnd_proto::control::List::new(vec![Text::cut("students")]).unwrap(),
        expires: Some(Text::cut("2090-01-31")),
        sponsor: Some(Text::cut("dora")),
        note: Text::cut("room 4711"),
    };
    let add = async |browser: &Browser, user: &str, reason: &str| {
        bench.link(browser, user, Deed::Add(account.clone()), reason).await.map(|link| link.is_some())
    };
    for (browser, refusal) in [
        (bench.browser("dora", INSIDE).await, DeskRefusal::NoRole),
        (bench.browser("vic", INSIDE).await, DeskRefusal::NoRole),
        (bench.browser("gus", INSIDE).await, DeskRefusal::NoRole),
        (bench.browser("ann", [192, 0, 2, 1]).await, DeskRefusal::Elsewhere),
    ] {
        assert_eq!(add(&browser, "eva", "new here").await, Err(refusal));
    }
    assert_eq!(add(&ann, "eva", " ").await, Err(DeskRefusal::NoReason));
    assert_eq!(add(&ann, "gus", "new here").await, Err(DeskRefusal::Taken));
    assert!(bench.store.user("eva").unwrap().is_none());
    assert_eq!(add(&ann, "eva", "new here").await, Ok(true));
    let (eva, recorded) = (bench.user("eva"), bench.recorded("user-added"));
    assert_eq!((&eva.groups[..], eva.sponsor.as_deref()), (&["students".to_owned()][..], Some("dora")));
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].by.as_deref(), Some("ann on the web pages"));
    assert!(
        recorded[0].detail.as_deref().is_some_and(|detail| detail.ends_with(": new here")),
        "{recorded:?}"
    );
    let can_be_invited = async |user: &str| {
        let show = ShowUser { caller: Caller::Browser(ann.clone()), user: Text::cut(user) };
        bench.ask(show).await.unwrap().can_be_invited
    };
    assert!(!can_be_invited("dora").await && can_be_invited("gus").await);
    assert!(bench.link(&ann, "gus", Deed::Invite, "lost it").await.unwrap().is_some());
}

#[tokio::test]
async fn an_invitation_of_a_directorys_user_sets_codes_alone() {
    let bench = Bench::new();
    let dora = bench.browser("dora", INSIDE).await;
    for (source, name) in [("campus", "eva@uni.example"), ("tokens", "tim@tokens.example")] {
        let (source, name) = (source.to_owned(), name.to_owned());
        bench
            .store
            .refresh_external(&ExternalUser { source, subject: name.clone(), name, groups: Vec::new() }, 1)
            .unwrap();
    }
    let refused = bench.link(&dora, "tim@tokens.example", Deed::Invite, "new phone").await;
    assert_eq!(refused.err(), Some(DeskRefusal::Unusable), "his source has factors of its own");
    let link = bench.link(&dora, "eva@uni.example", Deed::Invite, "new phone").await.unwrap();
    let Some(Made::Link(link)) = link else { panic!("no link") };
    let token = link.expose().rsplit('/').next().unwrap();
    let invitation = || SecretText::<64>::new(token).unwrap();
    let (issuer, address) = (Text::cut("VPN"), INSIDE.into());
    let open = OpenInvitation { invitation: invitation(), address, issuer, before: None };
    let InvitationStep::Open { secret, password, .. } = bench.ask(open).await else { panic!("not open") };
    assert!(!password, "hers is the directory's");
    let totp = vpnd_store::totp::from_typed(secret.expose()).unwrap();
    let accept = AcceptInvitation {
        invitation: invitation(),
        address,
        password: SecretText::new("").unwrap(),
        secret,
        code: SecretText::new(vpnd_store::totp::code_at(&totp, vpnd_sys::clock::wall_s())).unwrap(),
    };
    assert!(matches!(bench.ask(accept).await, InvitationStep::Done));
    let eva = bench.user("eva@uni.example");
    assert!(eva.totp == Some(totp) && eva.password.is_none());
}

#[tokio::test]
async fn an_invitation_sets_password_and_codes_once_and_nothing_else() {
    let bench = Bench::new();
    let dora = bench.browser("dora", INSIDE).await;
    assert!(
        bench.link(&dora, "ann", Deed::Invite, "lost it").await.is_err(),
        "an administrator's is not hers"
    );
    let link = bench.link(&dora, "gus", Deed::Invite, "lost it").await.unwrap().unwrap();
    let Made::Link(link) = link else { panic!("no link") };
    let token = link.expose().strip_prefix("https://vpn.uni.example/invitation/").unwrap().to_owned();
    let invitation = |token: &str| SecretText::<64>::new(token).unwrap();
    let open = async |token: &str| {
        let (issuer, before) = (Text::cut("VPN"), None);
        let invitation = invitation(token);
        bench.ask(OpenInvitation { invitation, address: INSIDE.into(), issuer, before }).await
    };
    for wrong in ["", "x", &"0".repeat(64)] {
        assert!(matches!(open(wrong).await, InvitationStep::Over), "{wrong}");
    }
    let InvitationStep::Open { user, secret, .. } = open(&token).await else { panic!("not open") };
    assert_eq!(&*user, "gus");
    let totp = vpnd_store::totp::from_typed(secret.expose()).unwrap();
    let code = vpnd_store::totp::code_at(&totp, vpnd_sys::clock::wall_s());
    let accept = async |password: &str, code: &str| {
        let accept = AcceptInvitation {
            invitation: invitation(&token),
            address: INSIDE.into(),
            password: SecretText::new(password).unwrap(),
            secret: secret.clone(),
            code: SecretText::new(code).unwrap(),
        };
        bench.ask(accept).await
    };
    assert!(matches!(accept("short", &code).await, InvitationStep::PasswordUnusable));
    assert!(matches!(accept("a long password", "x").await, InvitationStep::CodeWrong));
    assert!(bench.user("gus").totp.is_none(), "nothing was changed");
    assert!(matches!(accept("a long password", &code).await, InvitationStep::Done));
    assert!(bench.user("gus").totp == Some(totp));
    assert!(matches!(accept("a long password", &code).await, InvitationStep::Over), "once");
    assert!(matches!(open(&token).await, InvitationStep::Over));
    assert_eq!(bench.audit.newest()[0].event, "invitation-accepted");
    let invited = bench.recorded("user-invited");
    assert_eq!(invited.len(), 1);
    let hidden = format!("{:?} {invited:?}", bench.audit.newest());
    assert!(!hidden.contains(&token));
}

#[tokio::test]
async fn a_program_does_what_its_token_may_from_the_networks_of_administration() {
    let bench = Bench::new();
    let now_s = vpnd_sys::clock::wall_s();
    let token = |name: &str, role, until_s| {
        let (token, text) = ApiToken::new(name, role, now_s, until_s);
        assert!(bench.store.add_api_token(&token).unwrap());
        text
    };
    let idm = token("idm", Role::Administrator, now_s + 60);
    let desk = token("desk", Role::HelpDesk, now_s + 60);
    let old = token("old", Role::Administrator, now_s);
    let change = async |text: &str, from: [u8; 4], user: &str, deed| {
        let caller = Caller::Program { token: SecretText::new(text).unwrap(), address: from.into() };
        bench.ask(ChangeUser { caller, user: Text::cut(user), deed, reason: Text::cut("sync") }).await
    };
    let account = |group: &str| {
        let groups = vpnd_proto::control::List::new(vec![Text::cut(group)]).unwrap();
        let (expires, sponsor) = (Some(Text::cut("2999-01-31")), Some(Text::cut("ann")));
        Deed::Add(NewAccount { groups, expires, sponsor, note: Text::cut("") })
    };
    for wrong in [&old[..], "", "idm", &idm.replace("idm", "desk"), &format!("idm.{}", "0".repeat(64))] {
        let refused = change(wrong, INSIDE, "eva", account("staff")).await;
        assert_eq!(refused.err(), Some(DeskRefusal::NoVisit), "{wrong}");
    }
    let elsewhere = change(&idm, [192, 0, 2, 1], "eva", account("staff")).await;
    assert_eq!(elsewhere.err(), Some(DeskRefusal::Elsewhere));
    let unread = change(&old, [192, 0, 2, 1], "eva", account("staff")).await;
    assert_eq!(unread.err(), Some(DeskRefusal::Elsewhere), "no token is looked up for those");
    assert_eq!(change(&desk, INSIDE, "eva", account("staff")).await.err(), Some(DeskRefusal::NoRole));
    assert_eq!(change(&desk, INSIDE, "ann", Deed::Disable).await.err(), Some(DeskRefusal::Senior));
    assert_eq!(change(&idm, INSIDE, "ann", account("staff")).await.err(), Some(DeskRefusal::Taken));
    assert_eq!(change(&idm, INSIDE, "a b", account("staff")).await.err(), Some(DeskRefusal::Unusable));
    assert!(change(&idm, INSIDE, "eva", account("staff")).await.unwrap().is_some(), "with a link");
    assert_eq!(bench.user("eva").groups, ["staff"]);
    let hash = bench.user("eva").password.unwrap();
    assert!(hash.expose().contains("m=8,"), "by the workers for passwords");
    let added = &bench.recorded("user-added")[0];
    assert_eq!(added.by.as_deref(), Some("token idm"));
    let detail = added.detail.as_deref().unwrap();
    assert!(detail.starts_with("groups: staff, expires: 2999-01-31"), "{detail}");
    assert!(detail.ends_with(", sponsor: ann: sync"), "{detail}");
    let role = vpnd_proto::control::List::new(vec![Text::cut("admins")]).unwrap();
    for deed in [account("admins"), Deed::SetGroups(role)] {
        let user = if matches!(deed, Deed::Add(_)) { "max" } else { "eva" };
        assert_eq!(change(&desk, INSIDE, user, deed).await.err(), Some(DeskRefusal::NoRole), "{user}");
    }
    let groups = vpnd_proto::control::List::new(vec![Text::cut("guests")]).unwrap();
    assert!(change(&desk, INSIDE, "eva", Deed::SetGroups(groups.clone())).await.is_err());
    assert!(change(&idm, INSIDE, "eva", Deed::SetGroups(groups)).await.is_ok());
    assert_eq!(bench.user("eva").groups, ["guests"]);
    assert!(change(&desk, INSIDE, "eva", Deed::Disable).await.is_ok());
    assert!(change(&idm, INSIDE, "eva", Deed::Remove).await.is_ok());
    assert!(bench.store.user("eva").unwrap().is_none());
    // Everything is for programs of administrators alone, and the question is on record first.
    let export = async |caller: Caller, reason: &str| {
        let text = |text: &str| Text::cut(text);
        let (from, to) = (text("2020-01-01T00:00:00Z"), text("2090-01-01T00:00:00Z"));
        bench.ask(ExportAudit { caller, from, to, user: None, after: None, reason: Text::cut(reason) }).await
    };
    let program =
        |text: &str| Caller::Program { token: SecretText::new(text).unwrap(), address: INSIDE.into() };
    let ann = Caller::Browser(bench.browser("ann", INSIDE).await);
    assert_eq!(export(ann, "x").await.err(), Some(DeskRefusal::NoRole), "no page needs it");
    assert_eq!(export(program(&desk), "x").await.err(), Some(DeskRefusal::NoRole));
    assert_eq!(export(program(&idm), " ").await.err(), Some(DeskRefusal::NoReason));
    assert!(bench.recorded("audit-exported").is_empty());
    let part = export(program(&idm), "yearly").await.unwrap();
    let kinds: Vec<&str> = part.records.iter().map(|record| &*record.kind).collect();
    assert!(kinds.contains(&"user-added") && kinds.last() == Some(&"audit-exported"), "{kinds:?}");
    assert!(bench.store.remove_api_token("idm").unwrap());
    assert_eq!(change(&idm, INSIDE, "gus", Deed::Disable).await.err(), Some(DeskRefusal::NoVisit));
}

/// A session of a user that begins now, with this id, on the device of the same one.
fn session_of(owner: &User, id: [u8; 16], now_s: u64) -> SessionRecord {
    SessionRecord {
        id: SessionId(id),
        user: owner.id,
        device: DeviceId(id),
        epoch: 1,
        tokens: Tokens::new(TokenHash::from_bytes([1; 32])),
        started_s: now_s,
        expires_s: now_s + 3_600,
        factors: Factors::default(),
        auth_time_s: now_s,
        generation: 0,
        most: None,
    }
}

#[tokio::test]
async fn ten_thousand_sessions_are_listed_soon() {
    const SESSIONS: u64 = 10_000;
    let bench = Bench::new();
    let vic = bench.browser("vic", INSIDE).await;
    let (owner, now_s) = (bench.user("gus"), vpnd_sys::clock::steady_s());
    let id = |number: u64| u128::from(number).to_be_bytes();
    let changes: Vec<_> = (0..SESSIONS)
        .map(|number| SessionChange::Add(session_of(&owner, id(number), now_s), owner.generation))
        .collect();
    bench.store.change_sessions(&changes, now_s).unwrap();
    bench.portal.desk.callers.desk().unwrap().watch.want(now());
    let report = |bytes: u64| {
        let used = |number: u64| SessionUse {
            session: id(number).into(),
            rx_bytes: bytes,
            tx_bytes: number * bytes,
            outer: None,
            walled: false,
        };
        let sessions = (0..SESSIONS).map(used).collect();
        bench.portal.observed(Some(WorkerState { sessions, is_last: true, ..WorkerState::default() }));
    };
    let mut soonest = std::time::Duration::MAX;
    for turn in 1..=4 {
        report(1_000 * turn);
        std::thread::sleep(std::time::Duration::from_millis(5));
        report(1_000 * turn + 500);
        let since = std::time::Instant::now();
        let list = ListSessions { caller: Caller::Browser(vic.clone()), order: Order::ByRate, most: 50 };
        let list = bench.ask(list).await.unwrap();
        soonest = soonest.min(since.elapsed());
        assert_eq!((list.sessions.len(), list.more), (50, SESSIONS - 50));
        assert_eq!(list.sessions[0].device, id(SESSIONS - 1).into(), "the one with the highest rate");
    }
    assert!(soonest < std::time::Duration::from_secs(1), "{soonest:?}");
    eprintln!("a page of 10,000 sessions: {soonest:?}");
}

#[tokio::test]
async fn sessions_are_listed_with_their_throughput_page_by_page() {
    const SESSIONS: u8 = 120;
    let bench = Bench::new();
    let [vic, gus] = [bench.browser("vic", INSIDE).await, bench.browser("gus", INSIDE).await];
    let owner = bench.user("gus");
    let now_s = vpnd_sys::clock::steady_s();
    let session = |number: u8| session_of(&owner, [number; 16], now_s);
    let sessions: Vec<_> = (1..=SESSIONS).map(session).collect();
    let changes: Vec<_> =
        sessions.iter().map(|session| SessionChange::Add(session.clone(), owner.generation)).collect();
    bench.store.change_sessions(&changes, now_s).unwrap();
    let report = |bytes: u64| {
        let used = |number: u8| SessionUse {
            session: [number; 16].into(),
            rx_bytes: u64::from(number) * bytes,
            tx_bytes: bytes,
            outer: Some([198, 51, 100, number].into()),
            walled: number == 9,
        };
        let sessions = (1..=SESSIONS).map(used).collect();
        WorkerState { sessions, is_last: true, ..WorkerState::default() }
    };
    let list = async |browser: &Browser, order: Order| {
        bench.ask(ListSessions { caller: Caller::Browser(browser.clone()), order, most: 50 }).await
    };
    let all = || Order::ByUser(None);
    assert_eq!(list(&gus, all()).await.err(), Some(DeskRefusal::NoRole));
    assert!(!bench.portal.observed(None), "nobody with a role looks");
    let elsewhere = bench.browser("vic", [192, 0, 2, 1]).await;
    assert_eq!(list(&elsewhere, all()).await.err(), Some(DeskRefusal::Elsewhere));
    let silent = list(&vic, all()).await.unwrap();
    assert!(silent.sessions.iter().all(|session| session.throughput.is_none()), "the worker is silent");

    assert!(bench.portal.observed(Some(report(1_000))), "somebody looks");
    std::thread::sleep(std::time::Duration::from_millis(20));
    bench.portal.observed(Some(report(2_000)));
    let (mut seen, mut order) = (Vec::new(), all());
    loop {
        let page = list(&vic, order).await.unwrap();
        assert_eq!(page.more, u64::from(SESSIONS) - (seen.len() + page.sessions.len()) as u64);
        seen.extend(page.sessions.iter().map(|session| session.device[0]));
        let one = &page.sessions[0];
        assert_eq!((&*one.user, one.network.as_deref()), ("gus", Some("198.51.100.0/24")));
        assert!(one.throughput.unwrap().rates.is_some_and(|[rx, tx]| rx >= tx && tx > 0), "{one:?}");
        assert_eq!((page.profiles.len(), page.profiles[0].sessions), (1, SESSIONS.into()), "of all");
        match page.next {
            Some(next) => order = Order::ByUser(Some(next)),
            None => break,
        }
    }
    assert_eq!(seen, (1..=SESSIONS).collect::<Vec<_>>(), "each once");
    let busiest = list(&vic, Order::ByRate).await.unwrap();
    let first: Vec<_> = busiest.sessions.iter().map(|session| session.device[0]).take(3).collect();
    assert_eq!((first, busiest.next), (vec![SESSIONS, SESSIONS - 1, SESSIONS - 2], None));
    let show = ShowUser { caller: Caller::Browser(vic.clone()), user: Text::cut("gus") };
    assert_eq!(bench.ask(show).await.unwrap().traffic.len(), usize::from(SESSIONS));
}

#[tokio::test]
async fn ten_thousand_users_are_listed_page_by_page_and_soon() {
    const USERS: usize = 10_000;
    let bench = Bench::new();
    let password = bench.user("ann").password.unwrap();
    let crowd: Vec<UserImport> = (0..USERS)
        .map(|number| UserImport {
            name: format!("student{number:05}"),
            exists: false,
            password: Some(password.clone()),
            change: UserChange { groups: Some(vec!["guests".to_owned()]), ..UserChange::default() },
            enabled: None,
        })
        .collect();
    bench.store.import_users(&crowd, 1).unwrap();
    let now_s = vpnd_sys::clock::wall_s();
    let (token, text) = ApiToken::new("idm", Role::Administrator, now_s, now_s + 3_600);
    assert!(bench.store.add_api_token(&token).unwrap());
    let caller = || Caller::Program { token: SecretText::new(&*text).unwrap(), address: INSIDE.into() };
    let page = async |text: &str, after: Option<&str>| {
        let (text, after) = (Text::cut(text), after.map(Text::cut));
        bench.ask(FindUsers { caller: caller(), text, after, reason: None }).await.unwrap()
    };
    // A machine that is busy may take long once.
    let mut soonest = std::time::Duration::MAX;
    let (mut names, mut after) = (Vec::new(), None::<String>);
    for _ in 0..10 {
        let since = std::time::Instant::now();
        let found = page("STUDENT", after.as_deref()).await;
        soonest = soonest.min(since.elapsed());
        assert_eq!((found.users.len(), found.more as usize), (50, USERS - names.len() - 50));
        after = found.next().map(str::to_owned);
        names.extend(found.users.iter().map(|user| user.name.to_string()));
    }
    assert!(soonest < std::time::Duration::from_secs(1), "{soonest:?}");
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "in order, each once");
    let last = page("student", Some("student09989")).await;
    assert_eq!((last.users.len(), last.more, last.next()), (10, 0, None));
    // The whole name comes first, wherever it is in the list.
    bench.store.add_user(&NewUser::new("zz-student", password.clone()), 1).unwrap();
    bench.store.add_user(&NewUser::new("student", password), 1).unwrap();
    assert_eq!(&*page("Zz-Student", None).await.users[0].name, "zz-student");
    let found = page("student", None).await;
    assert_eq!(
        (&*found.users[0].name, found.users.len(), found.more as usize),
        ("student", 50, USERS + 2 - 50)
    );
    let since = std::time::Instant::now();
    let state = bench.ask(DeskQuery(caller())).await.unwrap();
    assert_eq!(state.users as usize, USERS + 2 + 4);
    eprintln!("a page of 10,000 users: {soonest:?}; the overview: {:?}", since.elapsed());
}

#[tokio::test]
async fn a_device_with_too_many_routes_and_one_too_many_are_refused_before_they_are_added() {
    // No two of them make one network.
    let routes = (0..1_500).map(|number| format!("'2001:db8:{number:x}:1111:1111:1111:1111:1111/128'"));
    let routes = routes.collect::<Vec<_>>().join(", ");
    let text = format!(
        "[wireguard]\nenabled = true\n[[profile]]\nname = 'wide'\ngroups = ['guests']\nroutes = [{routes}]\n\
         [[profile]]\nname = 'few'\nwireguard_max_devices = 1\n"
    );
    let bench = Bench::with_profiles(vpnd_config::testing::smallest(&text).profiles);
    let key = |byte| StaticKey::new(Secret::new([byte; 32]));
    let access = Arc::clone(&bench.access);
    let wireguard = WireGuard::start(Arc::clone(&bench.store) as _, access, key(9)).unwrap();
    let address = "vpn.uni.example:4433".parse().unwrap();
    let endpoint = Endpoint { address, outer: Vec::new() };
    bench.portal.offer(Some(Offer { wireguard, endpoint, tunnel: Tunnel::default() }));

    let now_s = vpnd_sys::clock::wall_s();
    let (token, program) = ApiToken::new("idm", Role::Administrator, now_s, now_s + 60);
    assert!(bench.store.add_api_token(&token).unwrap());
    let [vic, gus] = [bench.browser("vic", INSIDE).await, bench.browser("gus", INSIDE).await];
    let own = async |browser: &Browser, byte| {
        let (public_key, name) = (key(byte).public().0.into(), Text::cut(""));
        bench.ask(AddDevice { browser: browser.clone(), public_key, name }).await
    };
    let by_program = async |user: &str, byte| {
        let (public_key, name) = (key(byte).public().0.into(), Text::cut(""));
        let (user, reason) = (Text::cut(user), Text::cut("call 4711"));
        let deed = Deed::AddDevice { public_key, name };
        let caller = Caller::Program { token: SecretText::new(&*program).unwrap(), address: INSIDE.into() };
        bench.ask(ChangeUser { caller, user, deed, reason }).await.map(drop)
    };
    assert_eq!(own(&gus, 1).await, DeviceChange::TooManyRoutes);
    assert_eq!(by_program("gus", 1).await, Err(DeskRefusal::TooManyRoutes));
    assert!(matches!(own(&vic, 2).await, DeviceChange::Added(_)));
    assert_eq!(own(&vic, 3).await, DeviceChange::TooMany);
    assert_eq!(by_program("vic", 3).await, Err(DeskRefusal::TooManyDevices));
    let added = bench.store.wireguard_devices().unwrap();
    assert_eq!(added.iter().map(|device| device.public_key).collect::<Vec<_>>(), [key(2).public().0]);
}

#[tokio::test]
async fn refused_rights_are_logged_within_bounds() {
    let bench = Bench::new();
    let caller = Caller::Browser(bench.browser("gus", INSIDE).await);
    let lines = vpnd_sys::logging::testing::logged_as_json(|| {
        for _ in 0..300 {
            let actor = bench.portal.desk.callers.actor(&caller, Act::Look).unwrap();
            assert!(matches!(actor, Err(DeskRefusal::NoRole)));
        }
    });
    assert!((100..110).contains(&lines.len()), "{} lines", lines.len());
    let line = lines[0].to_string();
    assert!(
        line.contains("refused at the desk") && line.contains("NoRole") && line.contains("10.86.0.7"),
        "{line}"
    );
}
