//! Users of a directory or a RADIUS server: real clients, a real slapd or FreeRADIUS in the
//! gateway's box, and what happens when parts of that go away.

mod absences;
mod accounting;
mod addresses;
mod by_hand;
mod dynamic_authorization;
mod guesses;
mod hostile;
mod impostor;
mod nested;
mod rate;
mod recheck;
mod taken_over;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use toml::Value;

use crate::access_profiles;
use crate::client::{self, Client};
use crate::freeradius::FreeRadius;
use crate::gateway::{Gateway, Login, edit_toml, must, write_secret};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::{self, Process};
use crate::slapd::{self, ADMIN, Slapd, group, person};
use crate::traffic::ping_until;
use crate::upgrade::put;

const ADDRESS: &str = "127.0.0.1";
const TIMEOUT: Duration = Duration::from_secs(30);

/// A program in the gateway's namespace that sees the machine's own files.
pub(crate) fn beside(lab: &Lab, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", lab.gateway.name(), program]);
    command
}

/// The profile of `local` with another user and password.
pub(crate) fn login_of(lab: &Lab, local: &Login, user: &str, password: &str) -> Login {
    let name = user.replace('@', "-at-");
    let login = Login {
        profile: lab.path(format!("{name}.toml")),
        credentials: lab.path(format!("{name}-{}.credentials", password.len())),
    };
    write_secret(&login.credentials, &format!("{password}\n"));
    fs::copy(&local.profile, &login.profile).expect("the laboratory has room");
    edit_toml(&login.profile, |profile| {
        let section = profile["user"].as_table_mut().expect("a section");
        section.insert("name".to_owned(), user.into());
    });
    login
}

/// A source with this server.
fn configure(gateway: &Gateway<'_>, slapd: &Slapd, password: PathBuf) {
    configure_at(gateway, slapd, password, ADDRESS);
}

/// Configures it by this name or address.
fn configure_at(gateway: &Gateway<'_>, slapd: &Slapd, password: PathBuf, host: &str) {
    let text = format!(
        "name = \"staff\"\nkind = \"ldap\"\nrealm = \"uni.example\"\nservers = [\"ldaps://{host}:{}\"]\nca = {:?}\n\
         bind_dn = \"{ADMIN}\"\nbind_password_file = {password:?}\nbase = \"ou=people,dc=uni,dc=example\"\n\
         timeout_ms = 2000\n",
        slapd.tls,
        slapd.ca()
    );
    add_source(gateway, &text);
}

pub(crate) fn add_source(gateway: &Gateway<'_>, text: &str) {
    let source: toml::Table = text.parse().expect("it is TOML");
    edit_toml(&gateway.config(), |table| {
        table.insert("source".to_owned(), Value::Array(vec![Value::Table(source)]));
    });
}

/// Adds one after those that the configuration has.
pub(crate) fn add_further_source(gateway: &Gateway<'_>, text: &str) {
    let source: toml::Table = text.parse().expect("it is TOML");
    edit_toml(&gateway.config(), |table| {
        let sources = table.get_mut("source").and_then(Value::as_array_mut).expect("there are some");
        sources.push(Value::Table(source));
    });
}

/// The idp process of the gateway with this number.
fn idp(gateway: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{gateway}/task/{gateway}/children")).ok()?;
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|b| *b == 0).any(|word| word == b"idp"))
    })
}

#[test]
fn a_directory_user_logs_in_and_has_a_local_record() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let entries = [person("ann", "right"), group("staff", &["ann"])].concat();
    let Some(slapd) = Slapd::start(ADDRESS, |program| beside(&lab, program), &entries) else {
        return;
    };
    configure(&gateway, &slapd, slapd.password_file());
    gateway.start();
    let ann = login_of(&lab, &local, "ann@uni.example", "right");
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let session = gateway.sessions().remove(0);
    assert_eq!(session["user"], "ann@uni.example", "{session}");

    let wrong = login_of(&lab, &local, "ann@uni.example", "wrong password");
    let (status, output) = Client::refused(&lab, 2, &wrong, &[]);
    assert!(status == 3 && output.contains("login was refused"), "{output}");

    // It ends, and comes back; the session goes on meanwhile.
    let gateway_pid = gateway.process().id();
    let first = eventually("there is an idp process", TIMEOUT, || idp(gateway_pid));
    kill_process(Pid::from_raw(first as i32).expect("a number of a process"), Signal::KILL)
        .expect("it is there");
    eventually("there is another", TIMEOUT, || idp(gateway_pid).filter(|pid| *pid != first));
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    assert_eq!(gateway.sessions().len(), 1);
    drop(client);
    // The realm as Windows has it, and other letters: the gateway knows whose name that is.
    let typed = login_of(&lab, &local, "UNI.EXAMPLE\\Ann", "right");
    let again = Client::connect(&lab, 1, &typed);
    assert_eq!(gateway.sessions().remove(0)["user"], "ann@uni.example");
    drop(again);
    let again = Client::connect(&lab, 1, &ann);
    ping_until(again.namespace(), CAMPUS_V4.into(), TIMEOUT);

    // Disabled here, whatever the directory says.
    must(process::run(gateway.user(&["disable", "ann@uni.example"])));
    eventually("no session is left", TIMEOUT, || gateway.sessions().is_empty().then_some(()));
    drop(again);
    let (status, output) = Client::refused(&lab, 1, &ann, &[]);
    assert!(status == 3 && output.contains("login was refused"), "{output}");
}

