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

/// The longest file by which screens recognise their user, bytes.
const MAX_AUTHORITY: u64 = 256 << 10;
/// Families of addresses in it (Xauth(3)): a machine by its name, and any machine.
const LOCAL: u16 = 256;
const WILD: u16 = 65_535;

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
    let none = SecretBytes(Zeroizing::default());
    let mut request = OpenPage { minutes: args.minutes, display, authority: none };
    request.check()?;
    let words = authority(&request.display).context("the words for this screen can't be read")?;
    request.authority = SecretBytes(words);
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

/// The words by which this screen recognises its user, and no other; none if there is no such file.
fn authority(display: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let named = std::env::var_os("XAUTHORITY").map(PathBuf::from);
    let usual = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".Xauthority"));
    let Some(path) = named.or_else(usual) else { return Ok(Zeroizing::default()) };
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Zeroizing::default()),
        opened => opened?,
    };
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MAX_AUTHORITY).read_to_end(&mut bytes)?;
    let words = entries_of(display, rustix::system::uname().nodename().to_bytes(), &bytes);
    ensure!(
        bytes.is_empty() || !words.is_empty(),
        "{} has no entry for {display} (`xauth list`); for a screen that needs none set XAUTHORITY=/dev/null",
        path.display()
    );
    Ok(words)
}

/// The entries of a file for a display of the machine `host`: the others are for other screens.
fn entries_of(display: &str, host: &[u8], file: &[u8]) -> Zeroizing<Vec<u8>> {
    let display = display.strip_prefix(':').unwrap_or(display);
    let display = display.split('.').next().unwrap_or_default().as_bytes();
    // With its full size at once: growing would leave a copy behind.
    let mut entries = Zeroizing::new(Vec::with_capacity(file.len()));
    let mut rest = file;
    while let Some(Entry { family, address, number, bytes }) = entry(&mut rest) {
        let is_of_host = family == WILD || family == LOCAL && address == host;
        // One without a number is for all displays.
        if is_of_host && (number.is_empty() || number == display) {
            entries.extend_from_slice(bytes);
        }
    }
    entries
}

/// An entry of such a file, as far as it says for which screen it is.
struct Entry<'f> {
    family: u16,
    address: &'f [u8],
    number: &'f [u8],
    bytes: &'f [u8],
}

/// Takes the next entry; `None` at the end, or where the file is damaged.
fn entry<'f>(rest: &mut &'f [u8]) -> Option<Entry<'f>> {
    let all = *rest;
    let family = short(rest)?;
    let (address, number) = (counted(rest)?, counted(rest)?);
    let (_kind, _secret) = (counted(rest)?, counted(rest)?);
    Some(Entry { family, address, number, bytes: &all[..all.len() - rest.len()] })
}

fn counted<'f>(rest: &mut &'f [u8]) -> Option<&'f [u8]> {
    let len = short(rest)?;
    let (bytes, after) = rest.split_at_checked(len.into())?;
    *rest = after;
    Some(bytes)
}

fn short(rest: &mut &[u8]) -> Option<u16> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(family: u16, address: &str, number: &str, secret: &str) -> Vec<u8> {
        let mut bytes = family.to_be_bytes().to_vec();
        for field in [address, number, "MIT-MAGIC-COOKIE-1", secret] {
            bytes.extend(u16::try_from(field.len()).unwrap().to_be_bytes());
            bytes.extend(field.as_bytes());
        }
        bytes
    }

    #[test]
    fn only_the_words_for_this_screen_are_sent() {
        let fitting = [made(LOCAL, "desk", "0", "a"), made(WILD, "", "0", "b"), made(WILD, "", "", "c")];
        let others = [
            made(LOCAL, "desk", "10", "d"),
            made(LOCAL, "server", "0", "e"),
            made(0, "\u{1}\u{2}\u{3}\u{4}", "0", "f"),
            made(WILD, "", "1", "g"),
        ];
        let file = [&fitting[..2].concat()[..], &others.concat(), &fitting[2]].concat();
        for display in [":0", ":0.0", ":0.1"] {
            assert_eq!(*entries_of(display, b"desk", &file), fitting.concat(), "{display}");
        }
        assert_eq!(*entries_of(":10", b"desk", &others.concat()), others[0]);
        assert!(entries_of(":2", b"desk", &others.concat()).is_empty());
        // A file that is cut holds what is whole.
        let whole = fitting[0].len();
        for len in whole..whole + fitting[1].len() {
            assert_eq!(*entries_of(":0", b"desk", &file[..len]), fitting[0], "{len}");
        }
    }
}
