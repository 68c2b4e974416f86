//! The service that opens the login page of a network (captive portal, RFC 8952) past a kill switch
//! or a full tunnel: in a browser that belongs to no person, for some minutes.
//!
//! INVARIANT: what opens is for the processes of one user alone, who is no person's and runs
//! nothing but this browser. It ends with the browser, the command that has asked for it, the kill
//! switch, this service, a tunnel that is connected, or the time; that of the kill switch ends in
//! the kernel even if no process is left. Each member of the group may open it: the administrator
//! permits that by starting this service. One is open at a time, and none of its processes meets
//! those of the next, which have the same user: all are in a PID namespace whose init is the
//! browser, so the kernel kills them with it, before the next one starts.

mod window;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::members::{Admission, Members};
use crate::options::ServiceOptions;
use crate::user_socket::{REFUSAL_INTERVAL, accepted, listen};
use vpnd_client::frames::{self, MAX_FROM_USER, Reader, Writer};
use vpnd_client::user_messages::{
    DEFAULT_PORTAL_SOCKET, Lines, MAX_PORTAL_MINUTES, OpenPage, Progress, Refused, Request, ServiceReply,
};
use vpnd_journal::JournalDirectory;
use vpnd_sys::account::{DEFAULT_USER, UnixUser};
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::netlink::Netlink;
use vpnd_sys::nft::KillSwitchRules;
use vpnd_sys::process::{self, Capability};
use vpnd_sys::{browser, service_manager};
use window::Window;

/// Time for a browser to end with the service.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit for a user's command to say what it is for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that a window is open, seconds.
const LONGEST_S: u64 = 60 * MAX_PORTAL_MINUTES as u64;
/// Browsers, the first that is there is taken.
const BROWSERS: [&str; 6] =
    ["chromium", "firefox-esr", "firefox", "google-chrome", "chromium-browser", "epiphany"];
/// Has Chromium ask nothing of the person or of others than the network's pages.
const CHROMIUM: &[&str] = &[
    "--no-first-run",
    "--password-store=basic",
    "--disable-background-networking",
    "--disable-component-update",
];
/// Where they are looked for.
const PROGRAMS: [&str; 2] = ["/usr/local/bin", "/usr/bin"];
/// A page without TLS, in whose place such a network shows its own.
const PAGE: &str = "http://network-test.debian.org/nm";

/// Arguments of `vpnd captive-portal-service`.
#[derive(Args, Clone, Debug)]
pub struct CaptivePortalArgs {
    /// Socket on which users' commands arrive; the browser's files are in the same directory
    #[arg(long, default_value = DEFAULT_PORTAL_SOCKET, value_name = "P")]
    pub socket: PathBuf,
    /// The user that the browser runs as, and nothing else
    #[arg(long, default_value = "vpnd-browser", value_name = "NAME")]
    pub user: String,
    /// The browser, which gets the page's address as its last argument [default: chromium, Firefox
    /// or another]
    #[arg(long, value_name = "PROGRAM")]
    pub browser: Option<PathBuf>,
    /// The page that it opens; one without TLS
    #[arg(long, default_value = PAGE, value_name = "URL")]
    pub page: String,
    /// The longest time for which it is open
    #[arg(long, default_value_t = LONGEST_S, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=LONGEST_S))]
    pub longest: u64,
    #[command(flatten)]
    pub options: ServiceOptions,
}

/// State that all conversations share.
struct Service {
    args: CaptivePortalArgs,
    user: UnixUser,
    members: Members,
    journals: JournalDirectory,
    /// Held while a window is open.
    turn: Mutex<()>,
    /// Lines about users who were refused.
    refusals: LogLimit,
    stop: watch::Receiver<bool>,
}

/// Runs it until it gets SIGTERM or SIGINT.
///
/// # Errors
/// The failure and a remedy, for the log.
pub async fn run(args: CaptivePortalArgs) -> anyhow::Result<()> {
    process::require(Capability::NetAdmin)?;
    process::forbid_core_dumps()?;
    ensure!(
        args.user != DEFAULT_USER,
        "the browser can't be '{DEFAULT_USER}', as whom other processes run: name a user that is for nothing else"
    );
    let user = UnixUser::of(&args.user)?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let members = Members::of(&args.options.group)?;
    let journals = JournalDirectory::create(&args.options.journal_dir)?;
    let listener = listen(&args.socket, members.group())?;
    end_what_was_left(&user, &journals).await?;
    let (stopping, stop) = watch::channel(false);
    let refusals = LogLimit::new(64, REFUSAL_INTERVAL);
    let turn = Mutex::new(());
    let service = Arc::new(Service { args, user, members, journals, turn, refusals, stop });
    tracing::info!(socket = %service.args.socket.display(), "users may connect");
    service_manager::ready("users may connect");
    let mut conversations = JoinSet::new();
    loop {
        while conversations.try_join_next().is_some() {}
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            stream = accepted(&listener) => {
                if let Some(admission) = stream.peer_cred().ok().and_then(|peer| service.admit(peer.uid())) {
                    conversations.spawn(hold(Arc::clone(&service), stream, admission));
                }
            }
        }
    }
    service_manager::stopping();
    stopping.send_replace(true);
    let all = async { while conversations.join_next().await.is_some() {} };
    if timeout(END_TIMEOUT, all).await.is_err() {
        tracing::warn!("a browser has not ended in time; the kernel closes what was open for it");
    }
    let _ = std::fs::remove_file(&service.args.socket);
    Ok(())
}