/// Writes as administrators' tools and DHCP clients do: a whole new file, which is then
/// renamed over it.
fn put_in_place(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("it is writable");
    fs::rename(new, path).expect("it is in the same directory");
}

#[test]
fn a_directory_is_found_by_its_name_also_where_the_files_of_names_are_replaced() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let slapd = Slapd::start(ADDRESS, |program| beside(&lab, program), &person("ann", "right"));
    let Some(slapd) = slapd else { return };
    configure_at(&gateway, &slapd, slapd.password_file(), slapd::NAME);
    let hosts = process::etc(&lab, &lab.gateway).join("hosts");
    let text = format!("{ADDRESS} {}\n", slapd::NAME);
    fs::write(&hosts, &text).expect("it is writable");
    gateway.start();
    let ann = login_of(&lab, &local, "ann@uni.example", "right");
    Client::connect(&lab, 1, &ann).interrupt();
    let gateway_pid = gateway.process().id();
    for file in ["hosts", "resolv.conf", "nsswitch.conf"] {
        let path = hosts.with_file_name(file);
        let first = eventually("there is an idp process", TIMEOUT, || idp(gateway_pid));
        put_in_place(&path, &fs::read_to_string(&path).expect("it is there"));
        eventually(&format!("there is one that reads the new {file}"), TIMEOUT, || {
            idp(gateway_pid).filter(|pid| *pid != first)
        });
        Client::connect(&lab, 1, &ann).interrupt();
    }
}

#[test]
fn an_unreachable_directory_is_named_and_local_users_log_in() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let slapd = Slapd::start(ADDRESS, |program| beside(&lab, program), &person("ann", "right"));
    let Some(slapd) = slapd else { return };
    configure(&gateway, &slapd, slapd.password_file());
    gateway.start();
    // It is there and gives no answer.
    kill_process(Pid::from_raw(slapd.pid() as i32).expect("a number of a process"), Signal::STOP)
        .expect("it is there");
    let ann = login_of(&lab, &local, "ann@uni.example", "right");
    let waiting = Process::start(&lab, "ann", client::command(&lab, 1, &ann, &[]));
    eventually("the client says why", TIMEOUT, || {
        waiting.output().contains("the directory of your university can't be reached").then_some(())
    });
    let client = Client::connect(&lab, 2, &local);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    assert!(
        gateway.status()["counters"]["logins"]["source_unavailable"].as_u64().is_some_and(|count| count > 0)
    );
    assert_eq!(gateway.sessions().len(), 1);
    // The client tries again by itself.
    kill_process(Pid::from_raw(slapd.pid() as i32).expect("a number of a process"), Signal::CONT)
        .expect("it is there");
    eventually("ann is in", Duration::from_secs(90), || (gateway.sessions().len() == 2).then_some(()));
}

#[test]
fn directory_logins_work_after_an_upgrade() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.install();
    let local = gateway.add_user("local");
    let slapd = Slapd::start(ADDRESS, |program| beside(&lab, program), &person("ann", "right"));
    let Some(slapd) = slapd else { return };
    configure(&gateway, &slapd, slapd.password_file());
    gateway.start();
    let ann = login_of(&lab, &local, "ann@uni.example", "right");
    let client = Client::connect(&lab, 1, &ann);
    let gateway_pid = gateway.process().id();
    let first = eventually("there is an idp process", TIMEOUT, || idp(gateway_pid));
    must(gateway.upgrade());
    eventually("there is another", TIMEOUT, || idp(gateway_pid).filter(|pid| *pid != first));
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let second = Client::connect(&lab, 2, &ann);
    ping_until(second.namespace(), CAMPUS_V4.into(), TIMEOUT);
}

