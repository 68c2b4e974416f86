//! `vpnd user …` on a real directory made by `vpnd init`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::Parser as _;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::*;
use crate::admin_store::InThisProcess;
use crate::cli::{Cli, Command};
use vpnd_config::profile::Trust;
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_store::audit::query::Record;
use vpnd_store::audit::testing::all;
use vpnd_store::audit::{AuditFile, FILE_NAME};
use vpnd_store::password::Password;
use vpnd_store::sqlite::Sqlite;
use vpnd_store::{Leases as _, Revocations as _, Users as _};

const NOW_S: u64 = 1_800_000_000;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("v");
        let line = ["vpnd", "init", "--name", "vpn.example.org", "--name", "192.0.2.1", "--dir"];
        let cli = Cli::parse_from(line.into_iter().chain([config.to_str().unwrap()]));
        let Command::Init(args) = cli.command else { panic!("not init") };
        crate::commands::init::init(&args, &InThisProcess, UNIX_EPOCH + Duration::from_secs(NOW_S)).unwrap();
        fs::write(dir.path().join("password"), "correct horse\n").unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn store(&self) -> Sqlite {
        Sqlite::open(&self.path("v/state/vpnd.db")).unwrap()
    }

    /// The records of the audit file.
    fn recorded(&self) -> Vec<Record> {
        let file = AuditFile::open(&self.path("v/state").join(FILE_NAME)).unwrap();
        all(&file)
    }

    /// Runs `vpnd user` with the words of `line`; `@name` stands for that file in the directory.
    fn user(&self, line: &str) -> Result<String, UserError> {
        let words = line.split(' ').map(|word| match word.strip_prefix('@') {
            Some(name) => self.path(name).to_str().unwrap().to_owned(),
            None => word.to_owned(),
        });
        let config = ["--config".to_owned(), self.path("v/server.toml").to_str().unwrap().to_owned()];
        let program = ["vpnd".to_owned(), "user".to_owned()];
        let cli = Cli::parse_from(program.into_iter().chain(words).chain(config));
        let Command::User(command) = cli.command else { panic!("not user") };
        let mut out = Vec::new();
        run(&command, &InThisProcess, NOW_S, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }
}

#[test]
fn a_user_with_everything_gets_a_profile_that_works() {
    let bench = Bench::new();
    let line = "add ann --password-file @password --totp --client-cert --group staff --profile-out @ann.toml";
    let out = bench.user(line).unwrap();
    assert!(out.contains("otpauth://totp/vpn.example.org:ann?") && out.contains("vpnd connect"), "{out}");
    assert!(!out.contains("correct horse"), "a given password is not repeated");
    let user = bench.store().user("ann").unwrap().unwrap();
    assert_eq!(
        Hasher::default().verify(&Password::new("correct horse".to_owned()), &user.password.unwrap()),
        Ok(true)
    );
    assert_eq!((user.groups.as_slice(), user.certificates.len()), (&["staff".to_owned()][..], 1));
    assert_eq!(fs::metadata(bench.path("ann.toml")).unwrap().permissions().mode() & 0o777, 0o600);
    let profile = Profile::load(&bench.path("ann.toml")).unwrap();
    let servers: Vec<_> = profile.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["vpn.example.org:4433", "192.0.2.1:4433"]);
    assert_eq!(
        (profile.server_name.as_str(), profile.user.as_deref().unwrap_or_default(), profile.totp),
        ("vpn.example.org", "ann", true)
    );
    let Trust::Pinned { ca_pem } = &profile.trust else { panic!("not pinned") };
    assert_eq!(ca_pem.trim(), fs::read_to_string(bench.path("v/ca.pem")).unwrap().trim());
    let der = CertificateDer::from_pem_slice(profile.identity.unwrap().certificate_pem.as_bytes()).unwrap();
    assert_eq!(
        user.certificates[0],
        <[u8; 32]>::from(Sha256::digest(&der)),
        "the store knows it by its hash"
    );
}

