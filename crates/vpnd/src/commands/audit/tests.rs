//! `vpnd audit` on a file as a gateway leaves it.

use std::path::PathBuf;

use clap::Parser as _;
use vpnd_proto::session::{DeviceId, SessionId};

use super::*;
use crate::admin_store::InThisProcess;
use crate::cli::{Cli, Command};
use vpnd_store::audit::testing::all;
use vpnd_store::audit::{AuditFile, Event, FILE_NAME, SessionStart};

/// 2027-01-15T08:00:00Z.
const NOW_S: u64 = 1_800_000_000;

fn anns_start() -> SessionStart {
    SessionStart {
        session: SessionId([1; 16]),
        user: "ann".to_owned(),
        source: "local".to_owned(),
        profile: "staff".to_owned(),
        device: DeviceId([2; 16]),
        outer: Some([192, 0, 2, 1].into()),
        ipv4: Some([10, 86, 0, 2].into()),
        ipv6: None,
        at_s: NOW_S - 3600,
        expires_s: NOW_S + 3600,
    }
}

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(extra: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "[tls]\ncertificate = 'c'\nkey = 'k'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n[server]\nstate_dir = '.'\n{extra}"
        );
        std::fs::write(dir.path().join("server.toml"), text).unwrap();
        let mut file = AuditFile::open_or_create(&dir.path().join(FILE_NAME)).unwrap();
        let run = file.begin_run(NOW_S - 9000, None).unwrap();
        let refused = AuditEntry {
            at_s: NOW_S - 100,
            event: "login-refused".to_owned(),
            user: "=cmd|'/c calc'!A1".to_owned(),
            source: "203.0.113.9".to_owned(),
            detail: "unknown-user".to_owned(),
            by: String::new(),
        };
        file.record(&[Event::Began(anns_start()), Event::Entry(refused)]).unwrap();
        file.alive(run, NOW_S).unwrap();
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(FILE_NAME)
    }

    fn run(&self, words: &[&str]) -> Result<(bool, String), AuditCommandError> {
        let config = self.dir.path().join("server.toml");
        let line =
            ["vpnd", "audit"].iter().chain(words).copied().chain(["--config", config.to_str().unwrap()]);
        let Command::Audit(command) = Cli::try_parse_from(line).unwrap().command else { panic!("not audit") };
        let mut out = Vec::new();
        let answered = run(&command, &InThisProcess, NOW_S, &mut out)?;
        Ok((answered, String::from_utf8(out).unwrap()))
    }

    fn whois(&self, address: &str, at: &str) -> (bool, String) {
        self.run(&["whois", address, "--at", at, "--reason", "complaint 4711"]).unwrap()
    }
}

#[test]
fn a_question_is_answered_and_is_on_record_with_its_reason() {
    let bench = Bench::new("");
    let (found, text) = bench.whois("10.86.0.2", "2027-01-15T07:30:00Z");
    assert!(found);
    for part in ["ann", "local", "staff", &"02".repeat(16), "2027-01-15T07:00:00Z", "it goes on", "192.0.2.1"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("UNCERTAIN"), "{text}");
    let (_, with_port) = bench.whois("10.86.0.2:40123", "2027-01-15T08:30:00+01:00");
    assert_eq!(with_port, text, "an inner address has all its ports");
    let (found, text) = bench.whois("10.86.0.2", "2027-01-15T06:30:00Z");
    assert!(!found && text.contains("no client is on record"), "{text}");
    let (_, json) = bench
        .run(&["whois", "10.86.0.2", "--at", "2027-01-15T07:30:00Z", "--reason", "x", "--json"])
        .unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["found"][0]["user"], &json["certain"]), (&json!("ann"), &json!(true)));
    let asked: Vec<Record> = all(&AuditFile::open(&bench.path()).unwrap())
        .into_iter()
        .filter(|record| record.kind == "whois")
        .collect();
    assert_eq!(asked.len(), 4);
    assert_eq!(asked[0].detail.as_deref(), Some("10.86.0.2 at 2027-01-15T07:30:00Z: complaint 4711"));
    assert_eq!(asked[0].by, Some(vpnd_sys::account::invoker()));
    let missing =
        Cli::try_parse_from(["vpnd", "audit", "whois", "10.86.0.2", "--at", "2027-01-15T07:30:00Z"]);
    assert!(missing.is_err(), "no question without a reason");
    for reason in ["", "  ", "a\nb"] {
        let asked = bench.run(&["whois", "10.86.0.2", "--at", "2027-01-15T07:30:00Z", "--reason", reason]);
        assert!(matches!(asked, Err(AuditCommandError::Reason)), "{reason:?}");
    }
}