#[test]
fn the_idp_process_starts_again_from_the_version_that_runs() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let program = gateway.install();
    let local = gateway.add_user("local");
    let slapd = Slapd::start(ADDRESS, |program| beside(&lab, program), &person("ann", "right"));
    let Some(slapd) = slapd else { return };
    configure(&gateway, &slapd, slapd.password_file());
    gateway.start();
    let gateway_pid = gateway.process().id();
    let first = eventually("there is an idp process", TIMEOUT, || idp(gateway_pid));
    must(gateway.upgrade());
    let second = eventually("there is another", TIMEOUT, || idp(gateway_pid).filter(|pid| *pid != first));
    // A version that can't take over is installed, and stays there.
    put(&program, "#!/bin/sh\nexit 3\n", 0o755);
    let refused = gateway.upgrade();
    assert!(!refused.status.success() && process::text(&refused).contains("continues unchanged"));
    kill_process(Pid::from_raw(second as i32).expect("a number of a process"), Signal::KILL)
        .expect("it is there");
    eventually("there is a third", TIMEOUT, || idp(gateway_pid).filter(|pid| *pid != second));
    let ann = login_of(&lab, &local, "ann@uni.example", "right");
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let third = idp(gateway_pid).expect("it has looked ann up");
    let name = fs::read_to_string(format!("/proc/{third}/comm")).expect("it is there");
    assert_eq!(name.trim_end(), "vpnd");
}

#[test]
fn a_radius_user_logs_in_and_forged_replies_are_ignored() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.install();
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start(ADDRESS, |program| beside(&lab, program)) else { return };
    add_source(&gateway, &radius.source(ADDRESS, ""));
    gateway.start();
    let ann = login_of(&lab, &local, "ann@guests.example", "right");
    // It tries again by itself as long as the server does not listen yet.
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let session = gateway.sessions().remove(0);
    assert_eq!(session["user"], "ann@guests.example", "{session}");
    let users = process::text(&must(process::run(gateway.user(&["list"]))));
    let line = users.lines().find(|line| line.contains("ann@guests.example")).unwrap_or_default();
    assert!(["guests", "staff", "vpn"].iter().all(|word| line.contains(word)), "{users}");

    let wrong = login_of(&lab, &local, "ann@guests.example", "wrong password");
    let (status, output) = Client::refused(&lab, 2, &wrong, &[]);
    assert!(status == 3 && output.contains("login was refused"), "{output}");

    // Without the server's secret its replies are those of a stranger, and the session goes on.
    let other = lab.path("other.secret");
    write_secret(&other, "another secret\n");
    edit_toml(&gateway.config(), |table| {
        let source = table["source"][0].as_table_mut().expect("it was configured");
        source.insert("secret_file".to_owned(), other.display().to_string().into());
    });
    must(gateway.upgrade());
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let waiting = Process::start(&lab, "ann", client::command(&lab, 2, &ann, &[]));
    eventually("the client says why", TIMEOUT, || {
        waiting.output().contains("the directory of your university can't be reached").then_some(())
    });
    assert_eq!(gateway.sessions().len(), 1);
}

#[test]
fn a_radius_user_logs_in_over_tls_and_is_accounted_for() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let Some(radius) = FreeRadius::start_with_tls(ADDRESS, |program| beside(&lab, program)) else { return };
    let at = |name: &str| radius.path().join(name);
    let server = format!("radsec://{ADDRESS}:{}", radius.radsec_port);
    add_source(
        &gateway,
        &format!(
            "name = \"guests\"\nkind = \"radius\"\nrealm = \"guests.example\"\nservers = [{server:?}]\n\
             accounting_servers = [{server:?}]\nca = {:?}\ncertificate = {:?}\nkey = {:?}\n",
            at("ca.pem"),
            at("client.pem"),
            at("client-key.pem")
        ),
    );
    gateway.start();
    let ann = login_of(&lab, &local, "ann@guests.example", "right");
    // It tries again by itself as long as the server does not listen yet.
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let has = |kind: &str| {
        let is_one = |(name, value): &(String, String)| name == "Acct-Status-Type" && value == kind;
        radius.records().iter().any(|record| record.iter().any(is_one))
    };
    eventually("the session is accounted for", Duration::from_secs(90), || has("Start").then_some(()));
    client.interrupt();
    eventually("so is its end", Duration::from_secs(90), || has("Stop").then_some(()));
}