#[test]
fn fixed_addresses_are_checked_shown_and_exported() {
    let bench = Bench::new();
    for name in ["ann", "bob"] {
        bench.user(&format!("add {name} --password-file @password")).unwrap();
    }
    let config = ServerConfig::load(&bench.path("v/server.toml")).unwrap();
    let v6 = config.tunnel.pool_v6.unwrap().network().to_string() + "7";
    let out = bench.user(&format!("modify ann --address 10.86.0.7 --address {v6}")).unwrap();
    assert!(out.contains("vpnd kick ann"), "{out}");
    for (line, reason) in [
        (
            "modify bob --address 10.86.0.7",
            "10.86.0.7 can't be an address of 'bob': it is one of 'ann' already",
        ),
        ("modify bob --address 10.99.0.7", "it is not one that clients get out of 10.86.0.0/16 and fd"),
        ("modify bob --address 10.86.0.1", "it is not one that clients get"),
        ("modify bob --address 10.86.255.255", "it is not one that clients get"),
        ("modify bob --address 10.86.0.8 --address 10.86.0.8", "it is named twice"),
        ("modify bob --address 10.86.0.8 --device 01", "the beginning of 0 devices"),
    ] {
        let error = bench.user(line).unwrap_err().to_string();
        assert!(error.contains(reason), "{line}: {error}");
    }
    assert!(bench.user("list").unwrap().contains(&format!("10.86.0.7 {v6}")));
    let listed: serde_json::Value = serde_json::from_str(&bench.user("list --json").unwrap()).unwrap();
    assert_eq!(listed[0]["addresses"], serde_json::json!(["10.86.0.7", v6]));
    assert_eq!(listed[1]["addresses"], serde_json::json!([]));
    let exported = bench.user("export").unwrap();
    assert!(
        exported.lines().any(|line| line.starts_with("ann,") && line.ends_with(&format!("10.86.0.7 {v6}")))
    );
    fs::write(bench.path("users"), "name,password,addresses\ncarl,correct horse,10.86.0.7\n").unwrap();
    assert!(bench.user("import @users").unwrap_err().to_string().contains("one of 'ann' already"));
    bench.user("modify ann --no-address").unwrap();
    bench.user("import @users").unwrap();
    assert!(bench.recorded().iter().any(|record| format!("{record:?}").contains("addresses: any")));
    fs::write(bench.path("more"), "name,password,addresses\ndora,correct horse,10.87.0.7\n").unwrap();
    let error = bench.user("import @more").unwrap_err().to_string();
    assert!(error.contains("line 2: 10.87.0.7 can't be an address of 'dora'"), "{error}");
}

#[test]
fn an_authority_that_does_not_vouch_is_not_pinned() {
    let bench = Bench::new();
    let stranger = Authority::new("vpn.example.org", SystemTime::now()).unwrap();
    fs::write(bench.path("v/ca.pem"), stranger.certificate_pem()).unwrap();
    bench.user("add ann --password-file @password --profile-out @ann.toml").unwrap();
    // The profile once more, and for all users.
    let printed = bench.user("profile ANN --totp").unwrap();
    let ann = Profile::parse(&printed, "ann.toml").unwrap();
    assert_eq!((ann.user.as_deref(), ann.totp), (Some("ann"), true));
    bench.user("profile --profile-out @all.toml").unwrap();
    assert_eq!(Profile::load(&bench.path("all.toml")).unwrap().user, None);
    assert_eq!(
        fs::metadata(bench.path("all.toml")).unwrap().permissions().mode() & 0o777,
        0o644,
        "no secret"
    );
    let again = bench.user("profile --profile-out @all.toml").unwrap_err().to_string();
    assert!(again.contains("exists already"), "{again}");
    assert_eq!(Profile::load(&bench.path("ann.toml")).unwrap().trust, Trust::System);
}

#[test]
fn what_takes_rights_away_is_a_revocation() {
    let bench = Bench::new();
    bench.user("add ann --password-file @password").unwrap();
    for (line, cause) in [
        ("disable ann", Some(RevocationCause::Disabled)),
        ("enable ann", None),
        ("passwd ann --password-file @password", Some(RevocationCause::Password)),
        ("remove ann", Some(RevocationCause::Removed)),
    ] {
        let before = bench.store().last_revocation().unwrap();
        bench.user(line).unwrap();
        let causes: Vec<_> =
            bench.store().revocations_since(before).unwrap().iter().map(|r| r.cause).collect();
        assert_eq!(causes, cause.into_iter().collect::<Vec<_>>(), "{line}");
    }
    assert_eq!(bench.store().user("ann").unwrap(), None);
    let events: Vec<_> = bench.recorded().into_iter().map(|record| record.kind).collect();
    assert_eq!(events, ["user-added", "user-disabled", "user-enabled", "user-password", "user-removed"]);
    assert!(bench.recorded().iter().all(|record| record.by == Some(vpnd_sys::account::invoker())));
}

#[test]
fn the_list_shows_state_but_no_secret() {
    let bench = Bench::new();
    bench.user("add ann --password-file @password --totp").unwrap();
    bench.user("add bob --password-file @password --group staff").unwrap();
    bench.user("disable bob").unwrap();
    let table = bench.user("list").unwrap();
    let row = |name: &str| table.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(row("ann").contains("enabled") && row("ann").contains("code"), "{table}");
    assert!(row("bob").contains("disabled") && row("bob").contains("staff"), "{table}");
    let json = bench.user("list --json").unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(parsed[1]["name"], "bob");
    assert_eq!(parsed[0]["totp"], true);
    for text in [table, json] {
        assert!(!text.contains("argon2") && !text.contains("otpauth"), "{text}");
    }
}

