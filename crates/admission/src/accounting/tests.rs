//! Records of accounting, with a test in the place of the idp process.

use vpnd_proto::control::List;

use super::*;
use vpnd_config::ServerConfig;
use vpnd_ipc::channel::{self, Channel};
use vpnd_ipc::gateway::idp::{IdpRequest, MAX_FRAME};
use vpnd_ipc::request::{Numbered, encoded};

const DEVICE: DeviceId = DeviceId([1; 16]);
const ID: SessionId = SessionId([7; 16]);

fn sources() -> Vec<Source> {
    let source = |name: &str, rest: &str| {
        format!(
            "[[source]]\nname = \"{name}\"\nkind = \"radius\"\nrealm = \"{name}.example\"\nservers = \"radius://a.example\"\n\
             secret_file = \"s\"\n{rest}"
        )
    };
    let text = format!(
        "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n{}{}",
        source("guests", "accounting_servers = \"radius://a.example\"\n"),
        source("others", "")
    );
    ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap().sources
}

fn user(source: &str) -> User {
    User {
        id: UserId([3; 16]),
        name: format!("ann@{source}.example"),
        source: source.to_owned(),
        subject: "ann".to_owned(),
        ..User::nobody()
    }
}

/// An idp process that passes the records on, and the accounting that uses it.
fn bench(directory: &Path) -> (Arc<Accounting>, tokio::sync::mpsc::UnboundedReceiver<AccountingRecord>) {
    let (ours, theirs) = channel::pair().unwrap();
    let idp = Arc::new(IdpClient::default());
    idp.connect(ours.into()).unwrap();
    let (sender, records) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let channel = Channel::new(theirs, MAX_FRAME).unwrap();
        while let Ok(Some(received)) = channel.receive::<Numbered<IdpRequest>>().await {
            let Numbered { number, content: IdpRequest::Account(record) } = received.message else { return };
            sender.send(record).unwrap();
            channel.send(&Numbered { number, content: encoded(&Ok(())) }, &[]).await.unwrap();
        }
    });
    let accounting = Accounting::new(&sources(), idp).with_file(&directory.join("accounting.sqlite"));
    let accounting = Arc::new(accounting);
    tokio::spawn(Arc::clone(&accounting).deliver());
    (accounting, records)
}

fn addresses() -> Addresses {
    Addresses { v4: Some([10, 86, 0, 2].into()), v6: None }
}

fn attributes() -> AcceptAttributes {
    let class = List::new(vec![0, 255]).unwrap();
    AcceptAttributes { classes: List::new(vec![class]).unwrap(), interim_s: Some(1), ..Default::default() }
}

/// Logs the user in.
fn log_in(accounting: &Accounting, user: &User) {
    accounting.accepted(user, DEVICE, [192, 0, 2, 1].into(), attributes());
    accounting.granted(ID, user, DEVICE, addresses());
    accounting.kept(ID);
}

#[tokio::test]
async fn a_session_is_accounted_for_from_its_start_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let (accounting, mut records) = bench(directory.path());
    log_in(&accounting, &user("guests"));
    let start = records.recv().await.unwrap();
    let session = start.session.unwrap();
    assert_eq!((start.event, &*session.user), (AccountingEvent::Start, "ann"));
    assert_eq!((session.station, session.ipv4), (Some([192, 0, 2, 1].into()), addresses().v4));
    assert_eq!(session.classes, attributes().classes);

    let traffic = Traffic { rx_packets: 1, rx_bytes: 2, tx_packets: 3, tx_bytes: 4 };
    accounting.has_used(ID, traffic);
    let interim = records.recv().await.unwrap();
    assert!(matches!(interim.event, AccountingEvent::Interim(usage) if usage.traffic == traffic));
    accounting.ended(ID, Code::Idle, traffic);
    let stop = records.recv().await.unwrap();
    let AccountingEvent::Stop(usage, cause) = stop.event else { panic!("{stop:?}") };
    assert_eq!((usage.traffic, cause, stop.session), (traffic, TerminateCause::IdleTimeout, Some(session)));
    // Nothing more: neither a second end nor traffic after it.
    accounting.ended(ID, Code::Idle, traffic);
    accounting.has_used(ID, traffic);
    let health = || accounting.health("guests").unwrap();
    while health().waiting > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!((health().sent, health().lost), (3, 0));
    assert!(records.try_recv().is_err());
}

#[tokio::test]
async fn only_sessions_of_a_source_with_accounting_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let (accounting, mut records) = bench(directory.path());
    for source in ["others", "local"] {
        log_in(&accounting, &user(source));
        accounting.restored(ID, &user(source), addresses());
        accounting.has_used(ID, Traffic::default());
        accounting.ended(ID, Code::Bye, Traffic::default());
        assert_eq!(accounting.health(source), None);
    }
    // Nor one that was granted and not kept, or that was never granted.
    accounting.granted(ID, &user("guests"), DEVICE, addresses());
    accounting.abandoned(ID);
    accounting.kept(ID);
    accounting.has_used(ID, Traffic::default());
    accounting.ended(ID, Code::Bye, Traffic::default());
    assert!(accounting.due().is_empty());
    assert_eq!(accounting.health("guests").unwrap(), AccountingHealth::default());
    assert!(records.try_recv().is_err());
}

#[tokio::test]
async fn an_upgrade_keeps_accounting_sessions_and_a_start_opens_new_ones() {
    let directory = tempfile::tempdir().unwrap();
    let (before, mut records) = bench(directory.path());
    log_in(&before, &user("guests"));
    let first = records.recv().await.unwrap().session.unwrap();

    // An upgrade: the same session ends in another process.
    let (upgraded, mut records) = bench(directory.path());
    assert!(upgraded.due().is_empty(), "it is not due at once");
    upgraded.has_used(ID, Traffic::default());
    assert_eq!(records.recv().await.unwrap().session, Some(first.clone()));

    // A start: it goes on under another name once its client comes back, and one that the store has
    // lost is forgotten.
    let (started, mut records) = bench(directory.path());
    let lost = SessionId([8; 16]);
    started.start(|session| session != lost);
    assert_eq!(records.recv().await.unwrap().event, AccountingEvent::On);
    started.has_used(ID, Traffic::default());
    assert!(started.due().is_empty());
    started.restored(ID, &user("guests"), addresses());
    started.restored(ID, &user("guests"), addresses());
    let again = records.recv().await.unwrap();
    let session = again.session.unwrap();
    assert_eq!(again.event, AccountingEvent::Start);
    assert!(session.id != first.id, "its servers take the first to be over");
    assert_eq!((session.station, session.classes), (first.station, first.classes));
    started.ended(ID, Code::Bye, Traffic::default());
    assert!(matches!(records.recv().await.unwrap().event, AccountingEvent::Stop(..)));
    started.stop().await;
    assert_eq!(records.recv().await.unwrap().event, AccountingEvent::Off);
    let file = OpenSessions::open(&directory.path().join("accounting.sqlite")).unwrap();
    assert!(file.all().is_empty() && file.earlier(ID).is_none(), "nothing is left of it");
}

#[test]
fn the_gateways_own_interval_has_precedence_and_a_servers_has_bounds() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(interim(None, None), seconds(600));
    assert_eq!(interim(None, Some(900)), seconds(900));
    assert_eq!((interim(None, Some(0)), interim(None, Some(u32::MAX))), (seconds(60), seconds(86_400)));
    assert_eq!(interim(seconds(5), Some(900)), seconds(5));
    assert_eq!(interim(seconds(0), Some(900)), None);
}
