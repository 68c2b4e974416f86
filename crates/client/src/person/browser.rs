//! The browser in which a person logs in: where it comes back to, who runs it, and what a person
//! with a browser elsewhere needs.
//!
//! Invariants: nothing of it runs as root: the page is opened as the person who has called sudo,
//! and only shown to anybody else. What the browser brings back is read by the worker, which has no
//! privilege. Address and code come from the worker, so they are checked here: an https address
//! without a character that a terminal, a shell or a program could take for something else, and
//! capital letters.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;

use tokio::process::Command;

use crate::messages::{Browse, BrowserWay};
use vpnd_sys::account::{self, Person};
use vpnd_sys::logging::NEWS;

/// The program that opens a page on a desktop.
const OPENER: &str = "xdg-open";
/// Search path of that program, whatever root's environment.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Variables that name a screen.
const SCREENS: [&str; 2] = ["DISPLAY", "WAYLAND_DISPLAY"];
/// The variables by which a program finds the person's screen.
const SCREEN: [&str; 3] = ["DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"];

/// A socket for the browser, and its port.
pub(crate) fn listener() -> io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Whether this process can have a browser opened: not over ssh, as a rule.
#[must_use]
pub fn has_screen() -> bool {
    SCREENS.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// The name of this machine, as the page shows it.
pub(crate) fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The line for a person whose browser is elsewhere, if it is.
///
/// # Errors
/// If there is no page, or no code, to be shown.
pub(crate) fn advice(page: &Browse) -> Result<Option<String>, String> {
    check(&page.url)?;
    match &page.way {
        BrowserWay::Port { lacks_code: false, .. } => Ok(None),
        BrowserWay::Port { port, .. } => Ok(Some(format!(
            "this machine has no screen, and the gateway gives no short codes: run 'ssh -L {port}:127.0.0.1:{port}' to \
             this machine from one with a browser and open the page there, or ask the administrator for 'short_codes'"
        ))),
        BrowserWay::Code { code, .. } if !is_code(code) => Err("the short code is not valid".to_owned()),
        BrowserWay::Code { code, from, time_s } => Ok(Some(format!(
            "log in on any device: open {} and type {} there within {} minutes; say yes only if that page names '{}' at {}",
            page.url,
            code,
            time_s.div_ceil(60),
            vpnd_sys::text::harmless(&machine()),
            from.0
        ))),
    }
}

fn is_code(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_uppercase() || c == '-')
}

/// Shows the page, and opens it if there is a person with a screen.
///
/// # Errors
/// If that is no address of a page.
pub(crate) fn show(url: &str) -> Result<(), String> {
    check(url)?;
    tracing::info!(target: NEWS, "log in in a browser on this machine: {url}");
    let screen = SCREEN.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?)));
    let screen: Vec<_> = screen.collect();
    match account::behind_sudo() {
        Some(person) if has_screen() => {
            if let Err(error) = command(OPENER, url, &person, &screen).spawn() {
                tracing::info!(%error, "the page is not opened by itself: {OPENER} does not run");
            }
        }
        _ => tracing::debug!("the page is not opened by itself: no person with a screen has called sudo"),
    }
    Ok(())
}

/// Checks the address of a page.
///
/// # Errors
/// If it is none.
pub fn check(url: &str) -> Result<(), String> {
    if is_page(url) { Ok(()) } else { Err("the login page's address is not valid".to_owned()) }
}

fn is_page(url: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/?=&%[]".contains(c);
    url.strip_prefix("https://").is_some_and(|rest| !rest.is_empty() && rest.chars().all(is_plain))
}

fn command(program: &str, url: &str, person: &Person, screen: &[(&str, String)]) -> Command {
    let runtime = format!("/run/user/{}", person.uid);
    let mut command = Command::new(program);
    // Leaves all groups of root, too.
    command.uid(person.uid).gid(person.gid).process_group(0).current_dir("/");
    command.env_clear().env("PATH", SEARCH_PATH).env("HOME", &person.home).env("USER", &person.name);
    command.env("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={runtime}/bus"));
    command.env("XDG_RUNTIME_DIR", runtime).envs(screen.iter().map(|(name, value)| (name, value)));
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use vpnd_proto::control::{AsText, Text};

    use super::*;

    #[test]
    fn nothing_but_the_address_of_a_page_is_shown() {
        assert!(is_page("https://vpn.uni.example/connect/aB-_9") && is_page("https://[2001:db8::1]:8443/"));
        for wrong in [
            "",
            "https://",
            "http://vpn.uni.example/",
            "file:///etc/shadow",
            "--help",
            "https://a.example/\n",
            "https://a.example/\u{1b}[2J",
            "https://a.example/$(id)",
            "https://a.example/ b",
            "https://a@b.example/",
        ] {
            assert!(!is_page(wrong) && show(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_short_code_and_its_comparison_are_printed() {
        let shown = |url: &str, code: &str| {
            let (code, from) = (Text::cut(code), AsText([192, 0, 2, 1].into()));
            let way = BrowserWay::Code { code, from, time_s: 590 };
            advice(&Browse { url: Text::cut(url), way })
        };
        let line = shown("https://vpn.uni.example/code", "WDJB-MJHT").unwrap().unwrap();
        for part in ["https://vpn.uni.example/code", "WDJB-MJHT", "10 minutes", &machine(), "192.0.2.1"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(shown("http://vpn.uni.example/code", "WDJB-MJHT").is_err());
        for wrong in ["", "wdjb", "WDJB\u{1b}[2J", "A; B"] {
            assert!(shown("https://vpn.uni.example/code", wrong).is_err(), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn a_browser_is_opened_as_the_user_without_roots_environment() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can become another user");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let (opener, seen) = (directory.path().join("opener"), directory.path().join("seen"));
        let script = format!(
            "#!/bin/sh\n(id -u; id -G; grep CapEff /proc/self/status; env; echo \"$1\") > {}\n",
            seen.display()
        );
        std::fs::write(&opener, script).unwrap();
        for (path, mode) in [(directory.path(), 0o777), (opener.as_path(), 0o755)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let person =
            Person { uid: 65_533, gid: 65_532, name: "ann".to_owned(), home: "/nonexistent".to_owned() };
        let url = "https://vpn.uni.example/connect/a";
        let screen = [("DISPLAY", ":0".to_owned())];
        let mut opened = command(opener.to_str().unwrap(), url, &person, &screen).spawn().unwrap();
        assert!(opened.wait().await.unwrap().success());
        let seen = std::fs::read_to_string(seen).unwrap();
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(lines[..3], ["65533", "65532", "CapEff:\t0000000000000000"], "{seen}");
        assert!(lines.contains(&"HOME=/nonexistent") && lines.contains(&"DISPLAY=:0"), "{seen}");
        assert!(lines.last() == Some(&url) && !seen.contains("CARGO"), "{seen}");
    }

    #[test]
    fn the_socket_is_on_this_machine_alone() {
        let (listener, port) = listener().unwrap();
        let address = listener.local_addr().unwrap();
        assert!(address.ip().is_loopback() && address.port() == port && port >= 1_024, "{address}");
    }
}