#[test]
fn an_address_that_changes_hands_within_a_second_has_both_and_no_certain_answer() {
    let bench = Bench::new("");
    let mut file = AuditFile::open(&bench.path()).unwrap();
    let at_s = NOW_S - 600;
    let end = Event::Ended { session: SessionId([1; 16]), at_s, reason: "bye".to_owned() };
    let next = SessionStart { session: SessionId([3; 16]), user: "bob".to_owned(), at_s, ..anns_start() };
    file.record(&[end, Event::Began(next)]).unwrap();
    let (_, text) = bench.whois("10.86.0.2", "2027-01-15T07:50:00Z");
    for part in ["ann", "bob", "UNCERTAIN: within that second one session ended and the next began"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, text) = bench.whois("10.86.0.2", "2027-01-15T07:50:01Z");
    assert!(text.contains("bob") && !text.contains("ann") && !text.contains("UNCERTAIN"), "{text}");
}

#[test]
fn an_answer_that_may_be_wrong_says_why() {
    let bench = Bench::new("");
    let (_, text) = bench.whois("10.86.0.2", "2027-01-14T07:30:00Z");
    assert!(text.contains("UNCERTAIN: records begin at 2027-01-15T05:30:00Z"), "{text}");
    let gap = vpnd_store::audit::Gap {
        from_s: NOW_S - 60,
        to_s: NOW_S - 30,
        lost: Some(3),
        cause: "no room".to_owned(),
    };
    AuditFile::open(&bench.path()).unwrap().record_gap(&gap).unwrap();
    let (found, text) = bench.whois("10.86.0.2", "2027-01-15T07:59:15Z");
    assert!(found && text.contains("UNCERTAIN") && text.contains("3 events are missing"), "{text}");
    let late = bench.run(&["whois", "10.86.0.2", "--at", "2027-01-15T08:00:01Z", "--reason", "x"]);
    assert!(matches!(late, Err(AuditCommandError::Future)));
    // All clients are behind one address, or keep their own.
    let (found, text) =
        Bench::new("[nat]\nmode = 'nftables'\n").whois("198.51.100.1:40123", "2027-01-15T07:30:00Z");
    assert!(!found && text.contains("can't be determined"), "{text}");
    let (found, text) = Bench::new("[nat]\nmode = 'route'\n").whois("198.51.100.1", "2027-01-15T07:30:00Z");
    assert!(!found && text.contains("no inner address"), "{text}");
    let off = Bench::new("[audit]\nenabled = false\n");
    let asked = off.run(&["whois", "10.86.0.2", "--at", "2027-01-15T07:30:00Z", "--reason", "x"]);
    assert!(matches!(asked, Err(AuditCommandError::Disabled)));
}

