//! Behaviour: who follows "From one gateway to three" of docs/FLEET.md line by line gets a fleet,
//! and by "Upgrade" its gateways start again one after the other, while a user's connection goes
//! on.
//!
//! ```text
//!                        ┌── gw1 ──10.200.0.0/24──┐
//!   client 1 ─── net ────┼── gw2 ──10.201.0.0/24──┼── campus
//!           (PostgreSQL) └── gw3 ──10.202.0.0/24──┘
//! ```
//!
//! The guide's addresses are replaced by the laboratory's; `systemctl`, `rsync` and `apt` are this
//! program.

use super::*;
use crate::gateway::{strings, write_secret};
use crate::process::etc;
use crate::readme::Newcomer;
use vpnd_store::postgres::testing::PASSWORD;

const GUIDE: &str = include_str!("../../../../../docs/FLEET.md");
/// The name in the gateways' certificate.
const NAME: &str = "vpn.uni.example";

/// Replaces the guide's addresses by those of the laboratory.
fn replaced(text: &str, port: u16) -> String {
    text.replace("192.0.2.20:5432", &format!("{DATABASE}:{port}"))
        .replace("192.0.2.1:", &format!("{GATEWAY_V4}:"))
        .replace("192.0.2.2:", &format!("{SECOND_GATEWAY}:"))
        .replace("192.0.2.3:", "198.18.3.2:")
}

/// The blocks of a section.
fn blocks(section: &str) -> Vec<String> {
    let (_, from) = GUIDE.split_once(&format!("\n## {section}\n")).expect("the guide has the section");
    let text = from.split("\n## ").next().unwrap();
    text.split("```\n").skip(1).step_by(2).map(str::to_owned).collect()
}

/// A machine with a gateway.
struct Machine<'l> {
    lab: &'l Lab,
    newcomer: Newcomer<'l>,
    server: Option<Process>,
}

impl<'l> Machine<'l> {
    fn at(lab: &'l Lab, place: &'l Namespace) -> Self {
        Self { lab, newcomer: Newcomer::at(lab, place), server: None }
    }

    fn directory(&self) -> std::path::PathBuf {
        etc(self.lab, self.newcomer.place).join("vpnd")
    }

    /// Puts a part of server.toml in its place.
    fn configure(&self, part: &str) {
        let part: toml::Table = part.parse().expect("the guide has TOML");
        edit_toml(&self.directory().join("server.toml"), |whole| {
            for (section, keys) in part {
                let known = whole.entry(section).or_insert_with(|| toml::Table::new().into());
                known.as_table_mut().unwrap().extend(keys.as_table().unwrap().clone());
            }
        });
    }

