//! Options that the command lines of both services have.

use std::path::PathBuf;

use clap::Args;
use vpnd_client::user_messages::DEFAULT_GROUP;
use vpnd_config::JOURNAL_DIRECTORY;
use vpnd_sys::logging::LogFormat;

/// Options of each service.
#[derive(Args, Clone, Debug)]
pub struct ServiceOptions {
    /// The group whose members may connect; without such a group only root may
    #[arg(long, default_value = DEFAULT_GROUP, value_name = "NAME")]
    pub group: String,
    /// Directory of the journal of changes to this machine; only this user may write there
    #[arg(long, default_value = JOURNAL_DIRECTORY, value_name = "D")]
    pub journal_dir: PathBuf,
    /// Format of log lines
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Log more, for developers
    #[arg(short, long)]
    pub verbose: bool,
}
