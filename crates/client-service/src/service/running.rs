//! A client that the service runs: its process, what it says, its end.
//!
//! Invariants: the process ends in order when its user, root or the service ends it, and when its
//! user's command goes away before it is connected; one that does not end is killed, and what it
//! leaves on the machine is undone. It changes the machine only in its turn, which a user's has
//! after the questions that need no gateway, and which the machine's own tunnel and other users
//! wait for: so it has to connect in time. Questions are answered by the command that has started
//! it, and not at all once that is gone.

mod process;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use minicbor::bytes::ByteVec;
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::tunnels::{LOGIN_LIMIT, TunnelId};
use super::{Service, machine};
use process::{Ending, Process};
use vpnd_client::frames::{self, FrameError, MAX_FROM_SERVICE};
use vpnd_client::user_messages::{
    Begin, FromClient, Login, Progress, Refused, ToClient, TunnelDetails, TunnelState, TunnelStatus, Typed,
};
use vpnd_ipc::spawn::THIS_PROGRAM;
use vpnd_proto::time::Time;
use vpnd_sys::clock::{now, wall_s};
use vpnd_sys::logging::LogFormat;
use vpnd_sys::text::harmless;

/// Time for a client's report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// Messages of a client, and for its user, that wait.
const QUEUE: usize = 16;
/// Names of the interfaces, before their numbers.
const INTERFACE: &str = "vpn";

/// The way to a running client, for any number of holders.
#[derive(Clone)]
pub(super) struct Handle {
    pub(super) profile: String,
    ending: Arc<watch::Sender<Option<Ending>>>,
    reports: mpsc::Sender<oneshot::Sender<TunnelDetails>>,
    over: watch::Receiver<bool>,
}

/// The ends that only the client's task holds.
pub(super) struct Ends {
    ending: watch::Receiver<Option<Ending>>,
    reports: mpsc::Receiver<oneshot::Sender<TunnelDetails>>,
    over: watch::Sender<bool>,
}

/// For the user's command, while the client connects.
#[derive(Debug)]
pub(super) enum Event {
    Progress(Progress),
    Connected,
    Over(Refused),
}

/// The user's command that has started a client.
pub(super) struct Attached {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) answers: mpsc::Receiver<Option<Typed>>,
}

/// The client to start, and its user.
pub(super) struct Plan {
    pub(super) id: TunnelId,
    pub(super) uid: u32,
    /// Whether the machine is the user.
    pub(super) is_machines: bool,
    /// The directory of what is kept for the user.
    pub(super) place: PathBuf,
    pub(super) profile: PathBuf,
    pub(super) login: Login,
}

/// Whether there is an interface of this number.
fn is_taken(number: usize) -> bool {
    Path::new(&format!("/sys/class/net/{INTERFACE}{number}")).exists()
}

/// The two sides of a client that is about to start.
pub(super) fn handle(profile: &str) -> (Handle, Ends) {
    let (end, ending) = watch::channel(None);
    let (reports, requested) = mpsc::channel(QUEUE);
    let (ended, over) = watch::channel(false);
    let handle = Handle { profile: profile.to_owned(), ending: Arc::new(end), reports, over };
    (handle, Ends { ending, reports: requested, over: ended })
}

impl Handle {
    /// Has it end because a person wishes so.
    pub(super) fn end(&self) {
        self.ending.send_replace(Some(Ending::Person));
    }

    /// Has it end because the service does.
    pub(super) fn leave(&self) {
        self.end_by(Ending::Service);
    }

    /// Has it end because a user's tunnel takes its place.
    pub(super) fn give_way(&self) {
        self.end_by(Ending::Another);
    }

    /// Has it end for this cause, unless another one came first.
    fn end_by(&self, cause: Ending) {
        self.ending.send_if_modified(|ending| ending.is_none() && ending.replace(cause).is_none());
    }

    /// Whether it ends, or has ended, because of one of these.
    pub(super) fn is_asked_to_end(&self) -> bool {
        self.ending.borrow().is_some()
    }

    /// Waits until it has ended.
    pub(super) async fn over(&mut self) {
        // An error is that its task is gone.
        let _ = self.over.wait_for(|over| *over).await;
    }

    /// The settings in force; `None` if the client does not report them in time.
    pub(super) async fn report(&self) -> Option<TunnelDetails> {
        let (reply, report) = oneshot::channel();
        self.reports.try_send(reply).ok()?;
        timeout(REPORT_TIMEOUT, report).await.ok()?.ok()
    }

