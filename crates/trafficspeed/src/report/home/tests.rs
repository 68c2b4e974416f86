use super::*;
use crate::experiment::home::results::samples;

#[test]
fn everything_that_was_measured_has_its_place_among_the_tables() {
    let text = document(&samples::campaign()).text(false, true);
    for expected in [
        "Download and upload",
        "voice down",
        "video up",
        "alone",
        "vpnd (again)",
        "G.114",
        "RFC 4737",
        "vpnd: vpnd <9>, AES, MTU 1420 when it came up",
    ] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    let pictures = document(&samples::campaign()).into_pictures();
    let names: Vec<&str> = pictures.iter().map(|picture| picture.name.as_str()).collect();
    assert_eq!(names, ["download", "upload", "voice-down", "voice-up", "pages"]);
    // Forty Mbit/s up, a hundred down, and a little less than 20 Mbit/s of both.
    for (flow, share) in [("download", "19.4 ("), ("upload", "48.5 (")] {
        let case = format!("{flow}, all at once");
        let is_it = |line: &&str| line.contains("vpnd ") && line.contains(&case);
        let row = text.lines().find(is_it).expect("a row");
        let cells: Vec<&str> = row.split(['│', '┆']).map(str::trim).collect();
        assert!(cells[4].starts_with("19.4 (") && cells[5].starts_with(share), "{row}");
    }
}

#[test]
fn drops_at_generators_and_at_the_vpn_are_distinguished() {
    let campaign = samples::campaign();
    let sections = sections(&campaign.observations());
    let grid = &sections.iter().find(|section| section.name == "CPU and link").expect("a section").grid;
    let row = grid.rows.iter().find(|row| row[0] == "vpnd").expect("a row");
    let cell = |head: &str| &row[grid.head.iter().position(|known| known == head).expect("a column")];
    // Seven datagrams in each of five rounds, two of them at a generator's socket.
    assert_eq!(
        (cell("dropped at the VPN's sockets").as_str(), cell("dropped at generators").as_str()),
        ("25", "10")
    );
}

#[test]
fn home_compares_systems_and_names_outliers() {
    let mut campaign = samples::campaign();
    let found = campaign.observations().comparisons(&compared());
    assert_eq!(found.len(), compared().len());
    assert!(found.iter().all(|one| one.system == "OpenVPN" && one.differs_from_first == Some(true)));
    assert!(
        (found[0].ratio_to_first.unwrap().median - 0.5).abs() < 1e-9,
        "half the download, in every round"
    );
    assert!((found[0].control.unwrap().median - 1.0 / 1.02).abs() < 1e-9);
    let claims = observed::claims(&campaign.observations(), &compared());
    assert!(claims[0].starts_with("Comparisons: 7, of which 7 differ"), "{claims:?}");
    assert_eq!(remarks(&campaign.observations()), [""; 0]);
    let vpnd = campaign.runs[0].subject.unwrap();
    campaign.runs[0] = samples::run(vpnd, 1, 4.0);
    let said = remarks(&campaign.observations());
    assert_eq!(said.len(), compared().len(), "{said:?}");
    assert!(said[0].starts_with("Look at vpnd, download, all at once, received: "), "{said:?}");
    assert!(said[0].contains("Mbit/s") && said[6].contains(" ms"), "{said:?}");
    // The control was four times as slow once.
    campaign = samples::campaign();
    campaign.runs[2] = samples::run(vpnd.again(), 1, 4.0);
    let found = campaign.observations().comparisons(&compared());
    assert!(found.iter().all(|one| one.differs_from_first == Some(false)));
}

#[test]
fn a_measurement_that_broke_has_no_figures_and_is_named() {
    let mut campaign = samples::campaign();
    for run in campaign.runs.iter_mut().filter(|run| run.label == "OpenVPN") {
        (run.cases, run.error) = (Vec::new(), Some("did not come up".into()));
    }
    let text = document(&campaign).text(false, true);
    assert!(text.contains("OpenVPN, round 1 and 4 more: did not come up"), "{text}");
    assert!(campaign.observations().summaries().iter().all(|one| one.system != "OpenVPN"));
    assert!(document(&campaign).page().contains("did not come up"));
}

#[test]
fn csv_has_a_row_for_each_figure_of_each_flow() {
    let campaign = samples::campaign();
    let text = observed::csv([(campaign.observations(), &campaign.environment)]);
    // Two systems with five cases and one control with everything at once, in five rounds.
    let received = text.lines().filter(|line| line.contains(",received,bit/s,")).count();
    assert_eq!(received, 5 * (2 * (7 + 1 + 1 + 4 + 1) + 7));
}