#[test]
fn a_port_of_a_public_address_is_answered_by_its_block() {
    let bench = Bench::new("[nat]\nmode = 'nftables'\n");
    // From 07:50 on; 'ann' has the third block.
    let blocks = "10.86.0.0/28 to 192.0.2.10 ports 20000-21599 by 100".parse().unwrap();
    let mut file = AuditFile::open(&bench.path()).unwrap();
    file.end_run(1, NOW_S - 700).unwrap();
    let run = file.begin_run(NOW_S - 600, Some(&blocks)).unwrap();
    file.alive(run, NOW_S).unwrap();
    let at = "2027-01-15T07:55:00Z";
    let (found, text) = bench.whois("192.0.2.10:20299", at);
    assert!(
        found && text.contains("ann") && text.contains("public:   192.0.2.10 ports 20200-20299\n"),
        "{text}"
    );
    assert!(!text.contains("UNCERTAIN"), "{text}");
    let json = |address: &str, at: &str| -> Value {
        let line = ["whois", address, "--at", at, "--reason", "x", "--json"];
        serde_json::from_str(&bench.run(&line).unwrap().1).unwrap()
    };
    let answer = json("192.0.2.10:20200", at);
    assert_eq!((&answer["found"][0]["user"], &answer["certain"]), (&json!("ann"), &json!(true)));
    let public = json!({ "address": "192.0.2.10", "first_port": 20200, "last_port": 20299 });
    assert_eq!(
        (&answer["found"][0]["public"], &json("10.86.0.2", at)["found"][0]["public"]),
        (&public, &public)
    );
    for (address, why) in [
        ("192.0.2.10:20300", "192.0.2.10:20300 is of the block of 10.86.0.3, and no client is on record"),
        ("192.0.2.10:4433", "of no client's block: the gateway itself"),
        ("192.0.2.11:20200", "clients left by 192.0.2.10 only"),
    ] {
        let (found, text) = bench.whois(address, at);
        assert!(!found && text.contains(why), "{address}: {text}");
    }
    let answer = json("192.0.2.10", at);
    assert_eq!((&answer["found"][0]["user"], &answer["certain"]), (&json!("ann"), &json!(false)));
    assert!(answer["notes"].to_string().contains("public address of up to 16 clients"), "{answer}");
    // Before the blocks, and when they came.
    let (found, text) = bench.whois("192.0.2.10:20299", "2027-01-15T07:40:00Z");
    assert!(
        !found && text.contains("no port blocks were in force") && text.contains("can't be determined"),
        "{text}"
    );
    let (_, text) = bench.whois("192.0.2.10:20299", "2027-01-15T07:50:30Z");
    assert!(text.contains("UNCERTAIN: other port blocks came into force"), "{text}");
    let export = |format: &str| {
        let line =
            ["export", "--from", "2027-01-15T05:00:00Z", "--to", at, "--reason", "x", "--format", format];
        bench.run(&line).unwrap().1
    };
    let records: Vec<Value> = serde_json::from_str(&export("json")).unwrap();
    let came = records.iter().find(|record| record["kind"] == "public-ports").unwrap();
    assert_eq!((&came["time"], &came["public"]), (&json!("2027-01-15T07:50:00Z"), &public));
    assert!(export("csv").lines().any(|line| line.ends_with(",192.0.2.10:20200-20299")));
}

#[test]
fn nothing_is_answered_that_can_not_be_recorded() {
    let bench = Bench::new("");
    let connection = rusqlite::Connection::open(bench.path()).unwrap();
    connection
        .execute_batch("CREATE TRIGGER full BEFORE INSERT ON entries BEGIN SELECT RAISE(ABORT, 'full'); END")
        .unwrap();
    for line in [
        &["whois", "10.86.0.2", "--at", "2027-01-15T07:30:00Z", "--reason", "x"][..],
        &["export", "--from", "2027-01-15T07:30:00Z", "--to", "2027-01-15T07:31:00Z", "--reason", "x"],
    ] {
        assert!(matches!(bench.run(line), Err(AuditCommandError::Store(_))), "{line:?}");
    }
}

#[test]
fn an_export_is_read_by_scripts_and_harmless_in_a_spreadsheet() {
    let bench = Bench::new("");
    let line =
        ["export", "--from", "2027-01-15T00:00:00Z", "--to", "2027-01-15T08:00:00Z", "--reason", "GDPR 15"];
    let (_, text) = bench.run(&line).unwrap();
    let mut csv = csv::Reader::from_reader(text.as_bytes());
    assert_eq!(csv.headers().unwrap().iter().collect::<Vec<_>>(), COLUMNS);
    let rows: Vec<csv::StringRecord> = csv.records().map(Result::unwrap).collect();
    assert_eq!((&rows[0][0], &rows[0][3], &rows[0][7]), ("session", "ann", "10.86.0.2"));
    assert_eq!(
        (&rows[1][0], &rows[1][3], &rows[1][11]),
        ("login-refused", "'=cmd|'/c calc'!A1", "unknown-user")
    );
    assert_eq!(
        (&rows[2][0], &rows[2][11]),
        ("audit-exported", "all users from 2027-01-15T00:00:00Z to 2027-01-15T08:00:00Z: GDPR 15")
    );
    let (_, text) = bench.run(&[&line[..], &["--format", "json", "--user", "ann"]].concat()).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((json.as_array().unwrap().len(), &json[0]["user"]), (1, &json!("ann")));
    let backwards =
        ["export", "--from", "2027-01-15T08:00:00Z", "--to", "2027-01-15T00:00:00Z", "--reason", "x"];
    assert!(matches!(bench.run(&backwards), Err(AuditCommandError::Backwards)));
}