#[test]
fn the_user_list_contains_no_control_sequences() {
    let bench = Bench::new();
    // An attacker who has the store writes it so, past the commands.
    let user = NewUser {
        groups: vec!["staff\u{9b}m".to_owned()],
        ..NewUser::new("ann\x1b[2J", vpnd_store::PasswordHash::new("$argon2id$".to_owned()))
    };
    bench.store().add_user(&user, NOW_S).unwrap();
    for line in ["list", "list --json"] {
        let out = bench.user(line).unwrap();
        assert!(out.contains("ann?[2J") && out.contains("staff?m"), "{out:?}");
        assert!(!out.chars().any(|c| c.is_control() && c != '\n'), "{out:?}");
    }
}

#[test]
fn a_list_longer_than_an_answer_is_whole() {
    let bench = Bench::new();
    let store = bench.store();
    let names: Vec<String> = (0..600).map(|number| format!("user{number:04}")).collect();
    for name in &names {
        let password = vpnd_store::PasswordHash::new("$argon2id$".to_owned());
        let user = NewUser::new(name, password);
        store.add_user(&user, NOW_S).unwrap();
    }
    let json: serde_json::Value = serde_json::from_str(&bench.user("list --json").unwrap()).unwrap();
    let listed: Vec<&str> =
        json.as_array().unwrap().iter().map(|user| user["name"].as_str().unwrap()).collect();
    assert_eq!(listed, names);
}

#[test]
fn a_refused_command_changes_nothing() {
    let bench = Bench::new();
    bench.user("add ann --password-file @password").unwrap();
    fs::write(bench.path("short"), "1234567").unwrap();
    fs::write(bench.path("taken.toml"), "").unwrap();
    for (line, expected) in [
        ("add ann --password-file @password", "there is a user 'ann' already"),
        ("add b/c --password-file @password", "can't be a name"),
        ("add bob --password-file @password --group a:b", "can't be a name"),
        ("add bob --password-file @short", "fewer than 8 characters"),
        ("add bob --password-file @missing", "can't read the password"),
        ("add bob --password-file @password --profile-out @taken.toml", "exists already"),
        ("add bob --password-file @password --profile-out @no/such/dir.toml", "the user was not added"),
        ("disable bob", "there is no user 'bob'"),
        ("passwd bob --password-file @password", "there is no user 'bob'"),
    ] {
        let error = bench.user(line).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
        let names: Vec<_> = bench.store().users().unwrap().into_iter().map(|user| user.name).collect();
        assert_eq!(names, ["ann"], "{line}");
    }
}

#[test]
fn client_certificates_need_an_authority() {
    let bench = Bench::new();
    let config = bench.path("v/server.toml");
    let text = fs::read_to_string(&config).unwrap().replace("client_ca_key = ", "# ");
    fs::write(&config, text).unwrap();
    let error = bench.user("add ann --password-file @password --client-cert").unwrap_err();
    assert!(matches!(error, UserError::NoAuthority { .. }), "{error}");
    assert!(bench.store().users().unwrap().is_empty());
}

#[test]
fn a_machine_has_a_certificate_a_profile_for_machines_and_no_password() {
    let bench = Bench::new();
    let add = "add kiosk --machine --group machines --profile-out @kiosk.toml";
    assert!(matches!(bench.user(add), Err(UserError::NoMachines { .. })));
    assert!(bench.store().users().unwrap().is_empty() && !bench.path("kiosk.toml").exists());
    let config = bench.path("v/server.toml");
    let text = fs::read_to_string(&config).unwrap();
    let profile = "[[profile]]\nname = \"machines\"\ngroups = [\"machines\"]\nmachines = true\n";
    fs::write(&config, format!("{text}\n{profile}")).unwrap();
    let out = bench.user(add).unwrap();
    assert!(!out.contains("password"), "{out}");
    let kiosk = bench.store().user("kiosk").unwrap().unwrap();
    assert!(kiosk.is_machine() && kiosk.certificates.len() == 1);
    let profile = Profile::load(&bench.path("kiosk.toml")).unwrap();
    assert_eq!((profile.user.as_deref(), profile.machine), (Some("kiosk"), true));
    bench.user("certificate kiosk --profile-out @next.toml").unwrap();
    assert!(Profile::load(&bench.path("next.toml")).unwrap().machine);
    assert!(bench.user("list").unwrap().contains("certificate alone"));
    assert!(!bench.user("export").unwrap().contains("kiosk"));
    for words in [&["--totp"][..], &["--invite"], &["--password-file", "x"]] {
        let line = [&["vpnd", "user", "add", "kiosk2", "--machine"], words].concat();
        assert!(Cli::try_parse_from(line).is_err(), "{words:?}");
    }
}