    /// `status` with the settings in force, if it is connected and reports them.
    pub(super) async fn detailed(&self, status: TunnelStatus) -> TunnelStatus {
        let details = match status.state {
            TunnelState::Connected => self.report().await,
            TunnelState::Connecting | TunnelState::Ended => None,
        };
        TunnelStatus { details, ..status }
    }
}

/// Starts the client; its task sees to all else. Without a user's command no question is answered.
///
/// # Errors
/// If the process can't be started.
pub(super) fn start(
    service: &Arc<Service>,
    plan: Plan,
    ends: Ends,
    attached: Option<Attached>,
) -> io::Result<()> {
    let (ours, theirs) = StdStream::pair()?;
    let child = command(service, theirs).spawn()?;
    let (reader, writer) = frames::split_std(ours, MAX_FROM_SERVICE)?;
    let Plan { id, uid, is_machines, place, profile, login } = plan;
    let bytes = |path: PathBuf| ByteVec::from(path.into_os_string().into_vec());
    // A user's key is good for that user alone.
    let begin = Begin { login, uid, profile: bytes(profile), state_dir: bytes(place) };
    let client = RunningClient {
        service: Arc::clone(service),
        id,
        uid,
        is_machines,
        has_connected: false,
        keeps_machines_down: None,
        process: Process::new(child, reader, writer),
        attached,
        ends,
        waiting: Vec::new(),
    };
    let mut clients = service.clients();
    while clients.try_join_next().is_some() {}
    clients.spawn(client.run(begin));
    Ok(())
}

fn command(service: &Service, channel: StdStream) -> Command {
    let args = &service.args;
    let mut command = Command::new(THIS_PROGRAM);
    // Its profile and user come by the channel.
    command.arg0("vpnd").args(["connect", "-", "--for-service"]);
    let options = &args.options;
    command.arg("--journal-dir").arg(&options.journal_dir);
    if options.log_format == LogFormat::Json {
        command.args(["--log-format", "json"]);
    }
    command.arg(if options.verbose { "-vv" } else { "-v" });
    // The service manager's socket is for the service. A terminal's Ctrl-C is, too.
    command.env_remove("NOTIFY_SOCKET").process_group(0);
    command.stdin(Stdio::from(OwnedFd::from(channel))).stdout(Stdio::null());
    command
}

/// A client, as its task holds it.
struct RunningClient {
    service: Arc<Service>,
    id: TunnelId,
    uid: u32,
    is_machines: bool,
    has_connected: bool,
    /// Since when it keeps the machine's tunnel down, and when it has to be connected.
    keeps_machines_down: Option<(Time, Instant)>,
    process: Process,
    /// Until the client is connected.
    attached: Option<Attached>,
    ends: Ends,
    /// Those who wait for a report.
    waiting: Vec<oneshot::Sender<TunnelDetails>>,
}

impl RunningClient {
    async fn run(mut self, begin: Begin) {
        if let Err(error) = self.work(begin).await {
            tracing::error!(%error, "a client is lost");
        }
        let status = self.process.ended().await;
        if !status.is_some_and(|status| status.success())
            && let Err(error) = self.service.clean_up().await
        {
            tracing::error!(%error, "not all that a client left could be undone; `vpnd cleanup` tries again");
        }
        let (why, is_final) = self.process.reason(status);
        tracing::info!(uid = self.uid, "a client has ended: {why}");
        if let Some((since, _)) = self.keeps_machines_down {
            self.service.tunnels().rest_machines(since, now());
        }
        self.service.tunnels().yield_turn(self.id, now());
        self.service.tunnels().end(self.id, &why, wall_s());
        self.ends.over.send_replace(true);
        match (self.is_machines, self.has_connected) {
            (true, _) => {}
            (false, true) => self.service.machines_turn.has_come(),
            (false, false) => self.service.machines_turn.may_have_come(),
        }
        if let Some(attached) = &self.attached {
            let _ = attached.events.try_send(Event::Over(Refused { why, is_final }));
        }
    }

