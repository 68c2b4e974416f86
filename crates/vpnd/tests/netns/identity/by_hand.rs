//! Behaviour: `vpnd source test` says at which step asking a directory ends, `vpnd doctor` has that
//! as a problem, and `vpnd policy test` knows users who have not been here.

use std::process::Output;

use super::recheck::set_source;
use super::{ADDRESS, beside, configure};
use crate::access_profiles;
use crate::gateway::{Gateway, write_secret};
use crate::lab::Lab;
use crate::process;
use crate::slapd::{Slapd, group, person};

const BOB_DISABLED: &str = "dn: uid=bob,ou=people,dc=uni,dc=example\nchangetype: modify\nadd: objectClass\n\
    objectClass: extensibleObject\n-\nadd: nsAccountLock\nnsAccountLock: TRUE\n";

#[test]
fn each_step_to_a_directory_is_printed_up_to_the_failure() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    gateway.add_user("local");
    let command = |program: &str| beside(&lab, program);
    let people = ["ann", "bob", "eve"].map(|name| person(name, "right")).concat();
    let Some(slapd) = Slapd::start(ADDRESS, command, &format!("{people}{}", group("Staff", &["ann", "bob"])))
    else {
        return;
    };
    slapd.modify(&command, ADDRESS, BOB_DISABLED);
    configure(&gateway, &slapd, slapd.password_file());
    access_profiles::configure(
        &gateway,
        "[[profile]]\nname = \"staff\"\ngroups = [\"staff\"]\nroutes = [\"10.200.0.0/24\"]\n",
    );
    let run = |arguments: &[&str]| {
        let mut command = gateway.vpnd(arguments);
        command.arg("--config").arg(gateway.config());
        process::run(command)
    };
    let asked = |user: &[&str]| run(&[&["source", "test", "staff"], user].concat());
    let ends = |output: Output, step: &str, words: &str| {
        let text = process::text(&output);
        let line = text.lines().find(|line| line.trim_start().starts_with("ENDS")).unwrap_or_default();
        assert!(output.status.code() == Some(1) && line.contains(step) && line.contains(words), "{text}");
    };

    let good = asked(&["--user", "UNI.EXAMPLE\\Ann"]);
    let text = process::text(&good);
    for line in
        ["bind        as cn=admin", "groups      Staff", "profile     staff", "ann@uni.example gets in"]
    {
        assert!(good.status.success() && text.contains(line), "{line}: {text}");
    }
    assert!(asked(&[]).status.success());
    ends(asked(&["--user", "nobody"]), "entry", "no entry");
    ends(asked(&["--user", "bob"]), "state", "disabled");
    ends(asked(&["--user", "eve"]), "profile", "no [[profile]]");
    let other = asked(&["--user", "ann@elsewhere.example"]);
    assert!(process::text(&other).contains("its rule is another") && !other.status.success());

    // No user has logged in yet.
    let reaches = |user: &str, to: &str| run(&["policy", "test", "--user", user, "--to", to]);
    let text = process::text(&reaches("ann@uni.example", "10.200.0.1"));
    assert!(text.contains("staff"), "{text}");
    assert!(process::text(&reaches("eve@uni.example", "10.200.0.1")).contains("no access profile"));
    let unknown = process::text(&reaches("nobody@uni.example", "10.200.0.1"));
    assert!(unknown.contains("ends at 'entry'"), "{unknown}");

    let problem = |words: &str| {
        let text = process::text(&run(&["doctor"]));
        let line = text.lines().find(|line| line.contains("the source staff")).unwrap_or_default();
        assert!(line.starts_with("PROBLEM") != words.is_empty() && line.contains(words), "{words}: {text}");
    };
    problem("");
    set_source(&gateway, "base", "ou=peple,dc=uni,dc=example");
    ends(asked(&[]), "base", "is not there");
    problem("base");
    let secret = lab.path("wrong.secret");
    write_secret(&secret, "another password\n");
    set_source(&gateway, "bind_password_file", secret.display().to_string());
    ends(asked(&[]), "bind", "is refused (49)");
    problem("bind");
    set_source(&gateway, "ca", gateway.file("ca.pem").display().to_string());
    ends(asked(&[]), "tls", "no authority");
    set_source(&gateway, "servers", vec![toml::Value::from(format!("ldaps://{ADDRESS}:1"))]);
    ends(asked(&[]), "connection", "");
    set_source(&gateway, "ca", "gone.pem");
    set_source(&gateway, "servers", vec![toml::Value::from(format!("ldaps://{ADDRESS}:{}", slapd.tls))]);
    ends(asked(&[]), "files", "gone.pem");
}
