//! Blocks of ports of public addresses in the gateway's table: a map for what has ports, an
//! anonymous one for what has none.

use super::Script;
use crate::port_blocks::PortBlocks;

/// The type of the map of [`port_blocks`].
pub(super) const PORT_BLOCKS: &str = "type ipv4_addr : interval ipv4_addr . inet_service;";

/// The block of each inner address.
pub(super) fn port_blocks(blocks: &PortBlocks, script: &mut Script) {
    script.line("map port_blocks {");
    script.line(PORT_BLOCKS);
    let elements: Vec<String> = blocks
        .all()
        .map(|(inner, block)| format!("{inner} : {} . {}-{}", block.address, block.ports.0, block.ports.1))
        .collect();
    script.line(&format!("elements = {{ {} }}", elements.join(", ")));
    script.line("}");
}

/// The public address of each inner address, for what has no ports, such as ping.
pub(super) fn public_addresses(blocks: &PortBlocks) -> String {
    let ranges = blocks.addresses.iter().filter_map(|address| {
        let (first, last) = blocks.clients_of(*address)?;
        Some(if first == last {
            format!("{first} : {address}")
        } else {
            format!("{first}-{last} : {address}")
        })
    });
    format!("{{ {} }}", ranges.collect::<Vec<_>>().join(", "))
}