    /// Passes messages on until the client ends.
    async fn work(&mut self, begin: Begin) -> Result<(), FrameError> {
        self.process.send(&begin).await?;
        loop {
            let kill_at = self.process.kill_at();
            let due = self.keeps_machines_down.filter(|_| kill_at.is_none()).map(|(_, due)| due);
            tokio::select! {
                message = self.process.receive() => match message {
                    Some(message) => self.handle(message).await,
                    None => return Ok(()),
                },
                Ok(()) = self.ends.ending.changed() => {
                    let ending = *self.ends.ending.borrow();
                    self.process.end(ending.unwrap_or(Ending::Service)).await?;
                }
                Some(reply) = self.ends.reports.recv() => self.request_report(reply).await?,
                answer = answer(&mut self.attached), if self.attached.is_some() => match answer {
                    Some(answer) => self.process.send(&ToClient::Answer(answer)).await?,
                    // No command waits for this tunnel any more.
                    None => {
                        self.attached = None;
                        let ending = *self.ends.ending.borrow();
                        self.process.end(ending.unwrap_or(Ending::Unattended)).await?;
                    }
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.overdue().await?,
                () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => return Ok(()),
            }
        }
    }

    async fn handle(&mut self, message: FromClient) {
        match message {
            FromClient::State { state, said } => {
                let said = harmless(&said);
                self.service.tunnels().note(self.id, state, &said, wall_s());
                self.tell(Event::Progress(Progress::Line(said))).await;
                if state == TunnelState::Connected {
                    self.has_connected = true;
                    self.keeps_machines_down = None;
                    self.tell(Event::Connected).await;
                    self.attached = None;
                }
            }
            FromClient::Line(line) => {
                let line = harmless(&line);
                self.service.tunnels().say(self.id, &line, wall_s());
                self.tell(Event::Progress(Progress::Line(line))).await;
            }
            FromClient::Ask(ask) => {
                if self.attached.is_none() {
                    let _ = self.process.send(&ToClient::Answer(None)).await;
                }
                self.tell(Event::Progress(Progress::Ask(ask))).await;
            }
            FromClient::Browse(url) => self.tell(Event::Progress(Progress::Browse(url))).await,
            FromClient::Details(details) => {
                self.waiting.drain(..).for_each(|reply| drop(reply.send((*details).clone())));
            }
            FromClient::Ready => {
                let _ = self.begin_turn().await;
            }
            FromClient::Failed { why, is_final } => self.process.fail(harmless(&why), is_final),
        }
    }

    /// Lets the client change the machine, once the machine's own tunnel and others' logins that
    /// take too long have given way to it.
    async fn begin_turn(&mut self) -> Result<(), FrameError> {
        let (begun, late) = {
            let mut tunnels = self.service.tunnels();
            let begun = tunnels.begin_turn(self.id, now());
            let late: Vec<Handle> = tunnels.late_logins(self.id).filter(|_| begun.is_ok()).cloned().collect();
            (begun, late)
        };
        late.iter().for_each(Handle::give_way);
        for mut login in late {
            login.over().await;
        }
        if let Ok(since) = begun
            && !self.is_machines
        {
            let due = (since, Instant::now() + LOGIN_LIMIT);
            self.keeps_machines_down = machine::wanted(&self.service).filter(|_| self.uid != 0).map(|_| due);
            machine::give_way(&self.service).await;
        }
        let number = begun.and_then(|_| self.service.tunnels().take_number(self.id, is_taken));
        match number {
            Ok(number) => self.process.send(&ToClient::Turn(format!("{INTERFACE}{number}"))).await,
            Err(denied) => {
                self.process.fail(denied.to_string(), false);
                self.process.end(Ending::Another).await
            }
        }
    }

    /// The login takes too long while the machine's own tunnel is down.
    async fn overdue(&mut self) -> Result<(), FrameError> {
        let limit = LOGIN_LIMIT.as_secs();
        let reason =
            format!("it was not connected within {limit} s, for which this machine's own tunnel was down");
        self.process.fail(reason, false);
        self.process.end(Ending::Another).await
    }

    /// For the user's command, which may be gone.
    async fn tell(&mut self, event: Event) {
        if let Some(attached) = &self.attached {
            let _ = attached.events.send(event).await;
        }
    }

    async fn request_report(&mut self, reply: oneshot::Sender<TunnelDetails>) -> Result<(), FrameError> {
        self.waiting.retain(|waiting| !waiting.is_closed());
        // Those that come meanwhile get the same.
        let is_first = self.waiting.is_empty();
        self.waiting.push(reply);
        if is_first { self.process.send(&ToClient::Report).await } else { Ok(()) }
    }
}

/// The user's answer; `None` if the user's command is gone.
async fn answer(attached: &mut Option<Attached>) -> Option<Option<Typed>> {
    match attached {
        Some(attached) => attached.answers.recv().await,
        None => std::future::pending().await,
    }
}