    /// Runs a line of the guide.
    fn run(&mut self, line: &str, first: &std::path::Path) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["systemctl", "start", "vpnd-server"] => {
                self.server = Some(self.newcomer.start(&["vpnd", "server"], "the gateway is up"));
            }
            ["systemctl", "stop", "vpnd-server"] => {
                let mut server = self.server.take().expect("it runs");
                server.signal(Signal::TERM);
                server.wait(LIMIT);
            }
            ["rsync", "-a", "gw1:/etc/vpnd", "/etc/"] => {
                let copied = Command::new("cp").arg("-a").arg(first).arg(self.directory()).status().unwrap();
                assert!(copied.success());
            }
            ["apt", ..] | ["#", ..] => {}
            ["vpnd", "drain", ..] => {
                self.newcomer.run(&line.split_whitespace().collect::<Vec<_>>());
                let mut server = self.server.take().expect("it runs");
                assert!(server.wait(LIMIT).success(), "{}", server.output());
            }
            ["vpnd", ..] => drop(self.newcomer.run(&line.split_whitespace().collect::<Vec<_>>())),
            _ => drop(self.newcomer.run(&["sh", "-c", line])),
        }
    }

    /// The names of the gateways that are alive, by this one.
    fn alive(&self) -> HashSet<String> {
        let shown = self.newcomer.run(&["vpnd", "status", "--fleet", "--json"]);
        let shown: Vec<Json> = serde_json::from_str(&shown).unwrap();
        let alive = shown.iter().filter(|gateway| gateway["alive"] == true && gateway["draining"] == false);
        alive.map(|gateway| gateway["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn knows_all(machine: &Machine<'_>) {
    eventually("three gateways are alive", LIMIT, || (machine.alive().len() == 3).then_some(()));
}

#[test]
fn the_steps_of_the_guide_make_a_fleet_that_is_upgraded_in_turn() {
    let Some(lab) = Lab::new(3) else { return };
    let Some(cluster) = cluster(&lab) else { return };
    cluster.sql("postgres", "CREATE DATABASE vpnd");
    link_to_campus(&lab, 1, "second0");
    link_to_campus(&lab, 2, "third0");
    lab.campus.ip_batch(&format!("route del default via 10.200.0.1 dev {UPLINK}\n"));
    let places = [&lab.gateway, &lab.clients[1], &lab.clients[2]];
    let mut machines = places.map(|place| Machine::at(&lab, place));

    // A gateway that was set up by the README, with a user.
    let first = machines[0].directory();
    machines[0].newcomer.run(&["vpnd", "init", "--dir", "/etc/vpnd", "--name", NAME]);
    edit_toml(&first.join("server.toml"), |config| {
        let push = config["push"].as_table_mut().expect("a section");
        push.insert("routes".to_owned(), strings(&["10.200.0.0/24"]));
    });
    write_secret(&lab.path("password"), "ann's password\n");
    machines[0].newcomer.run(&["vpnd", "user", "add", "ann", "--password-file", "password"]);
    machines[0].run("systemctl start vpnd-server", &first);
    write_secret(&first.join("database-password"), &format!("{PASSWORD}\n"));
    fs::copy(cluster.ca(), first.join("database-ca.pem")).unwrap();

    let blocks_of_guide = blocks("From one gateway to three");
    let [settings, to_database, engine, check_and_start, second] = &blocks_of_guide[..] else {
        panic!("the guide has other steps: {blocks_of_guide:?}");
    };
    machines[0].configure(&replaced(settings, cluster.port));
    to_database.lines().for_each(|line| machines[0].run(line, &first));
    machines[0].configure(engine);
    check_and_start.lines().for_each(|line| machines[0].run(line, &first));
    for (number, machine) in machines.iter_mut().enumerate().skip(1) {
        let name = format!("gw{}", number + 1);
        second.lines().for_each(|line| machine.run(&line.replace("gw2", &name), &first));
    }
    machines.iter().for_each(knows_all);

    let profile = machines[1].newcomer.run(&[
        "vpnd",
        "user",
        "add",
        "bob",
        "--password-file",
        "password",
        "--profile-out",
        "bob.toml",
    ]);
    println!("{profile}");
    let text = fs::read_to_string(lab.path("bob.toml")).unwrap();
    assert!(text.contains("spread = true") && text.contains("198.18.3.2"), "{text}");
    let client = Newcomer::at(&lab, &lab.clients[0]);
    let mut connected =
        client.start(&["vpnd", "connect", "bob.toml", "--credentials", "password"], "the tunnel is set up");

    let upgrade = blocks("Upgrade").remove(0);
    let pauses = with_traffic_by(&lab, &places, client.place, || {
        for number in 0..3 {
            upgrade.lines().for_each(|line| machines[number].run(line, &first));
            machines.iter().for_each(knows_all);
        }
    });
    println!(
        "upgraded one by one: {:.2?} without pings, {:.2?} on the connection",
        pauses.pings, pauses.connection
    );
    assert!(pauses.connection < MAX_GAP, "{pauses:?}");
    let sessions = "SELECT count(*) FROM vpnd.sessions";
    assert_eq!(cluster.sql("vpnd", sessions), "1", "it is one session");
    let kept = client.run(&["sh", "-c", "cat /var/lib/*/gateway-*"]);
    let weights: Vec<u32> = kept.lines().filter_map(|line| line.split_once(' ')?.1.parse().ok()).collect();
    assert!(weights.len() == 3 && weights.iter().any(|weight| *weight > 0), "{kept}");
    connected.signal(Signal::INT);
    assert!(connected.wait(LIMIT).success(), "{}", connected.output());
    for machine in &mut machines {
        machine.run("systemctl stop vpnd-server", &first);
    }
}
