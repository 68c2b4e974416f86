//! Logins at a real directory, slapd, and at servers that stop, dawdle and lie.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use vpnd_proto::control::{SecretText, UserName};

use super::*;
use crate::PreparedSource;
use slapd::{ADMIN, Slapd, group, nested_group, person};
use vpnd_config::ServerConfig;
use vpnd_ipc::gateway::idp::SourceName;
use vpnd_ipc::request::Reason;

type Reply = Result<Verdict, Reason>;

#[path = "../../../vpnd/tests/netns/slapd.rs"]
mod slapd;

const ADDRESS: &str = "127.0.0.1";

fn command(program: &str) -> Command {
    Command::new(program)
}

/// A source with these keys besides those that each needs.
fn source(slapd: &Slapd, servers: &str, keys: &str) -> Vec<PreparedSource> {
    let text = format!(
        "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n[[source]]\nname = \"staff\"\n\
         kind = \"ldap\"\nmatch = \"*\"\nservers = [{servers}]\nca = \"{}\"\ntimeout_ms = 2000\n{keys}\n",
        slapd.ca().display()
    );
    super::super::prepare(&ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap()).unwrap()
}

/// The keys of a source that searches with the rights of an account.
fn searching(slapd: &Slapd, more: &str) -> String {
    let file = slapd.password_file();
    format!(
        "bind_dn = \"{ADMIN}\"\nbind_password_file = \"{}\"\nbase = \"ou=people,dc=uni,dc=example\"\n{more}",
        file.display()
    )
}

fn tls(slapd: &Slapd) -> String {
    format!("\"ldaps://{ADDRESS}:{}\"", slapd.tls)
}

/// The reply, without the entry of who is refused.
async fn check(sources: &[PreparedSource], user: &str, password: &str) -> Reply {
    match check_entry(sources, user, password).await {
        Ok(Verdict::RefusedEntry(refusal, _)) => Ok(Verdict::Refused(refusal)),
        reply => reply,
    }
}

async fn check_entry(sources: &[PreparedSource], user: &str, password: &str) -> Reply {
    let login = LoginCheck {
        source: SourceName::cut("staff"),
        user: UserName::new(user).unwrap(),
        password: SecretText::new(password).unwrap(),
        address: ADDRESS.parse().unwrap(),
    };
    super::super::check(sources, &login).await
}

fn refused(refusal: SourceRefusal) -> Reply {
    Ok(Verdict::Refused(refusal))
}

fn groups(reply: &Reply) -> Vec<&str> {
    let Ok(Verdict::Accepted(identity)) = reply else { panic!("{reply:?}") };
    identity.groups.iter().map(|group| &**group).collect()
}

fn people() -> String {
    [person("ann", "right"), person("bob", "bobs"), group("staff", &["ann"]), group("vpn", &["ann", "bob"])]
        .concat()
}

#[tokio::test]
async fn the_right_password_is_accepted_with_its_groups() {
    let Some(slapd) = Slapd::start(ADDRESS, command, &people()) else { return };
    let sources = source(&slapd, &tls(&slapd), &searching(&slapd, ""));
    let accepted = check(&sources, "ann", "right").await;
    assert_eq!(groups(&accepted), ["staff", "vpn"]);
    let Ok(Verdict::Accepted(identity)) = &accepted else { panic!("{accepted:?}") };
    assert_eq!(identity.subject.len(), 36, "the entryUUID: {identity:?}");
    assert_eq!(check(&sources, "ann", "right").await, accepted, "it does not change");
    assert_eq!(groups(&check(&sources, "ANN", "right").await), ["staff", "vpn"], "names have no case there");
    assert_eq!(check(&sources, "ann", "wrong").await, refused(SourceRefusal::WrongPassword));
    assert_eq!(check(&sources, "ann", "bobs").await, refused(SourceRefusal::WrongPassword));
    let wrong = Ok(Verdict::RefusedEntry(SourceRefusal::WrongPassword, identity.subject.clone()));
    assert_eq!(check_entry(&sources, "Ann", "wrong").await, wrong, "whose password was guessed");
    assert_eq!(check(&sources, "eve", "right").await, refused(SourceRefusal::UnknownUser));
}

