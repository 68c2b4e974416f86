//! `vpnd captive-portal`: has the network's login page opened on this user's screen, past a kill
//! switch or a full tunnel.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use vpnd_proto::control::Text;
use zeroize::Zeroizing;

use super::{ServiceClient, reply_to, say};
use vpnd_client::user_messages::{DEFAULT_PORTAL_SOCKET, Lines, MAX_PORTAL_MINUTES, OpenPage, ServiceReply};
use vpnd_ipc::messages::SecretBytes;

/// The longest file by which a screen recognises its user, bytes.
const MAX_AUTHORITY: u64 = 32 << 10;

/// Arguments of `vpnd captive-portal`.
#[derive(Args, Debug)]
pub struct OpenPortalArgs {
    /// The longest time for which the browser is open
    #[arg(long, default_value_t = MAX_PORTAL_MINUTES, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_PORTAL_MINUTES)))]
    pub minutes: u8,
    /// The socket of the service for captive portals
    #[arg(long, default_value = DEFAULT_PORTAL_SOCKET, value_name = "P")]
    pub socket: PathBuf,
}

/// `vpnd captive-portal`: waits until the browser is closed.
///
/// # Errors
/// The reason for which none is opened.
pub async fn captive_portal(args: &OpenPortalArgs) -> anyhow::Result<()> {
    let display = std::env::var("DISPLAY").unwrap_or_default();
    let Ok(display) = Text::new(&display) else {
        bail!("a browser opens on a screen of this machine alone (DISPLAY=:0)")
    };
    let authority = SecretBytes(authority().context("the words for this screen can't be read")?);
    let request = OpenPage { minutes: args.minutes, display, authority };
    request.check()?;
    ensure!(
        args.socket.exists(),
        "no service opens login pages here: an administrator permits it (`systemctl enable --now vpnd-captive-portal`); or end \
         kill switch and tunnel (`vpnd down`), log in to the network, then connect again"
    );
    let mut service = ServiceClient::connect(&args.socket).await?;
    service.send(request).await;
    loop {
        match service.receive().await? {
            ServiceReply::Line(line) => say(&line)?,
            reply => {
                let Lines(lines) = reply_to::<OpenPage>(reply)?;
                return Ok(lines.iter().try_for_each(|line| say(line))?);
            }
        }
    }
}

/// The words by which the screen recognises its user; none if there is no such file.
fn authority() -> io::Result<Zeroizing<Vec<u8>>> {
    let named = std::env::var_os("XAUTHORITY").map(PathBuf::from);
    let usual = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".Xauthority"));
    let mut bytes = Zeroizing::new(Vec::new());
    let file = match named.or_else(usual).map(File::open) {
        None => return Ok(bytes),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(bytes),
        Some(opened) => opened?,
    };
    file.take(MAX_AUTHORITY).read_to_end(&mut bytes)?;
    Ok(bytes)
}
