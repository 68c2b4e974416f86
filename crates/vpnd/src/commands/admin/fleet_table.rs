//! The gateways of a fleet for people: one row for each.
//!
//! Pure: text comes out, nothing is printed.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::table::age;
use vpnd_ipc::admin::status::FleetGateway;

/// Columns of numbers.
const NUMBERS: [usize; 2] = [3, 4];

/// The table, ending with a line break.
pub(super) fn render(gateways: &[FleetGateway]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["GATEWAY", "ADDRESS", "VERSION", "SESSIONS", "LOAD", "STATE"]);
    for gateway in gateways {
        table.add_row(row(gateway));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if NUMBERS.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    vpnd_sys::text::plain(&lines.collect::<String>())
}

fn row(gateway: &FleetGateway) -> [String; 6] {
    let FleetGateway { name, here, address, version, sessions, load_percent, .. } = gateway;
    let (name, version) = (if *here { format!("{name} (this)") } else { name.clone() }, version.clone());
    let address = address.map_or_else(|| "-".to_owned(), |address| address.to_string());
    if gateway.heard_s.is_none() {
        return [name, address, "-".to_owned(), "-".to_owned(), "-".to_owned(), state(gateway)];
    }
    [name, address, version, sessions.to_string(), format!("{load_percent} %"), state(gateway)]
}

fn state(FleetGateway { alive, heard_s, draining, .. }: &FleetGateway) -> String {
    match (alive, heard_s) {
        (_, None) => "NEVER SEEN".to_owned(),
        (false, Some(heard_s)) => format!("NOT SEEN for {}", age(*heard_s)),
        (true, Some(heard_s)) if *draining => format!("DRAINING, seen {} ago", age(*heard_s)),
        (true, Some(heard_s)) => format!("seen {} ago", age(*heard_s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(name: &str) -> FleetGateway {
        FleetGateway {
            name: name.to_owned(),
            here: false,
            alive: true,
            heard_s: Some(2),
            address: Some([192, 0, 2, 1].into()),
            version: "0.1.0".to_owned(),
            sessions: 1_200,
            load_percent: 35,
            draining: false,
            addresses: Vec::new(),
        }
    }

    #[test]
    fn gateways_that_were_not_seen_are_told_from_those_that_were() {
        let gateways = [
            FleetGateway { here: true, ..gateway("gw1") },
            FleetGateway { alive: false, heard_s: Some(95), sessions: 3, ..gateway("gw2") },
            FleetGateway { alive: false, heard_s: None, address: None, ..gateway("gw3") },
            FleetGateway { draining: true, ..gateway("gw4\u{1b}[2J") },
        ];
        let wanted = "\
GATEWAY     ADDRESS    VERSION  SESSIONS  LOAD  STATE
gw1 (this)  192.0.2.1  0.1.0        1200  35 %  seen 2s ago
gw2         192.0.2.1  0.1.0           3  35 %  NOT SEEN for 1m 35s
gw3         -          -               -     -  NEVER SEEN
gw4?[2J     192.0.2.1  0.1.0        1200  35 %  DRAINING, seen 2s ago
";
        assert_eq!(render(&gateways), wanted);
    }
}
