//! Arguments of `vpnd audit`.

use clap::{Args, Subcommand, ValueEnum};

use super::StoreArgs;
use vpnd_store::audit::whois::Asked;
use vpnd_sys::date::Moment;

/// The commands of `vpnd audit`.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Show who had an address, or a port of a public address, at a time. Exit code 0: found, 1: no
    /// client is on record, or it can't be determined
    Whois(AuditWhoisArgs),
    /// Write what is recorded about a time: sessions, outer addresses, logins, what administrators
    /// did, gaps
    Export(AuditExportArgs),
}

/// Arguments of `vpnd audit whois`.
#[derive(Args, Debug)]
pub struct AuditWhoisArgs {
    /// The address as the other side has seen it: 10.86.0.7, fd00::7, or with a port
    /// 198.51.100.1:40123, [fd00::7]:443. Or a client's outer address, with its port
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub address: Asked,
    /// When, such as 2027-01-31T12:00:00Z, 2027-01-31T13:00:00+01:00, or by this machine's clock
    /// '2027-01-31 13:00'
    #[arg(long, value_name = "TIME")]
    pub at: Moment,
    /// Why this is asked, such as the number of a complaint. It is recorded with the question
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Ask all gateways of the fleet
    #[arg(long)]
    pub fleet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A line for each record, with a header.
    Csv,
    /// A list of objects.
    Json,
}

/// Arguments of `vpnd audit export`.
#[derive(Args, Debug)]
pub struct AuditExportArgs {
    /// The beginning, as for 'whois'
    #[arg(long, value_name = "TIME")]
    pub from: Moment,
    /// The end
    #[arg(long, value_name = "TIME")]
    pub to: Moment,
    /// Only what is recorded of this user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Format of the output
    #[arg(long, value_enum, default_value = "csv")]
    pub format: ExportFormat,
    /// Why this is exported. It is recorded
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at the type")]
    pub store: StoreArgs,
}