#[test]
fn a_session_ends_with_the_account_in_the_directory_and_groups_change_meanwhile() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let people = [person("ann", "right"), person("bob", "right"), group("staff", &["ann", "bob"])].concat();
    let command = |program: &str| beside(&lab, program);
    let Some(slapd) = Slapd::start(ADDRESS, command, &people) else { return };
    configure(&gateway, &slapd, slapd.password_file());
    edit_toml(&gateway.config(), |table| {
        let source = table["source"][0].as_table_mut().expect("it was configured");
        source.insert("recheck_s".to_owned(), 1.into());
        source.insert("recheck_grace_s".to_owned(), 8.into());
        source.insert("group_base".to_owned(), "ou=groups,dc=uni,dc=example".into());
    });
    gateway.start();
    let logins = ["ann", "bob"].map(|name| login_of(&lab, &local, &format!("{name}@uni.example"), "right"));
    let [ann, bob] = [1, 2].map(|number| Client::connect(&lab, number, &logins[number - 1]));

    slapd.modify(&command, ADDRESS, &group("vpn", &["ann"]).replacen('\n', "\nchangetype: add\n", 1));
    eventually("ann is in another group", TIMEOUT, || {
        let users = process::text(&process::run(gateway.user(&["list"])));
        users.lines().any(|line| line.contains("ann@uni.example") && line.contains("vpn")).then_some(())
    });
    assert_eq!(gateway.sessions().len(), 2, "sessions go on");

    slapd.modify(&command, ADDRESS, "dn: uid=ann,ou=people,dc=uni,dc=example\nchangetype: delete\n");
    let mut ann = ann.into_process();
    ann.wait(TIMEOUT);
    assert!(ann.output().contains("gone or disabled in its directory"), "{}", ann.output());
    assert_eq!(gateway.sessions().len(), 1, "bob's goes on");

    // No server answers: the session goes on for a while, and ends then.
    let pid = Pid::from_raw(slapd.pid() as i32).expect("a number of a process");
    let since = std::time::Instant::now();
    kill_process(pid, Signal::STOP).expect("it is there");
    let mut bob = bob.into_process();
    bob.wait(TIMEOUT);
    kill_process(pid, Signal::CONT).expect("it is there");
    assert!(bob.output().contains("could not be asked for too long"), "{}", bob.output());
    assert!(since.elapsed() >= Duration::from_secs(7), "it went on for {:?}", since.elapsed());
}

#[test]
fn a_recheck_that_finds_no_profile_ends_the_session_with_that_reason() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let people = [person("ann", "right"), person("bob", "right"), group("staff", &["ann", "bob"])].concat();
    let command = |program: &str| beside(&lab, program);
    let Some(slapd) = Slapd::start(ADDRESS, command, &people) else { return };
    configure(&gateway, &slapd, slapd.password_file());
    edit_toml(&gateway.config(), |table| {
        let source = table["source"][0].as_table_mut().expect("it was configured");
        source.insert("recheck_s".to_owned(), 1.into());
    });
    access_profiles::configure(
        &gateway,
        "[[profile]]\nname = \"staff\"\ngroups = [\"staff\"]\nroutes = [\"10.200.0.0/24\"]\n",
    );
    gateway.start();
    let logins = ["ann", "bob"].map(|name| login_of(&lab, &local, &format!("{name}@uni.example"), "right"));
    let [ann, bob] = [1, 2].map(|number| Client::connect(&lab, number, &logins[number - 1]));
    for client in [&ann, &bob] {
        ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    }

    let left = "dn: cn=staff,ou=groups,dc=uni,dc=example\nchangetype: modify\ndelete: member\n\
                member: uid=ann,ou=people,dc=uni,dc=example\n-\n";
    slapd.modify(&command, ADDRESS, left);
    let mut ann = ann.into_process();
    ann.wait(TIMEOUT);
    assert!(ann.output().contains("not admitted to this gateway"), "{}", ann.output());
    let counters = gateway.status()["counters"].clone();
    assert_eq!(counters["ends"]["no-profile"], 1, "{counters}");
    let log = gateway.process().output();
    assert!(log.contains("reason=\"no-profile\""), "{log}");
    let sessions = gateway.sessions();
    assert!(sessions.len() == 1 && sessions[0]["user"] == "bob@uni.example", "{sessions:?}");
    ping_until(bob.namespace(), CAMPUS_V4.into(), TIMEOUT);

    // A login by her password is refused like one by a wrong password, after as long a time.
    let since = Instant::now();
    let (status, output) = Client::refused(&lab, 1, &logins[0], &[]);
    assert!(status == 3 && output.contains("login was refused"), "{status}: {output}");
    assert!(!output.contains("not admitted") && since.elapsed() >= Duration::from_secs(1), "{output}");
    assert_eq!(gateway.status()["counters"]["logins"]["no_profile"], counters["logins"]["no_profile"]);
}