#[test]
fn a_user_whom_no_access_profile_is_for_is_reported() {
    let bench = Bench::new();
    let is_reported = |line: &str| bench.user(line).unwrap().contains("vpnd user modify ann --add-group");
    assert!(!is_reported("add ann --password-file @password"), "without profiles one is for all users");
    bench.user("remove ann").unwrap();
    let config = bench.path("v/server.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\n[[profile]]\nname = \"staff\"\ngroups = [\"staff\"]\n")).unwrap();
    assert!(is_reported("add ann --password-file @password"));
    assert!(!is_reported("modify ann --note thesis"));
    assert!(!is_reported("modify ann --add-group staff"));
    assert!(is_reported("modify ann --remove-group staff --add-group lab"));
    bench.user("remove ann").unwrap();
    assert!(!is_reported("add ann --password-file @password --group staff"));
    // An import reports those whom it adds or gives other groups.
    let is_reported = |csv: &str, arguments: &str| {
        fs::write(bench.path("u.csv"), csv).unwrap();
        is_reported(&format!("import @u.csv {arguments}"))
    };
    assert!(is_reported("name,groups\nann,lab\n", "--update --dry-run"));
    assert!(is_reported("name,groups\nann,lab\n", "--update"));
    assert!(!is_reported("name,note\nann,thesis\n", "--update"));
    assert!(!is_reported("name,groups\nann,staff\n", "--update"));
    let rows: String = (0..60).map(|number| format!("u{number},{BCRYPT}\n")).collect();
    fs::write(bench.path("u.csv"), format!("name,password_hash\n{rows}")).unwrap();
    let out = bench.user("import @u.csv").unwrap();
    assert!(out.starts_with("60 users added, 0 updated\nno access profile is for 'u0': "), "{out}");
    assert!(out.ends_with("\nand none is for 10 more users\n"), "{out}");
    assert_eq!(out.lines().count(), 52, "{out}");
}

fn revoke(bench: &Bench, arguments: &[&str]) -> Result<String, UserError> {
    let config = bench.path("v/server.toml");
    let line = [&["vpnd", "revoke"], arguments, &["--config", config.to_str().unwrap()]].concat();
    let Command::Revoke(args) = Cli::try_parse_from(line).unwrap().command else { panic!("no revocation") };
    let mut out = Vec::new();
    super::revoke::revoke(&args, &InThisProcess, NOW_S, &mut out).map(|()| String::from_utf8(out).unwrap())
}

#[test]
fn certificates_are_revoked_by_user_by_file_and_by_fingerprint() {
    let bench = Bench::new();
    bench.user("add ann --password-file @password --client-cert").unwrap();
    bench.user("add bob --password-file @password").unwrap();
    let ann = || bench.store().user("ann").unwrap().unwrap();
    let second = bench.user("certificate ann").unwrap();
    fs::write(bench.path("second.pem"), &second).unwrap();
    assert_eq!(ann().certificates.len(), 2);

    assert!(revoke(&bench, &["bob"]).is_err(), "he has none");
    let file = bench.path("second.pem");
    assert!(revoke(&bench, &["bob", "--certificate", file.to_str().unwrap()]).is_err(), "it is not his");
    revoke(&bench, &["--certificate", file.to_str().unwrap()]).unwrap();
    let revoked = ann().revoked_certificates;
    assert_eq!(revoked.len(), 1);
    let listed = revoke(&bench, &["--list"]).unwrap();
    let fingerprint = super::revoke::Fingerprint(revoked[0]).to_string();
    let json: serde_json::Value = serde_json::from_str(&bench.user("list --json").unwrap()).unwrap();
    let certificates = json[0]["certificates"].as_array().unwrap();
    let is_it = |one: &&serde_json::Value| one["fingerprint"] == fingerprint && one["revoked"] == true;
    assert_eq!((certificates.len(), certificates.iter().filter(is_it).count()), (2, 1), "{json}");
    assert!(listed.contains("ann") && listed.contains(&fingerprint), "{listed}");

    let third = bench.user("certificate ann").unwrap();
    let third: [u8; 32] = Sha256::digest(CertificateDer::from_pem_slice(third.as_bytes()).unwrap()).into();
    let with_colons: Vec<String> = third.iter().map(|byte| format!("{byte:02X}")).collect();
    revoke(&bench, &["--fingerprint", &with_colons.join(":")]).unwrap();
    assert!(ann().revoked_certificates.contains(&third) && ann().revoked_certificates.len() == 2);
    revoke(&bench, &["ann", "--reason", "stolen"]).unwrap();
    let recorded = bench.recorded();
    let last = recorded.iter().rfind(|record| record.kind == "certificate-revoked").unwrap();
    assert!(last.detail.as_ref().unwrap().ends_with(": stolen"), "{last:?}");
    assert_eq!(ann().revoked_certificates, ann().certificates);
    assert!(Cli::try_parse_from(["vpnd", "revoke"]).is_err(), "of whom?");
    assert!(Cli::try_parse_from(["vpnd", "revoke", "--fingerprint", "12"]).is_err());
}

