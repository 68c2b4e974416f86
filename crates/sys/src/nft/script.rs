//! A table as it is to be, and the transaction that makes it so.

use std::fmt::Write as _;

use super::port_blocks::PORT_BLOCKS;
use super::{CHAINS, ConnectionLimit, NftError, ToolError, remove_script, run};

/// A table in the making.
pub(super) struct Script {
    pub(super) table: String,
    pub(super) text: String,
}

impl Script {
    /// One that begins the table of this name.
    pub(super) fn of_table(table: &str) -> Self {
        Self { table: table.to_owned(), text: format!("table inet {table} {{\n") }
    }

    pub(super) fn line(&mut self, text: &str) {
        // Writing to a string can't fail.
        let _ = writeln!(self.text, "{text}");
    }

    /// Puts the table in force, in place of what is in it.
    pub(super) async fn run(&self) -> Result<(), NftError> {
        match run(&self.refill()).await {
            // A chain that another version has hooked in elsewhere can't stay.
            Err(NftError::Tool(ToolError::Refused { .. })) => {
                run(&(remove_script(&self.table) + &self.text)).await
            }
            outcome => outcome,
        }
    }

    /// The transaction that keeps chains which are there and replaces the rules in them. A chain
    /// that is not wanted goes, whether it is there or not.
    fn refill(&self) -> String {
        let Self { table, text } = self;
        let mut script = format!("add table inet {table}\nflush table inet {table}\n");
        // Elements of before would be in the way of others; the rules that name the map are gone by
        // then.
        let _ = writeln!(
            script,
            "add map inet {table} port_blocks {{ {PORT_BLOCKS} }}\nflush map inet {table} port_blocks"
        );
        if !text.contains("map port_blocks {") {
            let _ = writeln!(script, "delete map inet {table} port_blocks");
        }
        for chain in CHAINS.iter().filter(|chain| !text.contains(&format!("chain {chain} {{"))) {
            let _ = writeln!(script, "add chain inet {table} {chain}\ndelete chain inet {table} {chain}");
        }
        script += &ConnectionLimit::prepare(table, text);
        script + text
    }
}