#[tokio::test]
async fn an_empty_password_is_refused_by_ldap() {
    let Some(slapd) = Slapd::start(ADDRESS, command, &people()) else { return };
    let url = format!("ldap://{ADDRESS}:{}", slapd.plain);
    let ann = "uid=ann,ou=people,dc=uni,dc=example";
    let whoami =
        command("/usr/bin/ldapwhoami").args(["-x", "-H", &url, "-D", ann, "-w", ""]).output().unwrap();
    assert!(whoami.status.success(), "the server itself agrees to such a bind");
    let sources = source(&slapd, &tls(&slapd), &searching(&slapd, ""));
    assert_eq!(check(&sources, "ann", "").await, refused(SourceRefusal::WrongPassword));
    let direct = "user_dn = \"uid={user},ou=people,dc=uni,dc=example\"";
    let sources = source(&slapd, &tls(&slapd), direct);
    assert_eq!(check(&sources, "ann", "").await, refused(SourceRefusal::WrongPassword));
    assert_eq!(groups(&check(&sources, "ann", "right").await), ["staff", "vpn"]);
    assert_eq!(check(&sources, "ann", "wrong").await, refused(SourceRefusal::WrongPassword));
    assert_eq!(check(&sources, "eve", "right").await, refused(SourceRefusal::WrongPassword));
}

#[tokio::test]
async fn a_name_is_a_name_and_no_filter() {
    let Some(slapd) = Slapd::start(ADDRESS, command, &person("ann", "right")) else { return };
    let sources = source(&slapd, &tls(&slapd), &searching(&slapd, ""));
    for name in ["*)(uid=*", "*", "a*", "ann)(objectClass=*", "\\61nn", "ann\0", "ann))(|(uid=*"] {
        assert_eq!(check(&sources, name, "right").await, refused(SourceRefusal::UnknownUser), "{name}");
    }
    let sources = source(&slapd, &tls(&slapd), "user_dn = \"uid={user},ou=people,dc=uni,dc=example\"");
    let name = "ann,ou=people,dc=uni,dc=example+uid=x";
    assert_eq!(check(&sources, name, "right").await, refused(SourceRefusal::WrongPassword));
}

#[tokio::test]
async fn tls_is_begun_either_way_and_only_with_the_right_server() {
    let Some(slapd) = Slapd::start(ADDRESS, command, &people()) else { return };
    let start_tls = format!("\"ldap://{ADDRESS}:{}\"", slapd.plain);
    let keys = searching(&slapd, "");
    assert_eq!(groups(&check(&source(&slapd, &start_tls, &keys), "ann", "right").await), ["staff", "vpn"]);
    let Some(other) = Slapd::start(ADDRESS, command, &people()) else { return };
    // The other has a certificate of another CA, or this one is known by another name.
    let named = format!("\"ldaps://localhost:{}\"", slapd.tls);
    let foreign = format!("\"ldap://{ADDRESS}:{}\"", other.plain);
    for servers in [&tls(&other), &foreign, &named] {
        let reply = check(&source(&slapd, servers, &keys), "ann", "right").await;
        assert!(matches!(&reply, Err(reason) if reason.contains("TLS")), "{servers}: {reply:?}");
    }
}

#[tokio::test]
async fn exactly_one_entry_is_the_users() {
    let twice = person("ann", "right").replace("uid=ann,", "cn=ann,");
    let Some(slapd) = Slapd::start(ADDRESS, command, &[person("ann", "right"), twice].concat()) else {
        return;
    };
    let sources = source(&slapd, &tls(&slapd), &searching(&slapd, ""));
    assert_eq!(check(&sources, "ann", "right").await, refused(SourceRefusal::SeveralUsers));
    let one =
        searching(&slapd, "filter = \"(&(uid={user})(!(entryDN=cn=ann,ou=people,dc=uni,dc=example)))\"");
    assert!(matches!(
        check(&source(&slapd, &tls(&slapd), &one), "ann", "right").await,
        Ok(Verdict::Accepted(_))
    ));
    let without = searching(
        &slapd,
        "filter = \"(entryDN=uid={user},ou=people,dc=uni,dc=example)\"\nsubject = \"mail\"",
    );
    let reply = check(&source(&slapd, &tls(&slapd), &without), "ann", "right").await;
    assert_eq!(reply, refused(SourceRefusal::NoSubject));
}

#[tokio::test]
async fn a_base_that_is_missing_is_a_failure_of_the_directory_and_no_answer_about_the_user() {
    let Some(slapd) = Slapd::start(ADDRESS, command, &people()) else { return };
    let users = searching(&slapd, "").replace("ou=people,", "ou=missing,");
    let groups = searching(&slapd, "group_base = \"ou=missing,dc=uni,dc=example\"\n");
    for keys in [users, groups] {
        let sources = source(&slapd, &tls(&slapd), &keys);
        let reply = check(&sources, "ann", "right").await;
        assert!(matches!(&reply, Err(reason) if reason.contains("ou=missing")), "{reply:?}");
    }
}