#[test]
fn a_user_is_modified_in_what_is_named_and_nothing_else() {
    let bench = Bench::new();
    bench.user("add bob --password-file @password").unwrap();
    bench.user("add ann --password-file @password --group staff --group lab --note x").unwrap();
    let ann = || bench.store().user("ann").unwrap().unwrap();
    bench.user("modify ann --add-group admins --remove-group lab").unwrap();
    assert_eq!((ann().groups, ann().note.as_str()), (vec!["admins".to_owned(), "staff".to_owned()], "x"));
    bench.user("modify ann --group only").unwrap();
    assert_eq!(ann().groups, ["only"]);
    let out = bench.user("modify ann --totp").unwrap();
    assert!(out.contains("otpauth://totp/vpn.example.org:ann?") && ann().totp.is_some(), "{out}");
    bench.user("modify ann --no-totp --expires 2027-01-31").unwrap();
    assert_eq!((ann().totp, ann().expires_s), (None, Some(1_801_440_000)));
    bench.user("modify ann --sponsor bob").unwrap();
    assert_eq!(ann().sponsor.as_deref(), Some("bob"));
    assert!(matches!(bench.user("modify ann --expires never"), Err(UserError::EndlessGuest { .. })));
    bench.user("modify ann --no-sponsor --expires never").unwrap();
    assert_eq!((ann().sponsor, ann().expires_s, ann().groups), (None, None, vec!["only".to_owned()]));
    assert!(matches!(
        bench.user("modify ann --sponsor nobody --expires 2027-01-31"),
        Err(UserError::Store(StoreError::NoSuchUser { name })) if name == "nobody"
    ));
    assert!(matches!(bench.user("modify ann --add-group a,b"), Err(UserError::Name { .. })));
    let last = bench.recorded().pop().unwrap();
    assert_eq!(
        (last.kind.as_str(), last.detail.as_deref()),
        ("user-modified", Some("expires: never; sponsor: none"))
    );
}

#[test]
fn a_guest_has_a_sponsor_and_an_end() {
    let bench = Bench::new();
    bench.user("add bob --password-file @password").unwrap();
    let add = "add eve --password-file @password --sponsor";
    assert!(bench.user(&format!("{add} nobody --expires 2027-01-31")).is_err());
    assert!(matches!(bench.user(&format!("{add} bob --expires never")), Err(UserError::EndlessGuest { .. })));
    bench.user(&format!("{add} bob --expires 2027-01-01")).unwrap();
    let table = bench.user("list").unwrap();
    let row = table.lines().find(|line| line.contains("eve")).unwrap();
    assert!(row.contains("local") && row.contains("expired") && row.contains("2027-01-01"), "{table}");
    let json: serde_json::Value = serde_json::from_str(&bench.user("list --json").unwrap()).unwrap();
    assert_eq!((&json[1]["sponsor"], &json[1]["expires_s"]), (&"bob".into(), &1_798_848_000.into()));
}

#[test]
fn a_device_is_removed_by_the_beginning_of_its_name() {
    use vpnd_store::{Lease, LeaseOwner};
    let bench = Bench::new();
    bench.user("add ann --password-file @password").unwrap();
    let store = bench.store();
    let user = store.user("ann").unwrap().unwrap().id;
    for n in [0x10, 0x1f, 0x20] {
        let owner = LeaseOwner { user, device: vpnd_proto::session::DeviceId([n; 16]) };
        let session = vpnd_proto::session::SessionId([n; 16]);
        let lease = Lease { address: [10, 0, 0, n].into(), owner, session, until_s: 1 };
        assert!(store.claim(&lease, 0).unwrap());
    }
    let listed = bench.user("devices ann").unwrap();
    assert!(listed.contains(&"1f".repeat(16)) && listed.contains("10.0.0.32"), "{listed}");
    for wrong in ["1", "3", ""] {
        let refused = bench.user(&format!("devices ann --remove={wrong}"));
        assert!(matches!(refused, Err(UserError::NoSuchDevice { .. })), "{wrong:?}");
    }
    bench.user("devices ann --remove 1f").unwrap();
    let left: serde_json::Value = serde_json::from_str(&bench.user("devices ann --json").unwrap()).unwrap();
    assert_eq!(left.as_array().unwrap().len(), 2);
    assert!(bench.user("devices nobody").is_err());
}

const ARGON2: &str = "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const BCRYPT: &str = "$2b$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";

