//! The processes that a laboratory starts from its own program: agents, programs in namespaces,
//! load on the CPU.
//!
//! Every program that builds laboratories takes these commands, hidden from its user.

use std::ffi::OsString;
use std::io::{BufReader, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::bail;
use clap::Subcommand;

use crate::coordinate::agent::Agent;
use crate::coordinate::agent::blocks::BlockPermission;
use crate::coordinate::serve;
use crate::experiment::hog;
use crate::lab::namespace::Namespace;
use crate::lab::{cpu_limit, enter};
use crate::line::{LineReader, LineWriter};
use crate::load::block::place::Place;
use crate::terminal;

/// A process that this program starts of itself.
#[derive(Debug, Subcommand)]
pub enum OwnProcess {
    /// A process that wants the whole CPU (used by the program itself).
    #[command(hide = true)]
    Hog {
        /// The process that started it.
        #[arg(long)]
        parent: u32,
        /// When it ends, whatever happens.
        #[arg(long)]
        seconds: f64,
    },
    /// The generator of one lab client (used by the program itself).
    #[command(hide = true)]
    Agent {
        /// The process that started it.
        #[arg(long)]
        parent: u32,
        /// The namespace to work in.
        #[arg(long)]
        netns: Option<String>,
        /// The file or device that blocks are written to; its contents are lost.
        #[arg(long)]
        block_place: Option<PathBuf>,
    },
    /// Run a program in a lab namespace (used by the program itself).
    #[command(hide = true)]
    Inside {
        /// The process that started it.
        #[arg(long)]
        parent: u32,
        /// A directory, and where the program sees it; may be given again.
        #[arg(long, num_args = 2, value_names = ["OWN", "SEEN_AS"])]
        private: Vec<PathBuf>,
        /// The namespace.
        namespace: String,
        /// Program and arguments.
        #[arg(last = true, required = true)]
        words: Vec<OsString>,
    },
}

impl OwnProcess {
    /// Is that process until it ends.
    ///
    /// # Errors
    /// It can't begin, or a generator failed.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Hog { parent, seconds } => {
                terminal::print(&format!("{}\n", hog::run(parent, Duration::try_from_secs_f64(seconds)?)?));
                Ok(ExitCode::SUCCESS)
            }
            Self::Agent { parent, netns, block_place } => {
                agent(parent, netns.as_deref(), block_place.as_deref())
            }
            Self::Inside { parent, private, namespace, words } => {
                Err(enter::exec_inside(parent, &namespace, &private, &words).into())
            }
        }
    }
}

fn agent(parent: u32, netns: Option<&str>, block_place: Option<&Path>) -> anyhow::Result<ExitCode> {
    enter::end_with_parent(parent)?;
    if let Some(name) = netns {
        if block_place.is_some() {
            cpu_limit::join(name)?;
        }
        // Threads that are started from here on inherit the namespace.
        Namespace::unmade(name).enter()?;
    }
    let (commands, inbox) = channel();
    let (outbox, reports) = channel();
    std::thread::spawn(move || {
        serve::take_commands(LineReader::new(BufReader::new(stdin()), None), &commands);
    });
    let permission = Arc::new(BlockPermission::in_lab(block_place.map(Place::ready).transpose()?));
    let agent = Agent::new(inbox, outbox).with_block_permission(permission);
    let working = std::thread::spawn(move || agent.run());
    serve::give_reports(&reports, &mut LineWriter::new(stdout(), None));
    if working.join().is_err() {
        bail!("the generator failed; see above");
    }
    Ok(ExitCode::SUCCESS)
}
