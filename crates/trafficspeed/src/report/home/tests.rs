use super::*;
use crate::experiment::home::results::samples;
use crate::report::chart::markup::assert_well_formed;
use crate::report::grid::NARROW;

#[test]
fn everything_that_was_measured_has_its_place_among_the_tables() {
    let text = table(&samples::campaign(), Some(NARROW));
    for expected in [
        "Download and upload",
        "voice down",
        "video up",
        "alone",
        "vpnd (again)",
        "G.114",
        "0 of 2994",
        "vpnd: vpnd <9>, AES, MTU 1420 when it came up",
    ] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    // Forty Mbit/s up, a hundred down, and a little less than 20 Mbit/s of both.
    let row =
        text.lines().find(|line| line.contains("vpnd ") && line.contains("all at once")).expect("a row");
    let cells: Vec<&str> = row.split(['│', '┆']).map(str::trim).collect();
    assert!(
        cells[4].starts_with("19.6 (") && cells[5].starts_with("19.6 (") && cells[7].starts_with("49.0 ("),
        "{row}"
    );
}

#[test]
fn drops_at_generators_are_told_apart_from_the_vpns() {
    let campaign = samples::campaign();
    let grid = costs(&campaign);
    let row = grid.rows.iter().find(|row| row[0] == "vpnd").expect("a row");
    let cell = |head: &str| &row[grid.head.iter().position(|known| known == head).expect("a column")];
    // Seven datagrams in each of three rounds, two of them at a generator's socket.
    assert_eq!(
        (cell("dropped at the VPN's sockets").as_str(), cell("dropped at generators").as_str()),
        ("15", "6")
    );
}

#[test]
fn percentiles_of_pages_are_those_of_all_rounds_together() {
    let campaign = samples::campaign();
    let group = FlowGroup::of(&campaign, "vpnd", Case::AtOnce, Flow::Pages);
    assert_eq!(group.pages(), 30);
    let p95 = group.page_ms(0.95).expect("pages");
    assert!(p95 > 209.0 * 1.02 && p95 < 210.0 * 1.03, "{p95}");
    assert!(group.page_ms(0.5).expect("pages") < p95);
}

#[test]
fn a_measurement_that_broke_has_no_figures_and_is_named() {
    let mut campaign = samples::campaign();
    for run in campaign.runs.iter_mut().filter(|run| run.label == "OpenVPN") {
        (run.cases, run.error) = (Vec::new(), Some("did not come up".into()));
    }
    let text = table(&campaign, Some(NARROW));
    assert!(text.contains("Problem: OpenVPN, round 2: did not come up"), "{text}");
    assert!(groups::flows(&campaign, &Flow::ALL).iter().all(|group| group.label != "OpenVPN"));
    assert!(page::html(&campaign).contains("did not come up"));
}

#[test]
fn the_page_and_its_pictures_are_well_formed() {
    let campaign = samples::campaign();
    assert_well_formed(&page::html(&campaign));
    let pictures = page::pictures(&campaign);
    let names: Vec<&str> = pictures.iter().map(|picture| picture.name.as_str()).collect();
    assert_eq!(names, ["download", "upload", "voice-down", "voice-up", "pages"]);
    pictures.iter().for_each(|picture| assert_well_formed(&picture.svg));
}

#[test]
fn csv_has_a_line_for_each_flow_of_each_measurement_and_json_the_summary() {
    let campaign = samples::campaign();
    let text = csv(&campaign);
    // Two systems with five cases and one control with everything at once, in three rounds.
    assert_eq!(text.lines().count(), 1 + 3 * (2 * (7 + 1 + 1 + 4 + 1) + 7));
    let value = json(&campaign);
    let first = &value["summary"][0];
    assert_eq!(
        (&first["system"], &first["flow"], &first["rounds"]),
        (&json!("vpnd"), &json!("download"), &json!(3))
    );
    assert_eq!(first["out_of_order"], Value::Null);
    assert!(value["comparison"][0]["ratio_to_first"]["median"].is_number());
    assert_eq!(value["settings"]["queue"][0], "100 ms");
}
