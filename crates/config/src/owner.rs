//! The source that a name belongs to.

use super::ServerConfig;
use super::source::Source;
use crate::user_name;

impl ServerConfig {
    /// The canonical name of a user of a source, however it was typed, and the source, which need
    /// not know that user.
    #[must_use]
    pub fn source_of(&self, typed: &str) -> Option<(String, &Source)> {
        let name = user_name::canonical(typed)?;
        let source = self.sources.iter().find(|source| source.rule.matches(&name))?;
        Some((name, source))
    }
}