#[test]
fn an_import_adds_all_users_of_a_file() {
    let bench = Bench::new();
    let csv = format!(
        "name,groups,expires,sponsor,password,password_hash,enabled,note\n\
         ann,staff admins,,,correct horse,,,\"a, b\"\n\
         bob,,,,,{BCRYPT},false,\n\
         eve,,2027-01-31,ann,,\"{ARGON2}\",,\n"
    );
    fs::write(bench.path("u.csv"), csv).unwrap();
    let out = bench.user("import @u.csv --dry-run").unwrap();
    assert!(out.contains("3 users would be added, 0 updated"), "{out}");
    assert!(bench.store().users().unwrap().is_empty());
    assert_eq!(bench.user("import @u.csv").unwrap(), "3 users added, 0 updated\n");
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| bench.store().user(name).unwrap().unwrap());
    let hash = ann.password.unwrap();
    assert_eq!(Hasher::default().verify(&Password::new("correct horse".to_owned()), &hash), Ok(true));
    assert_eq!((ann.groups.join(" ").as_str(), ann.note.as_str()), ("admins staff", "a, b"));
    assert!(!bob.enabled && bob.password.unwrap().expose() == BCRYPT);
    assert_eq!(
        (eve.sponsor.as_deref(), eve.expires_s, eve.enabled),
        (Some("ann"), Some(1_801_440_000), true)
    );

    // An export goes in again, elsewhere and as an update that changes nothing.
    let before = bench.store().last_revocation().unwrap();
    for (format, file) in [("", "out.csv"), (" --json", "out.json")] {
        let exported = bench.user(&format!("export --with-hashes{format}")).unwrap();
        fs::write(bench.path(file), exported).unwrap();
        assert_eq!(bench.user(&format!("import @{file} --update")).unwrap(), "0 users added, 3 updated\n");
        let other = Bench::new();
        fs::copy(bench.path(file), other.path(file)).unwrap();
        assert_eq!(other.user(&format!("import @{file}")).unwrap(), "3 users added, 0 updated\n");
        let essence = |bench: &Bench| {
            let users = bench.store().users().unwrap().into_iter();
            users
                .map(|user| {
                    (
                        user.name,
                        user.password,
                        user.groups,
                        user.expires_s,
                        user.sponsor,
                        user.note,
                        user.enabled,
                    )
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(essence(&other), essence(&bench), "{file}");
    }
    assert_eq!(bench.store().last_revocation().unwrap(), before, "so no session ends");
    for line in ["export", "export --json"] {
        let shown = bench.user(line).unwrap();
        assert!(shown.contains("staff") && !shown.contains("$argon2") && !shown.contains("$2b$"), "{shown}");
    }
    assert_eq!(bench.recorded().iter().filter(|record| record.kind == "hashes-exported").count(), 2);
}

#[test]
fn an_import_reads_what_spreadsheets_save_and_leaves_passwords_as_they_are() {
    let bench = Bench::new();
    let password = "  zwei Leerzeichen, groß ";
    let csv = format!("name,note,password\nbea, a note ,\"{password}\"\n");
    let utf16: Vec<u8> = csv.replace(',', ";").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let german = format!("name;note;password\r\nbea; a note ;{password}\r\n");
    let json = format!("[{{\"name\": \"bea\", \"note\": \" a note \", \"password\": \"{password}\"}}]");
    let swapped = password.replace(',', ";");
    for (bytes, password) in [
        (csv.clone().into_bytes(), password),
        (["\u{feff}".as_bytes(), csv.as_bytes()].concat(), password),
        ([&b"\xff\xfe"[..], &utf16].concat(), swapped.as_str()),
        (german.chars().map(|c| c as u8).collect(), password),
        (["\u{feff}".as_bytes(), json.as_bytes()].concat(), password),
    ] {
        fs::write(bench.path("u"), bytes).unwrap();
        assert_eq!(bench.user("import @u").unwrap(), "1 users added, 0 updated\n");
        let bea = bench.store().user("bea").unwrap().unwrap();
        let hash = bea.password.unwrap();
        assert_eq!(
            Hasher::default().verify(&Password::new(password.to_owned()), &hash),
            Ok(true),
            "{password:?}"
        );
        assert_eq!(bea.note, "a note");
        bench.user("remove bea").unwrap();
    }
    // A file that can't be read gets one sentence, not one for each line.
    let rows = "bea;geheim123\n".repeat(100);
    for text in [
        format!("Nom;Mot de passe\n{rows}"),
        format!("name;secret\n{rows}"),
        format!("name;note\n\u{20ac}{rows}"),
    ] {
        let bytes: Vec<u8> = text.chars().map(|c| if c == '\u{20ac}' { 0x80 } else { c as u8 }).collect();
        fs::write(bench.path("u"), bytes).unwrap();
        let error = bench.user("import @u").unwrap_err().to_string();
        assert!(error.lines().filter(|line| !line.trim().is_empty()).count() <= 2, "{error}");
    }
    fs::set_permissions(bench.path("u"), fs::Permissions::from_mode(0o664)).unwrap();
    let error = bench.user("import @u").unwrap_err().to_string();
    assert!(error.contains("others can write it"), "{error}");
}

#[test]
fn an_import_with_mistakes_changes_nothing_and_names_each() {
    let bench = Bench::new();
    bench.user("add ann --password-file @password").unwrap();
    fs::write(
        bench.path("u.csv"),
        format!(
            "name,groups,expires,sponsor,password,password_hash,enabled,totp_secret\n\
             good,,,,correct horse,,,\n\
             ann,,,,correct horse,,,\n\
             Good,,,,correct horse,,,\n\
             a b,,,,correct horse,,,\n\
             u1,,,,,,,\n\
             u2,,,,short,,,\n\
             u3,,,,correct horse,{BCRYPT},,\n\
             u4,,,,,$2b$31$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW,,\n\
             u5,,31.1.2027,,correct horse,,,\n\
             u6,,2027-01-31,nobody,correct horse,,,\n\
             u7,,,good,correct horse,,,\n\
             u8,a;b,,,correct horse,,yes,c2hvcnQ=\n\
             u9,too,few\n"
        ),
    )
    .unwrap();
    let error = bench.user("import @u.csv").unwrap_err().to_string();
    for (line, what) in [
        (3, "already (--update"),
        (4, "Good is in line 2 already"),
        (5, "can't be a name"),
        (6, "needs password or password_hash"),
        (7, "the password has not"),
        (8, "not both"),
        (9, "must be argon2"),
        (10, "expires is"),
        (11, "'nobody'"),
        (12, "guest without an end"),
        (13, "can't be a group"),
        (13, "enabled is"),
        (13, "totp_secret"),
        (14, "fields"),
    ] {
        let named = error.lines().any(|text| text.contains(&format!("line {line}: ")) && text.contains(what));
        assert!(named, "line {line}, {what}: {error}");
    }
    assert!(!error.contains("line 2:") && !error.contains("correct horse"), "{error}");
    assert_eq!(bench.store().users().unwrap().len(), 1);
    for (text, what) in [
        ("name,pasword\nu1,x\n", "no field \"pasword\""),
        ("name,name\nu1,u2\n", "there twice"),
        ("[{\"name\": \"u1\", \"colour\": 1}]", "entry 1: there is no field"),
        ("[{\"name\": 7}]", "neither text"),
        ("[{\"name\": \"u1\",\n]", "line 2:"),
    ] {
        fs::write(bench.path("u.csv"), text).unwrap();
        let error = bench.user("import @u.csv").unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn an_update_changes_the_fields_that_are_given() {
    let bench = Bench::new();
    bench.user("add ann --password-file @password --group staff --note kept --totp").unwrap();
    let before = bench.store().user("ann").unwrap().unwrap();
    let json = r#"[{"name": "ann", "groups": ["lab", "x"]}, {"name": "bob", "password": "correct horse"}]"#;
    fs::write(bench.path("u.json"), json).unwrap();
    assert_eq!(bench.user("import @u.json --update").unwrap(), "1 users added, 1 updated\n");
    let after = bench.store().user("ann").unwrap().unwrap();
    assert_eq!(after.groups, ["lab", "x"]);
    assert_eq!((after.password, after.totp, after.note.as_str()), (before.password, before.totp, "kept"));
    let causes: Vec<_> = bench.store().revocations_since(0).unwrap().iter().map(|r| r.cause).collect();
    assert_eq!(causes, [RevocationCause::Groups]);
}

/// The last user can't be added, because the name was taken since the file was checked.
#[test]
fn an_import_that_fails_half_way_changes_nothing() {
    use vpnd_store::{StoreError, UserChange, UserImport};
    let bench = Bench::new();
    bench.user("add ann --password-file @password").unwrap();
    let user = |name: &str, exists| UserImport {
        name: name.to_owned(),
        exists,
        password: Some(vpnd_store::PasswordHash::new(ARGON2.to_owned())),
        change: UserChange { note: Some("changed".to_owned()), ..UserChange::default() },
        enabled: Some(false),
    };
    let users = [user("ann", true), user("bob", false), user("ANN", false)];
    assert!(matches!(bench.store().import_users(&users, NOW_S), Err(StoreError::UserExists { .. })));
    let store = bench.store();
    assert_eq!((store.users().unwrap().len(), store.last_revocation().unwrap()), (1, 0));
    let ann = store.user("ann").unwrap().unwrap();
    assert!(ann.enabled && ann.note.is_empty());
}

#[test]
fn a_user_of_a_source_is_named_before_the_first_login() {
    let bench = Bench::new();
    bench.user("add ann --password-file @password").unwrap();
    let path = bench.path("v/server.toml");
    let text = fs::read_to_string(&path).unwrap();
    let source = "[[source]]\nname = 'campus'\nkind = 'ldap'\nrealm = 'uni.example'\nservers = 'ldaps://a.example'\n\
                  base = 'dc=uni'\nuser_dn = 'uid={user}'\n";
    fs::write(&path, format!("{text}\n{source}")).unwrap();
    assert!(
        bench.user("disable staff5@elsewhere.example").unwrap_err().to_string().contains("there is no user")
    );
    assert!(bench.user("enable staff5@uni.example").unwrap_err().to_string().contains("there is no user"));
    assert_eq!(bench.user(r"disable UNI.EXAMPLE\Staff5").unwrap(), "user 'staff5@uni.example' disabled\n");
    let user = bench.store().user("staff5@uni.example").unwrap().unwrap();
    assert_eq!((user.source.as_str(), user.enabled), ("campus", false));
    let list = bench.user("list").unwrap();
    assert!(
        list.lines().any(|line| line.contains("staff5@uni.example") && line.contains("disabled")),
        "{list}"
    );
    bench.user("enable staff5@uni.example").unwrap();
    assert!(bench.store().user("staff5@uni.example").unwrap().unwrap().enabled);
    bench.user("remove staff5@uni.example").unwrap();
    // A user whose profile is written need not have been here, but has to be one of a source.
    let profile = bench.user(r"profile UNI.EXAMPLE\Staff5").unwrap();
    assert!(profile.contains("name = \"staff5@uni.example\""), "{profile}");
    let nobody = bench.user("profile an").unwrap_err().to_string();
    assert!(nobody.contains("there is no user 'an'"), "{nobody}");
    // A sponsor need not have been here, either.
    bench
        .user("add guest --password-file @password --sponsor prof@uni.example --expires 2030-01-31")
        .unwrap();
    bench.user("modify ann --sponsor prof@uni.example --expires 2030-01-31").unwrap();
    let nobody = bench.user("modify ann --sponsor nobody --expires 2030-01-31").unwrap_err().to_string();
    assert!(nobody.contains("there is no user 'nobody'"), "{nobody}");
    fs::write(
        bench.path("u.csv"),
        "name,password,expires,sponsor\nbob,correct horse,2030-01-31,prof@uni.example\n",
    )
    .unwrap();
    assert_eq!(bench.user("import @u.csv").unwrap(), "1 users added, 0 updated\n");
}

#[test]
fn a_users_page_is_complete_and_its_reading_is_recorded() {
    let bench = Bench::new();
    bench.user("add ann --password-file @password --group staff --note thesis").unwrap();
    bench.user("add bob --password-file @password").unwrap();
    let login = |event: &str, user: &str, detail: &str, at_s| AuditEntry {
        event: event.to_owned(),
        source: "192.0.2.7".to_owned(),
        detail: detail.to_owned(),
        ..entry("", user, at_s)
    };
    let mut file = AuditFile::open(&bench.path("v/state").join(FILE_NAME)).unwrap();
    let mut events = vec![
        login("login-refused", "ann", "too-old", NOW_S - 31 * 86_400),
        login("login", "ann", "", NOW_S - 500),
        login("login-refused", "bob", "disabled", NOW_S - 400),
    ];
    events.extend((0..12).map(|n| login("login-refused", "ann", "wrong-password", NOW_S - 300 + n)));
    let events: Vec<_> = events.into_iter().map(vpnd_store::audit::Event::Entry).collect();
    file.record(&events).unwrap();
    drop(file);

    let page: serde_json::Value = serde_json::from_str(&bench.user("show Ann --json").unwrap()).unwrap();
    assert_eq!(
        (&page["name"], &page["state"], &page["note"]),
        (&"ann".into(), &"enabled".into(), &"thesis".into())
    );
    assert_eq!(
        (page["groups"][0].as_str(), page["last_login_s"].as_u64()),
        (Some("staff"), Some(NOW_S - 500))
    );
    assert_eq!((&page["sessions"], &page["devices"]), (&serde_json::Value::Null, &serde_json::json!([])));
    let refused = page["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 10, "the last ones");
    let newest = serde_json::json!({ "time": vpnd_sys::date::rfc3339(NOW_S - 289), "outer": "192.0.2.7", "reason": "wrong-password" });
    assert_eq!(refused[0], newest);

    bench.user("disable ann --reason exmatriculated").unwrap();
    let text = bench.user("show ann").unwrap();
    let disabled = format!(
        "state:     disabled at {} by {}: exmatriculated",
        vpnd_sys::date::rfc3339(NOW_S),
        vpnd_sys::account::invoker()
    );
    for part in [
        disabled.as_str(),
        "role:      -",
        "groups:    staff",
        "note:      thesis",
        "wrong-password",
        "sessions: not known: ",
        "devices: 0",
    ] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    assert!(!text.contains("too-old") && !text.contains("bob"), "{text}");
    let looks = bench
        .recorded()
        .into_iter()
        .filter(|record| record.kind == "user-shown" && record.user.as_deref() == Some("ann"));
    assert_eq!(looks.count(), 2);
    assert!(matches!(bench.user("show zoe"), Err(UserError::Store(StoreError::NoSuchUser { .. }))));
}
