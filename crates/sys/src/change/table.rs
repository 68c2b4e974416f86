//! The routing tables that a tunnel may have, by the number of its interface.

/// First of our routing tables; each tunnel adds its interface's number.
pub const TABLE_BASE: u32 = 30_000;
/// Distance of the tables of one tunnel; interfaces have lower numbers.
const TABLE_STEP: u32 = 1_000_000_000;
/// Tables of a tunnel.
const TABLES: u32 = 4;

/// All tables of the tunnel with this interface, the usual one first.
pub fn tables_of(interface_index: u32) -> impl Iterator<Item = u32> {
    let tables =
        (0..TABLES).filter_map(move |number| (number * TABLE_STEP).checked_add(TABLE_BASE + interface_index));
    tables.filter(move |table| interface_of(*table) == Some(interface_index))
}

/// The number of the interface whose tunnel may have this table; `None` if no tunnel may.
pub fn interface_of(table: u32) -> Option<u32> {
    let offset = table.checked_sub(TABLE_BASE)?;
    let index = offset % TABLE_STEP;
    (offset / TABLE_STEP < TABLES && index > 0).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_is_one_tunnels() {
        for index in [1, 7, 1_000, TABLE_STEP - 1] {
            let tables: Vec<_> = tables_of(index).collect();
            assert_eq!(tables.len(), TABLES as usize, "{index}");
            assert!(tables.iter().all(|table| interface_of(*table) == Some(index)), "{index}");
        }
        assert_eq!(tables_of(7).next(), Some(TABLE_BASE + 7));
        for table in [0, 254, TABLE_BASE, TABLE_BASE + TABLE_STEP, u32::MAX] {
            assert_eq!(interface_of(table), None, "{table}");
        }
    }
}