#[tokio::test]
async fn groups_are_searched_for_and_too_many_are_refused() {
    let entries: String = (0..12).map(|n| group(&format!("g{n:02}"), &["ann"])).collect();
    let Some(slapd) = Slapd::start(ADDRESS, command, &[person("ann", "right"), entries].concat()) else {
        return;
    };
    let search = "group_attribute = \"none\"\ngroup_base = \"ou=groups,dc=uni,dc=example\"\n";
    let keys = |more: &str| searching(&slapd, more);
    let found = check(&source(&slapd, &tls(&slapd), &keys(search)), "ann", "right").await;
    assert_eq!((groups(&found).len(), groups(&found)[0]), (12, "g00"));
    for more in [format!("{search}max_groups = 11\n"), "max_groups = 11\n".to_owned()] {
        let reply = check(&source(&slapd, &tls(&slapd), &keys(&more)), "ann", "right").await;
        assert_eq!(reply, refused(SourceRefusal::TooManyGroups), "{more}");
    }
}

#[tokio::test]
async fn a_disabled_account_is_refused() {
    let locked = "nsAccountLock: TRUE\n\n";
    let ann = person("ann", "right").replace("objectClass", "objectClass: extensibleObject\nobjectClass");
    let entries = [ann.trim_end(), "\n", locked].concat();
    let Some(slapd) = Slapd::start(ADDRESS, command, &entries) else { return };
    let sources = source(&slapd, &tls(&slapd), &searching(&slapd, ""));
    assert_eq!(check(&sources, "ann", "right").await, refused(SourceRefusal::Disabled));
    assert_eq!(check(&sources, "ann", "wrong").await, refused(SourceRefusal::WrongPassword));
}

#[tokio::test]
async fn another_server_replaces_one_that_stops_delays_or_lies() {
    let Some(slapd) = Slapd::start(ADDRESS, command, &people()) else { return };
    let dawdling = TcpListener::bind((ADDRESS, 0)).unwrap();
    let lying = TcpListener::bind((ADDRESS, 0)).unwrap();
    let closed = TcpListener::bind((ADDRESS, 0)).unwrap().local_addr().unwrap().port();
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let servers = format!(
        "\"ldap://{ADDRESS}:{closed}\", \"ldaps://{ADDRESS}:{}\", \"ldap://{ADDRESS}:{}\", {}",
        port(&dawdling),
        port(&lying),
        tls(&slapd)
    );
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = lying.accept() {
            // Agrees to everything.
            let _ = stream.write_all(&[0x30, 12, 2, 1, 1, 0x78, 7, 0x0A, 1, 0, 4, 0, 4, 0, 0x30, 0x84, 0xFF]);
        }
    });
    let sources = source(&slapd, &servers, &searching(&slapd, "").replace("timeout_ms = 2000", ""));
    assert_eq!(groups(&check(&sources, "ann", "right").await), ["staff", "vpn"]);
    assert_eq!(
        check(&sources, "ann", "wrong").await,
        refused(SourceRefusal::WrongPassword),
        "the last is the first now"
    );
}

