//! Bodies of fuzz targets whose parsers are private to this crate, and the replay of
//! their corpora. Only tests and fuzzing see this module; in the program it does not exist.
#![allow(missing_docs, reason = "the bodies' own first lines say what they check")]

#[path = "../../../fuzz/bodies/admin_line.rs"]
pub mod admin_line;
#[path = "../../../fuzz/bodies/initial.rs"]
pub mod initial;
#[path = "../../../fuzz/bodies/journal.rs"]
pub mod journal;
#[path = "../../../fuzz/bodies/ldap.rs"]
pub mod ldap;
#[path = "../../../fuzz/bodies/privsep_message.rs"]
pub mod privsep_message;
#[path = "../../../fuzz/bodies/radius.rs"]
pub mod radius;
#[path = "../../../fuzz/bodies/radius_accounting.rs"]
pub mod radius_accounting;
#[path = "../../../fuzz/bodies/radius_dynamic.rs"]
pub mod radius_dynamic;

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;
    use super::*;

    #[test]
    fn lines_of_the_control_socket() {
        replay("admin_line", admin_line::run);
    }

    #[test]
    fn beginnings_of_connections() {
        replay("initial", initial::run);
    }

    #[test]
    fn undo_journals() {
        replay("journal", journal::run);
    }

    #[test]
    fn replies_of_directories() {
        replay("ldap", ldap::run);
    }

    #[test]
    fn replies_of_radius_servers() {
        replay("radius", radius::run);
    }

    #[test]
    fn responses_to_accounting() {
        replay("radius_accounting", radius_accounting::run);
    }

    #[test]
    fn requests_of_radius_servers() {
        replay("radius_dynamic", radius_dynamic::run);
    }

    #[test]
    fn messages_between_processes() {
        replay("privsep_message", privsep_message::run);
    }
}
