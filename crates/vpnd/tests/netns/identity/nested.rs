//! Behaviour: a user in a group that is in another gets the access profile of the outer one,
//! and loses it at the next re-check once the outer group no longer contains the inner one. The
//! commands that ask a directory show such groups.

use super::recheck::set_source;
use super::{ADDRESS, TIMEOUT, beside, configure, login_of};
use crate::access_profiles;
use crate::client::Client;
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, Lab};
use crate::process;
use crate::slapd::{Slapd, group, nested_group, person};
use crate::traffic::ping_until;

#[test]
fn an_outer_group_gives_its_profile_and_takes_it_away_again() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let local = gateway.add_user("local");
    let command = |program: &str| beside(&lab, program);
    let entries = [person("ann", "right"), person("bob", "right"), group("staff", &["ann"])].concat();
    let Some(slapd) = Slapd::start(ADDRESS, command, &entries) else { return };
    let faculty = [nested_group("institute", "staff"), nested_group("faculty", "institute")].concat();
    slapd.modify(&command, ADDRESS, &faculty);
    configure(&gateway, &slapd, slapd.password_file());
    set_source(&gateway, "recheck_s", 1);
    set_source(&gateway, "group_base", "ou=groups,dc=uni,dc=example");
    set_source(&gateway, "nested_groups", true);
    access_profiles::configure(
        &gateway,
        "[[profile]]\nname = \"faculty\"\ngroups = [\"faculty\"]\nroutes = [\"10.200.0.0/24\"]\n",
    );
    let run = |arguments: &[&str]| {
        let mut command = gateway.vpnd(arguments);
        command.arg("--config").arg(gateway.config());
        process::text(&process::run(command))
    };
    let shown = run(&["source", "test", "staff", "--user", "ann"]);
    let groups = "faculty (through another); institute (through another); staff";
    assert!(shown.contains(groups) && shown.contains("profile     faculty"), "{shown}");
    let reach = ["policy", "test", "--user", "ann@uni.example", "--to", "10.200.0.1"];
    let shown = run(&reach);
    assert!(shown.contains("faculty") && !shown.contains("no access profile"), "{shown}");

    gateway.start();
    let client = Client::connect(&lab, 1, &login_of(&lab, &local, "ann@uni.example", "right"));
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let elsewhere = "dn: cn=faculty,ou=groups,dc=uni,dc=example\nchangetype: modify\nreplace: member\n\
                     member: uid=bob,ou=people,dc=uni,dc=example\n-\n";
    slapd.modify(&command, ADDRESS, elsewhere);
    let mut client = client.into_process();
    client.wait(TIMEOUT);
    assert!(client.output().contains("not admitted to this gateway"), "{}", client.output());
    let shown = process::text(&process::run(gateway.user(&["list"])));
    let line = shown.lines().find(|line| line.contains("ann@uni.example")).unwrap_or_default();
    assert!(line.contains("institute") && !line.contains("faculty"), "{shown}");
}
