//! A browser that gets past kill switch and full tunnel, and how that ends.
//!
//! INVARIANT: whatever fails while it opens, what has opened is closed again. The rules of its
//! routes are in the undo journal; alone they open nothing, and no process is left to which they
//! apply.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::Service;
use vpnd_client::frames::Reader;
use vpnd_client::user_messages::OpenPage;
use vpnd_journal::{Journal, JournalDirectory, tunnels};
use vpnd_sys::account::UnixUser;
use vpnd_sys::browser;
use vpnd_sys::change::{Change, Layer};
use vpnd_sys::dns::{DnsSystem, servers_beyond};
use vpnd_sys::netlink::{Family, MAIN_TABLE, Netlink, RuleMatch, RuleSpec};
use vpnd_sys::nft::KillSwitchRules;
use vpnd_sys::process::boottime;

/// Time for the kernel to end the browser and all that it has started.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of looks whether it is still needed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Files, by the user's name behind them, by which the machine runs processes of a user who is not
/// there, and how root removes them.
const FOOTHOLDS: [(&str, &str); 4] = [
    ("var/lib/systemd/linger", "loginctl disable-linger"),
    ("var/spool/cron/crontabs", "crontab -r -u"),
    ("var/spool/cron/tabs", "crontab -r -u"),
    ("var/spool/cron", "crontab -r -u"),
];
/// Begins the state of a tunnel that is connected, behind its name.
const CONNECTED: &str = ": connected";

/// One that is open.
pub(super) struct Window {
    user: UnixUser,
    journals: JournalDirectory,
    netlink: Netlink,
    journal: Journal,
    /// Whether it is a kill switch that it gets past.
    passes: bool,
    browser: Option<Child>,
    /// The file by which it finds the screen.
    authority: PathBuf,
    end: Instant,
    /// Its end by the clock that goes on while the machine sleeps.
    end_by_boottime: Duration,
}

impl Window {
    /// Opens it for this time.
    ///
    /// # Errors
    /// If it can't be opened or there is nothing to get past, in words for the user.
    pub(super) async fn open(service: &Service, request: &OpenPage, time: Duration) -> anyhow::Result<Self> {
        let tunnels = tunnels::states(&service.journals)?;
        if let Some(tunnel) = tunnels.iter().find(|state| state.contains(CONNECTED)) {
            bail!(
                "no login page is in the way: {tunnel}. If it has just been lost, try again in half a minute"
            );
        }
        let place = service.args.socket.parent().context("the socket has no directory")?.to_owned();
        let mut window = Self {
            user: service.user.clone(),
            journals: service.journals.try_clone()?,
            netlink: Netlink::open()?,
            journal: Journal::create(&service.journals)?,
            passes: false,
            browser: None,
            authority: place.join("xauthority"),
            end: Instant::now() + time,
            end_by_boottime: boottime() + time,
        };
        let begun = window.begin(service, request, (&place, time), !tunnels.is_empty()).await;
        if let Err(error) = begun {
            window.close().await;
            return Err(error);
        }
        Ok(window)
    }

    async fn begin(
        &mut self,
        service: &Service,
        request: &OpenPage,
        (place, time): (&Path, Duration),
        has_tunnel: bool,
    ) -> anyhow::Result<()> {
        let (program, arguments) = service.browser()?;
        check_footholds(Path::new("/"), &service.args.user)?;
        let resolv_conf = place.join("resolv.conf");
        write_name_servers(&resolv_conf)?;
        let home = make_home(place)?;
        // A process that a killed service has left could read the next person's words.
        browser::end_all(&self.user)?;
        self.write_authority(request)?;
        self.passes = KillSwitchRules::open_for(self.user.uid(), time).await?;
        ensure!(
            self.passes || has_tunnel,
            "there is neither a kill switch nor a tunnel: open the network's login page in any browser"
        );
        for family in [Family::V4, Family::V6] {
            let added = self.journal.apply(&self.netlink, way_out(family, self.user.uid())).await;
            // A kernel may be without IPv6.
            if family == Family::V4 {
                added?;
            }
        }
        let mut command = browser::command(&program, &self.user, &resolv_conf, &home)
            .with_context(|| format!("{} can't be started", program.display()))?;
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8");
        command.env("HOME", &home).env("XDG_RUNTIME_DIR", &home).env("TMPDIR", &home);
        command.env("DISPLAY", &*request.display).env("XAUTHORITY", &self.authority);
        command.args(arguments).arg(&service.args.page);
        let mut command = Command::from(command);
        command.process_group(0).kill_on_drop(true);
        let started = browser::start(|| command.spawn());
        self.browser = Some(started.with_context(|| format!("{} can't be started", program.display()))?);
        Ok(())
    }

    /// Waits for its end; why it is over, for people.
    pub(super) async fn hold(&mut self, reader: &mut Reader, mut stop: watch::Receiver<bool>) -> String {
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Whatever else it sends, it is a command that does not know what to do.
        let gone = reader.next::<OpenPage>();
        tokio::pin!(gone);
        loop {
            let browser = self.browser.as_mut().expect("it was started");
            tokio::select! {
                _ = browser.wait() => return "it has ended".to_owned(),
                _ = &mut gone => return "the command has ended".to_owned(),
                _ = stop.changed() => return "the service ends".to_owned(),
                () = sleep_until(self.end) => return "the time is over".to_owned(),
                _ = looks.tick() => {
                    if let Some(why) = self.is_over().await {
                        return why;
                    }
                }
            }
        }
    }