#[tokio::test]
async fn logins_are_refused_without_any_server() {
    let Some(slapd) = Slapd::start(ADDRESS, command, &people()) else { return };
    let sources = source(&slapd, &tls(&slapd), &searching(&slapd, ""));
    let account =
        source(&slapd, &tls(&slapd), &searching(&slapd, "").replace(ADMIN, "cn=other,dc=uni,dc=example"));
    let reply = check(&account, "ann", "right").await;
    assert!(matches!(&reply, Err(reason) if reason.contains("account")), "{reply:?}");
    // It is there and does nothing.
    let pid = rustix::process::Pid::from_raw(slapd.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let reply = tokio::time::timeout(Duration::from_secs(20), check(&sources, "ann", "right")).await.unwrap();
    assert!(matches!(&reply, Err(reason) if reason.contains("no answer in time")), "{reply:?}");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert_eq!(groups(&check(&sources, "ann", "right").await), ["staff", "vpn"]);
}

#[tokio::test]
async fn referrals_are_not_followed() {
    let elsewhere = TcpListener::bind((ADDRESS, 0)).unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    let referral = |name: &str, rest: &str| {
        format!(
            "dn: ou={name},dc=uni,dc=example\nobjectClass: referral\nobjectClass: extensibleObject\nou: {name}\n\
             ref: ldap://{ADDRESS}:{port}/{rest}\n\n"
        )
    };
    let entries =
        [people(), referral("else", "ou=else"), referral("away", "ou=people,dc=uni,dc=example")].concat();
    let Some(slapd) = Slapd::start(ADDRESS, command, &entries) else { return };
    let keys = |base: &str| searching(&slapd, "").replace("ou=people,", base);
    // One among the entries, and one in the place of the base.
    assert_eq!(
        groups(&check(&source(&slapd, &tls(&slapd), &keys("")), "ann", "right").await),
        ["staff", "vpn"]
    );
    let reply = check(&source(&slapd, &tls(&slapd), &keys("ou=away,")), "ann", "right").await;
    assert!(reply.is_err(), "{reply:?}");
    assert!(elsewhere.accept().is_err(), "nobody came");
}

#[test]
fn names_of_groups_and_subjects() {
    let name = |text: &str| group_name(text.as_bytes());
    assert_eq!(name("cn=staff,ou=groups").as_deref(), Some("staff"));
    assert_eq!(name("CN=M\\C3\\BCnchen+x=y,ou=g").as_deref(), Some("München"));
    assert_eq!(name("staff").as_deref(), Some("staff"));
    assert_eq!(name("cn=Fakult\u{e4}t 1\\2c Labor,ou=g").as_deref(), Some("Fakult\u{e4}t 1, Labor"));
    assert_eq!((name("cn=\n,ou=x"), name(""), group_name(&[0xFF])), (None, None, None));
    assert_eq!(subject_text(b"S-1-5-21"), "S-1-5-21");
    assert_eq!(subject_text(&[0, 0xAB]), "hex:00ab");
    assert_ne!(subject_text(b"hex:00ab"), "hex:00ab", "somebody else");
}

/// Groups in groups: `staff` is in `faculty`, that in `all`, and `all` in `staff` again.
fn nest(slapd: &Slapd) {
    let changes = [
        nested_group("faculty", "staff"),
        nested_group("all", "faculty"),
        "dn: cn=staff,ou=groups,dc=uni,dc=example\nchangetype: modify\nadd: member\n\
         member: cn=all,ou=groups,dc=uni,dc=example\n-\n"
            .to_owned(),
    ];
    slapd.modify(&command, ADDRESS, &changes.concat());
}

#[tokio::test]
async fn groups_in_groups_count_where_that_is_configured_and_circles_end() {
    let entries = [person("ann", "right"), person("bob", "right"), group("staff", &["ann"])].concat();
    let Some(slapd) = Slapd::start(ADDRESS, command, &entries) else { return };
    nest(&slapd);
    let base = "group_base = \"ou=groups,dc=uni,dc=example\"\n";
    // The user's groups are in the entry, or a search alone finds them.
    for way in ["", "group_attribute = \"none\"\n"] {
        for (nested, expected) in
            [("", &["staff"][..]), ("nested_groups = true\n", &["all", "faculty", "staff"])]
        {
            let keys = searching(&slapd, &format!("{base}{way}{nested}"));
            let sources = source(&slapd, &tls(&slapd), &keys);
            let before = slapd.searches(&command, ADDRESS);
            assert_eq!(groups(&check(&sources, "ann", "right").await), expected, "{way}{nested}");
            // One for the user, one for the groups, one for each group above; the count is a search
            // itself.
            let searches = slapd.searches(&command, ADDRESS) - before - 1;
            assert_eq!(searches, if nested.is_empty() { 2 } else { 5 }, "{way}{nested}");
            assert_eq!(groups(&check(&sources, "bob", "right").await), [""; 0], "{way}{nested}");
        }
        let keys = searching(&slapd, &format!("{base}{way}nested_groups = true\nmax_groups = 2\n"));
        let reply = check(&source(&slapd, &tls(&slapd), &keys), "ann", "right").await;
        assert_eq!(reply, refused(SourceRefusal::TooManyGroups), "{way}");
    }
}

#[tokio::test]
async fn too_deeply_nested_groups_are_refused() {
    let entries = [person("ann", "right"), group("g0", &["ann"])].concat();
    let Some(slapd) = Slapd::start(ADDRESS, command, &entries) else { return };
    let add = |number: usize| {
        let group = nested_group(&format!("g{number}"), &format!("g{}", number - 1));
        slapd.modify(&command, ADDRESS, &group);
    };
    (1..groups::MAX_LEVELS).for_each(add);
    let keys = searching(&slapd, "group_base = \"ou=groups,dc=uni,dc=example\"\nnested_groups = true\n");
    let sources = source(&slapd, &tls(&slapd), &keys);
    assert_eq!(self::groups(&check(&sources, "ann", "right").await).len(), groups::MAX_LEVELS);
    add(groups::MAX_LEVELS);
    assert_eq!(check(&sources, "ann", "right").await, refused(SourceRefusal::TooManyGroups));
}