/// Closes what a service that was killed has left open.
async fn end_what_was_left(user: &UnixUser, journals: &JournalDirectory) -> anyhow::Result<()> {
    KillSwitchRules::end_opening().await?;
    browser::end_all(user).context("processes of the browser's user can't be ended")?;
    Ok(vpnd_journal::undo_what_was_left(journals, &Netlink::open()?).await?)
}

/// Answers a user's command.
async fn hold(service: Arc<Service>, stream: UnixStream, admission: Admission) {
    let (mut reader, mut writer) = frames::split(stream, MAX_FROM_USER);
    let uid = admission.uid();
    let reply = match service.open(uid, &mut reader, &mut writer).await {
        Ok(reply) => ServiceReply::from(reply),
        Err(error) => {
            let why = vpnd_sys::text::format_chain(&error);
            service.log_refusal(uid, &why);
            Refused { why, is_final: false }.into()
        }
    };
    // A command that is gone gets none.
    let _ = writer.send(&reply).await;
}

impl Service {
    fn admit(&self, uid: u32) -> Option<Admission> {
        self.members.admit(uid).map_err(|why| self.log_refusal(uid, &why.to_string())).ok()
    }

    fn log_refusal(&self, uid: u32, why: &str) {
        if self.refusals.admits() {
            tracing::warn!(uid, "refused: {why}");
        }
    }

    /// Opens the page for a user, and waits for its end; a line about that.
    async fn open(
        self: &Arc<Self>,
        uid: u32,
        reader: &mut Reader,
        writer: &mut Writer,
    ) -> anyhow::Result<<OpenPage as Request>::Reply> {
        let service = Arc::clone(self);
        // The machine's users may be far away.
        tokio::task::spawn_blocking(move || service.members.verify(uid)).await??;
        let request = timeout(REQUEST_TIMEOUT, reader.next::<OpenPage>()).await;
        let request = request.context("nothing was asked for")??.context("nothing was asked for")?;
        request.check()?;
        let Ok(_turn) = self.turn.try_lock() else {
            bail!("a login page is open already, for you or another user")
        };
        let time =
            Duration::from_secs(60 * u64::from(request.minutes)).min(Duration::from_secs(self.args.longest));
        let mut window = Window::open(self, &request, time).await?;
        tracing::info!(uid, s = time.as_secs(), "a user opens the network's login page in a browser");
        let line = format!(
            "the network's login page opens in a separate browser, for {} s at most; only that browser gets past kill switch \
             and tunnel. Close it, or press Ctrl-C, once you have logged in",
            time.as_secs()
        );
        // A command that is gone is noticed below.
        let _ = writer.send(&ServiceReply::from(Progress::Line(line))).await;
        let reason = window.hold(reader, self.stop.clone()).await;
        window.close().await;
        tracing::info!(uid, "the browser is closed: {reason}");
        Ok(Lines(vec![format!("the browser is closed: {reason}")]))
    }

    /// The browser's program, and its arguments before the page's address.
    fn browser(&self) -> anyhow::Result<(PathBuf, &'static [&'static str])> {
        let named = self.args.browser.clone();
        let installed = || BROWSERS.iter().flat_map(|name| PROGRAMS.map(|place| Path::new(place).join(name)));
        let program = named.or_else(|| installed().find(|path| path.exists()));
        let program = program.with_context(|| {
            format!(
                "no browser is installed where the service looks for one ({}); --browser names another",
                BROWSERS.join(", ")
            )
        })?;
        let is_chromium = program.file_name().is_some_and(|name| name.to_string_lossy().contains("chrom"));
        let arguments: &[&str] = if is_chromium { CHROMIUM } else { &[] };
        Ok((program, arguments))
    }
}