    /// The reason why it has to end now.
    async fn is_over(&self) -> Option<String> {
        if boottime() >= self.end_by_boottime {
            return Some("the time is over".to_owned());
        }
        let tunnels = tunnels::states(&self.journals).unwrap_or_default();
        if let Some(tunnel) = tunnels.iter().find(|state| state.contains(CONNECTED)) {
            return Some(tunnel.clone());
        }
        match self.passes {
            true if !self.is_open().await => Some("the kill switch has ended: use any browser".to_owned()),
            false if tunnels.is_empty() => {
                Some("no tunnel is in the way any more: use any browser".to_owned())
            }
            _ => None,
        }
    }

    /// Whether the kill switch passes the browser. One that was put in force again meanwhile is
    /// opened again, for the rest of the time.
    async fn is_open(&self) -> bool {
        let user = self.user.uid();
        let left = self.end.saturating_duration_since(Instant::now());
        // A failed look is no reason to end: the next one follows soon.
        !matches!(KillSwitchRules::is_open_for(user).await, Ok(false))
            || left < LOOK_INTERVAL
            || !matches!(KillSwitchRules::open_for(user, left).await, Ok(false))
    }

    /// Closes all that is open.
    pub(super) async fn close(self) {
        if let Err(error) = KillSwitchRules::end_opening().await {
            tracing::error!(%error, "the kill switch is still open for the browser's user, until the kernel ends that");
        }
        if let Some(mut browser) = self.browser {
            // All processes that it has started end with it, before this returns.
            if timeout(KILL_TIMEOUT, browser.kill()).await.is_err() {
                tracing::error!("the browser's processes don't end");
            }
        }
        if let Err(error) = browser::end_all(&self.user) {
            tracing::error!(%error, "the browser can't be ended");
        }
        let report = self.journal.undo_all(&self.netlink).await;
        for error in &report.failed {
            tracing::error!(%error, "what was changed for the browser is not undone; 'vpnd cleanup' tries again");
        }
        let _ = fs::remove_file(&self.authority);
    }

    /// Puts the words by which the screen recognises its user where only the browser reads them.
    fn write_authority(&self, request: &OpenPage) -> io::Result<()> {
        remove(&self.authority)?;
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.authority)?;
        file.write_all(&request.authority.0)?;
        chown(&self.authority, Some(self.user.uid()), Some(self.user.gid()))
    }
}

/// The rule by which its packets go where they would without a tunnel, before those of all tunnels.
fn way_out(family: Family, user: u32) -> Change {
    let newest = Layer::all().last().expect("there are layers");
    let (priority, matches) = (newest.priority(Layer::LOOKUP_RULE), RuleMatch::User(user));
    Change::Rule(RuleSpec { family, priority, matches, table: MAIN_TABLE })
}

/// # Errors
/// If the machine in `root` runs processes of this user without a browser, in words for the user.
fn check_footholds(root: &Path, user: &str) -> anyhow::Result<()> {
    for (directory, remedy) in FOOTHOLDS {
        let file = root.join(directory).join(user);
        ensure!(
            file.symlink_metadata().is_err(),
            "{} lets processes of '{user}' outlast the browser: an administrator ends that (`{remedy} {user}`), and looks for the cause",
            file.display()
        );
    }
    Ok(())
}

/// Writes down the name servers of this network, which a resolver of this machine can't ask.
fn write_name_servers(path: &Path) -> anyhow::Result<()> {
    let servers = servers_beyond(&DnsSystem::default());
    ensure!(
        !servers.is_empty(),
        "no name server of this network is known (resolv.conf): is the machine connected to a network?"
    );
    let line = |(address, scope): &(_, Option<String>)| match scope {
        Some(scope) => format!("nameserver {address}%{scope}\n"),
        None => format!("nameserver {address}\n"),
    };
    let text: String = servers.iter().map(line).collect();
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o644))?)
}

/// An empty directory of root's, in whose place the browser finds its own.
fn make_home(place: &Path) -> io::Result<PathBuf> {
    fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
    let home = place.join("home");
    match fs::create_dir(&home) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    Ok(home)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_window_opens_for_a_user_whose_processes_stay() {
        let root = tempfile::tempdir().unwrap();
        let check = || check_footholds(root.path(), "vpnd-browser").map_err(|error| error.to_string());
        assert_eq!(check(), Ok(()));
        for (directory, remedy) in FOOTHOLDS {
            let directory = root.path().join(directory);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("ann"), "").unwrap();
            assert_eq!(check(), Ok(()), "another user's");
            let file = directory.join("vpnd-browser");
            fs::write(&file, "").unwrap();
            let refusal = check().unwrap_err();
            assert!(refusal.contains(remedy) && refusal.contains(file.to_str().unwrap()), "{refusal}");
            fs::remove_file(file).unwrap();
        }
    }
}
