//! Behaviour: an attacker has taken over the idp process and says what they like of each login that
//! the auth process asks it about. They let in users of its sources and no others: no local user,
//! none of another source, none who is disabled here; and no user gets a role at the desk.
//!
//! The real process is stopped (SIGSTOP), and the test answers in its place, over a copy of its
//! descriptor of the channel.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use minicbor::Decoder;
use vpnd_ipc::gateway::idp::{
    AcceptAttributes, Identity, LoggedOut, ProviderLogout, SourceAddresses, Subject, Verdict,
};
use vpnd_proto::control::{List, Text, UserName};

use super::taken_over::{reply, take_over};
use super::{TIMEOUT, add_further_source, add_source};
use crate::gateway::{Gateway, must, strings, write_secret};
use crate::lab::{GATEWAY_V4, Lab, eventually};
use crate::portal::{Answer, Browser, configure, serves};
use crate::process;
use crate::taken_over::TakenOver;

/// The number of a check of a password in `crates/ipc/src/gateway/idp.rs`.
const CHECK: u32 = 0;

/// An identity as the attacker makes it: always with a group that gives a role to local users, and
/// with the address of the gateway itself.
fn identity(subject: &str, name: Option<&str>) -> Identity {
    let addresses = SourceAddresses { ipv4: Some([10, 86, 0, 1].into()), ipv6: None };
    Identity {
        subject: Subject::new(subject).unwrap(),
        groups: List::new(vec![Text::new("admins").unwrap()]).unwrap(),
        accept: AcceptAttributes { addresses, ..AcceptAttributes::default() },
        name: name.map(|name| UserName::new(name).unwrap()),
    }
}

/// Answers the next check of a password with this; the source and the name that it asked about.
fn answer_check(idp: &mut TakenOver, said: &Verdict) -> (String, String) {
    let sent = idp.receive();
    let mut decoder = Decoder::new(&sent.body);
    decoder.array().unwrap();
    let number = decoder.u32().unwrap();
    decoder.array().unwrap();
    assert_eq!((decoder.u32().unwrap(), decoder.array().unwrap()), (CHECK, Some(1)));
    decoder.array().unwrap();
    let (source, user) = (decoder.str().unwrap().to_owned(), decoder.str().unwrap().to_owned());
    idp.send(&reply(number, &minicbor::to_vec(said).unwrap()));
    (source, user)
}

fn set_up(lab: &Lab) -> Gateway<'_> {
    let mut gateway = Gateway::init(lab);
    for name in ["local", "root"] {
        gateway.add_user(name);
    }
    must(process::run(gateway.user(&["modify", "root", "--group", "admins"])));
    configure(&gateway);
    gateway.configure("portal.administrator_groups", "admins");
    gateway.configure("portal.admin_networks", strings(&["198.18.0.0/16"]));
    // No server is there: the attacker alone answers.
    let directory = format!(
        "name = 'staff'\nkind = 'ldap'\nrealm = 'uni.example'\nservers = ['ldaps://{GATEWAY_V4}:9']\nca = {:?}\n\
         user_dn = 'uid={{user}}'\n",
        gateway.file("portal.pem")
    );
    add_source(&gateway, &directory);
    let secret = lab.path("radius.secret");
    write_secret(&secret, "whatever it is");
    let radius = format!(
        "name = 'guests'\nkind = 'radius'\nmatch = 'g-*'\nservers = ['radius://{GATEWAY_V4}:9']\nsecret_file = {secret:?}\n"
    );
    add_further_source(&gateway, &radius);
    gateway.start();
    gateway
}

#[test]
fn a_compromised_idp_process_vouches_only_for_its_sources() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = set_up(&lab);
    let pid = gateway.process().id();
    let browser = || Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&browser());
    let root = browser();
    root.logged_in("root");
    assert_eq!(root.get("/desk").status, 200, "a local administrator is at the desk");
    let mut idp = take_over(pid);

    // The answer to a login by `typed` about which the attacker says this.
    let mut log_in = |typed: &str, source: &str, said: Verdict| -> (Browser<'_>, Answer) {
        let browser = Browser::new(&lab, &lab.clients[0], &gateway);
        let answer = std::thread::scope(|scope| {
            let answer = scope.spawn(|| browser.log_in(typed, "x"));
            let (asked, _) = answer_check(&mut idp, &said);
            assert_eq!(asked, source, "{typed}");
            answer.join().unwrap()
        });
        (browser, answer)
    };
    let last_login = || crate::audit::recorded(&gateway, "portal-login").last().unwrap()["user"].clone();

    // Each gets in under the typed name of this very source.
    for (typed, source, name) in [
        ("eve@uni.example", "staff", "local"),
        ("eve@uni.example", "staff", "root"),
        ("eve@uni.example", "staff", "g-bob"),
        ("eve@uni.example", "staff", "EVE@uni.example"),
        ("g-bob", "guests", "root"),
        ("g-bob", "guests", "eve@uni.example"),
    ] {
        let said = Verdict::Accepted(identity(&format!("id of {typed}"), Some(name)));
        let (browser, answer) = log_in(typed, source, said);
        assert_eq!(answer.status, 303, "{typed} as {name}: {answer:?}");
        eventually(&format!("a login of {typed} as {name} is recorded"), TIMEOUT, || {
            (last_login() == typed).then_some(())
        });
        assert_ne!(browser.get("/desk").status, 200, "{typed} as {name} is at the desk by a group");
        let page = browser.overview().unwrap();
        assert!(page.body.contains(typed), "{page:?}");
    }
    // The record of one subject does not become another's, nor does a name that is taken.
    let (_, answer) = log_in("eve@uni.example", "staff", Verdict::Accepted(identity("another", None)));
    assert_eq!(answer.status, 403, "{answer:?}");

    // A user who is disabled here stays so, under every name and number.
    must(process::run(gateway.user(&["disable", "eve@uni.example"])));
    let eve = "id of eve@uni.example";
    for (typed, subject, name, status) in [
        ("eve@uni.example", eve, None, 403),
        ("zoe@uni.example", "new", Some("eve@uni.example"), 403),
        ("eva@uni.example", eve, None, 403),
        ("zoe@uni.example", eve, Some("zoe@uni.example"), 403),
        ("eve@uni.example", "new", None, 403),
        ("max@uni.example", "new", Some("max@uni.example"), 303),
    ] {
        let (_, answer) = log_in(typed, "staff", Verdict::Accepted(identity(subject, name)));
        assert_eq!(answer.status, status, "{typed} as {subject} {name:?}: {answer:?}");
    }
    assert_eq!(root.get("/desk").status, 200);
    let listed = process::text(&must(process::run(gateway.user(&["list"]))));
    assert!(listed.contains("local") && listed.contains("root"), "{listed}");

    // An answer to another question ends this process, and local users come in.
    let browser = browser();
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| browser.log_in("g-bob", "x"));
        let sent = idp.receive();
        let mut decoder = Decoder::new(&sent.body);
        decoder.array().unwrap();
        let logout = ProviderLogout { who: LoggedOut::Subject(Subject::cut("1")), id: [1; 32].into() };
        idp.send(&reply(decoder.u32().unwrap(), &minicbor::to_vec(Some(logout)).unwrap()));
        let answer = answer.join().unwrap();
        assert_eq!(answer.status, 503, "{answer:?}");
    });
    idp.let_go();
    assert_eq!(browser.log_in("local", "local's password").status, 303);
    eventually("there is another", TIMEOUT, || super::idp(pid));
}
