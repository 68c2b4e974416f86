//! A user's command at the socket: its requests, and the replies.
//!
//! INVARIANT: what a plain user may do is decided before anything is done, and a refusal changes
//! nothing. Texts of profiles that can't be used are for root alone, since such a file may hold
//! secrets.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Service;
use super::machine;
use super::profiles::{Found, Listed, ProfileError, Profiles};
use super::running::{self, Attached, Event, Plan};
use super::tunnels::{Denied, TunnelId};
use crate::members::Admission;
use vpnd_client::frames::{self, FrameError, MAX_FROM_USER, Writer};
use vpnd_client::user_messages::{
    Down, FindGateway, Forget, Gateway, Import, Lines, List, ListedProfile, Log, Profiles as ProfileList,
    Progress, Refused, Request, ServiceReply, Status, TunnelState, Tunnels, Typed, Up, UserRequest,
};
use vpnd_config::profile::{LOGIN_NAME_RULE, is_login_name};
use vpnd_ipc::spawn::THIS_PROGRAM;
use vpnd_journal::JournalDirectory;
use vpnd_journal::kill_switch::{Found as Switch, KillSwitchPlace};
use vpnd_sys::clock::{now, wall_s};
use vpnd_sys::date;
use vpnd_sys::text::harmless;

/// The longest silence of a user between two requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause of a user's command that requests too much.
const REQUEST_PAUSE: Duration = Duration::from_millis(100);
/// For a user who would open the network that the machine closes again at once.
const CLOSED_BY_MACHINE: &str = "the kill switch stays on: this machine's own tunnel has one, and an administrator ends it with `vpnd down`";
/// Requests of a user, and events for one, that wait.
const QUEUE: usize = 4;

/// Answers a user until that one leaves or breaks a rule.
pub(super) async fn hold(service: Arc<Service>, stream: UnixStream, admission: Admission) {
    let uid = admission.uid();
    let looked_up = Arc::clone(&service);
    // The machine's users may be far away.
    let verified = tokio::task::spawn_blocking(move || looked_up.members.verify(uid)).await;
    let (mut reader, writer) = frames::split(stream, MAX_FROM_USER);
    let (sender, requests) = mpsc::channel(QUEUE);
    let (place, refusal) = match verified {
        Ok(Ok(place)) => (place, None),
        Ok(Err(why)) => (String::new(), Some(why.to_string())),
        Err(_) => (String::new(), Some("the machine's users can't be looked up".to_owned())),
    };
    let place = service.users().join(place);
    let own = (uid != 0).then(|| place.join("profiles"));
    let profiles = Profiles::new(&service.args.profiles, own);
    let mut conversation = Conversation { service, admission, place, profiles, requests, writer };
    if let Some(why) = refusal {
        let _ = conversation.refuse(Refused { why, is_final: true }).await;
        return;
    }
    let reading = tokio::spawn(async move {
        loop {
            let request = reader.next().await.transpose();
            let Some(request) = request else { return };
            let is_last = request.is_err();
            if sender.send(request).await.is_err() || is_last {
                return;
            }
        }
    });
    if let Err(error) = conversation.serve().await {
        conversation.service.log_refusal(uid, &format!("a user's command broke off: {error}"));
    }
    reading.abort();
}

struct Conversation {
    service: Arc<Service>,
    admission: Admission,
    /// The directory of what is kept for the user.
    place: PathBuf,
    profiles: Profiles,
    requests: mpsc::Receiver<Result<UserRequest, FrameError>>,
    writer: Writer,
}

/// Carries out requests `R`.
trait Answer<R: Request> {
    fn answer(&mut self, request: R) -> impl Future<Output = Result<R::Reply, NoReply>> + Send;
}

/// The reasons for which a request has no reply.
enum NoReply {
    Refused(Refused),
    /// The user is gone.
    Gone,
    /// The connection is of no use any more.
    Broken(FrameError),
}

impl From<FrameError> for NoReply {
    fn from(error: FrameError) -> Self {
        Self::Broken(error)
    }
}

impl Conversation {
    async fn serve(&mut self) -> Result<(), FrameError> {
        while let Ok(Some(request)) = timeout(REQUEST_TIMEOUT, self.requests.recv()).await {
            let request = request?;
            while !self.admission.may_request(now()) {
                tokio::time::sleep(REQUEST_PAUSE).await;
            }
            match request {
                UserRequest::List => self.reply_to(List).await?,
                UserRequest::Up(up) => self.reply_to(up).await?,
                UserRequest::Down(profile) => self.reply_to(Down(profile)).await?,
                UserRequest::Status => self.reply_to(Status).await?,
                UserRequest::Log(profile) => self.reply_to(Log(profile)).await?,
                UserRequest::Import(import) => self.reply_to(import).await?,
                UserRequest::Forget(name) => self.reply_to(Forget(name)).await?,
                UserRequest::Gateway(name) => self.reply_to(FindGateway(name)).await?,
                UserRequest::Answer(_) => {
                    let why = "nothing was asked".to_owned();
                    return self.refuse(Refused { why, is_final: false }).await;
                }
            }
        }
        Ok(())
    }

    /// Carries out a request and sends its reply.
    async fn reply_to<R: Request>(&mut self, request: R) -> Result<(), FrameError>
    where
        Self: Answer<R>,
    {
        match self.answer(request).await {
            Ok(reply) => self.writer.send(&reply.into()).await,
            Err(NoReply::Refused(refused)) => self.refuse(refused).await,
            Err(NoReply::Gone) => Ok(()),
            Err(NoReply::Broken(error)) => Err(error),
        }
    }

    /// Opens the network if a client that this user had has left it closed; a line about that, if
    /// it was.
    async fn reopen(&self) -> Option<String> {
        let uid = self.uid();
        // The machine's client has gone on with it.
        let _break = match self.has_left_it_closed() {
            true if self.is_closed_by_machine() => return Some(CLOSED_BY_MACHINE.to_owned()),
            true => Some(machine::Break::begin(&self.service).await),
            false => None,
        };
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("vpnd").arg("cleanup").arg("--kill-switch-of").arg(uid.to_string());
        command.arg("--journal-dir").arg(&self.service.args.options.journal_dir);
        let output = command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).output().await;
        let said = match output {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => format!("the state of the kill switch can't be read: {error}"),
        };
        let said = harmless(said.trim());
        if said.is_empty() {
            return None;
        }
        tracing::info!(uid, "a user who has no tunnel ends what is left: {said}");
        Some(said)
    }

    /// Whether a kill switch is on that a client of this user, without root, has left.
    fn has_left_it_closed(&self) -> bool {
        if self.uid() == 0 || self.service.tunnels().is_owner(self.uid()) {
            return false;
        }
        let directory = JournalDirectory::create(&self.service.args.options.journal_dir);
        let place = directory.and_then(|directory| KillSwitchPlace::of_this_namespace(&directory));
        let found = place.and_then(|place| place.find());
        matches!(found, Ok(Switch::Record(record)) if record.user == self.uid())
    }

    /// Whether the machine would close the network again with a kill switch of its profile.
    fn is_closed_by_machine(&self) -> bool {
        machine::wanted(&self.service).is_some_and(|found| found.has_kill_switch)
    }

    /// Starts a client, if the user may.
    fn start(&self, found: &Found, up: &Up, attached: Attached) -> Result<TunnelId, String> {
        let uid = self.uid();
        let (handle, ends) = running::handle(&found.name);
        let begin = || {
            let mut tunnels = self.service.tunnels();
            // Before its user types a password.
            tunnels.may_connect(uid, now())?;
            tunnels.begin(uid, &found.name, wall_s(), handle)
        };
        let id = begin().map_err(|denied: Denied| denied.to_string())?;
        tracing::info!(uid, profile = found.name, "a user connects");
        let (profile, login) = (found.path.clone(), up.login.clone());
        let plan = Plan { id, uid, is_machines: false, place: self.place.clone(), profile, login };
        running::start(&self.service, plan, ends, Some(attached)).map_err(|error| {
            self.service.tunnels().end(id, "the client can't be started", wall_s());
            format!("the client can't be started: {error}")
        })?;
        Ok(id)
    }

    /// Keeps the machine's tunnel from coming back, if root ends all tunnels or that one; whether
    /// it does. It may be in the pause before another start of its client.
    fn hold_machines(&self, ended: Option<&str>) -> bool {
        if self.uid() != 0 {
            return false;
        }
        let is_profile = |name| self.profiles.find(Some(name)).is_ok_and(|found| found.is_machines);
        let is_profile = ended.is_none_or(is_profile);
        let mut tunnels = self.service.tunnels();
        let is_up = |name: &str| tunnels.machines().is_some_and(|client| client.profile == name);
        let holds = is_profile || ended.is_some_and(is_up);
        if holds {
            tunnels.hold_machines(true);
        }
        holds
    }

    /// Lets the machine's tunnel come back that root had ended.
    async fn release_machines(&mut self, name: String) -> Result<Tunnels, NoReply> {
        if self.uid() != 0 {
            return Err(self.refused_profile(&ProfileError::NoUsers(name)));
        }
        self.service.tunnels().hold_machines(false);
        self.service.machines_turn.has_come();
        let line =
            format!("'{name}' is this machine's own: the service connects it while no user is connected");
        self.tell(Progress::Line(line)).await?;
        Ok(Tunnels(Vec::new()))
    }

    /// Passes on what the client says and asks, until it is connected or has ended.
    async fn accompany(
        &mut self,
        id: TunnelId,
        mut events: mpsc::Receiver<Event>,
        answers: mpsc::Sender<Option<Typed>>,
    ) -> Result<Tunnels, NoReply> {
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Progress(progress)) => self.tell(progress).await?,
                    Some(Event::Connected) => {
                        let over = || refused("the tunnel has ended again; see `vpnd log`");
                        return self.connected(id).await.ok_or_else(over);
                    }
                    Some(Event::Over(refused)) => return Err(NoReply::Refused(refused)),
                    None => return Err(refused("the client has ended; see `vpnd log`")),
                },
                // Without a user the client ends: its answers do.
                request = self.requests.recv() => match request.transpose()? {
                    Some(UserRequest::Answer(typed)) => {
                        // One that was not asked for is one too many.
                        let _ = answers.try_send(typed);
                    }
                    Some(_) => return Err(refused("a client is connecting: one thing at a time")),
                    None => return Err(NoReply::Gone),
                },
            }
        }
    }

    /// A tunnel, if it is connected.
    async fn connected(&self, id: TunnelId) -> Option<Tunnels> {
        let (status, handle) = {
            let tunnels = self.service.tunnels();
            let mut visible = tunnels.visible(self.uid());
            let (_, status, handle) = visible.find(|(of, _, _)| *of == id)?;
            (status, handle?.clone())
        };
        if status.state != TunnelState::Connected {
            return None;
        }
        Some(Tunnels(vec![handle.detailed(status).await]))
    }

    async fn tell(&mut self, progress: Progress) -> Result<(), FrameError> {
        self.writer.send(&ServiceReply::from(progress)).await
    }

    fn refused_profile(&self, error: &ProfileError) -> NoReply {
        NoReply::Refused(Refused { why: self.words(error), is_final: true })
    }

    /// A problem with a profile, as this user may know it.
    fn words(&self, error: &ProfileError) -> String {
        match error {
            ProfileError::Wrong { name, .. } if self.uid() != 0 => {
                self.service.log_refusal(self.uid(), &error.to_string());
                format!("the profile '{name}' is wrong: an administrator sees why with `vpnd list`")
            }
            error => harmless(&error.to_string()),
        }
    }

    async fn refuse(&mut self, refused: Refused) -> Result<(), FrameError> {
        self.service.log_refusal(self.uid(), &refused.why);
        self.writer.send(&ServiceReply::from(refused)).await
    }

    fn uid(&self) -> u32 {
        self.admission.uid()
    }
}

impl Answer<List> for Conversation {
    async fn answer(&mut self, _: List) -> Result<ProfileList, NoReply> {
        self.service.forget_former_users();
        let listed = self.profiles.list().map_err(|error| self.refused_profile(&error))?;
        let listed = listed.into_iter().map(|Listed { name, is_own, found }| {
            let used_by = self.service.tunnels().used_by(self.uid(), &name);
            let machine = found.as_ref().is_ok_and(|found| found.is_machines);
            let (gateway, pages, problem) = match found {
                Ok(found) => (Some(found.gateway), found.pages, None),
                Err(error) => (None, None, Some(self.words(&error))),
            };
            ListedProfile { name, gateway, problem, used_by, is_own, pages, machine }
        });
        Ok(ProfileList(listed.collect()))
    }
}

impl Answer<Import> for Conversation {
    async fn answer(&mut self, Import { name, text }: Import) -> Result<Lines, NoReply> {
        let imported = self.profiles.import(&name, text.expose());
        let line = imported.map_err(|error| self.refused_profile(&error))?;
        tracing::info!(uid = self.uid(), profile = %*name, "a user imports a profile");
        if self.uid() == 0 {
            // It may be the machine's.
            self.service.machines_turn.has_come();
        }
        Ok(Lines(vec![line]))
    }
}

impl Answer<FindGateway> for Conversation {
    /// Shows where a gateway is, as a user sees on the network who connects to it.
    async fn answer(&mut self, FindGateway(name): FindGateway) -> Result<Gateway, NoReply> {
        let profile = self.profiles.gateway(&name).map_err(|error| self.refused_profile(&error))?;
        Ok(Gateway(profile.to_toml().to_string()))
    }
}

impl Answer<Forget> for Conversation {
    async fn answer(&mut self, Forget(name): Forget) -> Result<Lines, NoReply> {
        let name = &*name;
        let is_in_use = match self.uid() {
            0 => self.service.tunnels().used_by(0, name).is_some(),
            uid => self.service.tunnels().own(uid, name).is_some(),
        };
        if is_in_use {
            return Err(refused(format!("'{}' is connected: `vpnd down` first", harmless(name))));
        }
        self.profiles.forget(name).map_err(|error| self.refused_profile(&error))?;
        tracing::info!(uid = self.uid(), profile = name, "a user removes a profile");
        Ok(Lines(vec![format!("'{name}' is removed")]))
    }
}

impl Answer<Status> for Conversation {
    async fn answer(&mut self, _: Status) -> Result<Tunnels, NoReply> {
        let visible: Vec<_> = {
            let tunnels = self.service.tunnels();
            tunnels.visible(self.uid()).map(|(_, status, handle)| (status, handle.cloned())).collect()
        };
        let mut shown = Vec::with_capacity(visible.len());
        for (status, handle) in visible {
            shown.push(match handle {
                Some(handle) => handle.detailed(status).await,
                None => status,
            });
        }
        Ok(Tunnels(shown))
    }
}

impl Answer<Log> for Conversation {
    async fn answer(&mut self, Log(profile): Log) -> Result<Lines, NoReply> {
        let found = self.service.tunnels().log(self.uid(), profile.as_deref());
        let lines = found.map_err(|denied| refused(denied.to_string()))?;
        let line = |(at_s, said): (u64, String)| format!("{} {said}", date::rfc3339(at_s));
        Ok(Lines(lines.into_iter().map(line).collect()))
    }
}

impl Answer<Down> for Conversation {
    async fn answer(&mut self, Down(profile): Down) -> Result<Lines, NoReply> {
        let profile = profile.as_deref();
        // Before its client can be started again.
        let is_machines_held = self.hold_machines(profile);
        let found = {
            let tunnels = self.service.tunnels();
            tunnels.to_end(self.uid(), profile).map(|found| found.into_iter().cloned().collect::<Vec<_>>())
        };
        let mut handles = match found {
            Ok(handles) => handles,
            Err(denied) => {
                let mut lines = Vec::new();
                if let Denied::NotUp(name) = &denied {
                    let held =
                        || format!("'{name}' was not connected, and stays down until `vpnd up {name}`");
                    lines.extend(is_machines_held.then(held));
                    lines.extend(self.reopen().await);
                }
                return match lines.is_empty() {
                    false => Ok(Lines(lines)),
                    true => Err(refused(denied.to_string())),
                };
            }
        };
        tracing::info!(uid = self.uid(), tunnels = handles.len(), "a user ends tunnels");
        handles.iter().for_each(running::Handle::end);
        let mut lines = Vec::new();
        for handle in &mut handles {
            handle.over().await;
            lines.push(format!("{}: ended", handle.profile));
        }
        lines.extend(self.reopen().await);
        if lines.is_empty() {
            lines.push("nothing was connected".to_owned());
        }
        Ok(Lines(lines))
    }
}

impl Answer<Up> for Conversation {
    async fn answer(&mut self, up: Up) -> Result<Tunnels, NoReply> {
        if let Some(name) = up.login.name.as_deref().filter(|name| !is_login_name(name)) {
            let why = format!("'{}' can't be a user's name: it has {LOGIN_NAME_RULE}", harmless(name));
            return Err(NoReply::Refused(Refused { why, is_final: true }));
        }
        let found = self.profiles.find(up.profile.as_deref());
        let found = found.map_err(|error| self.refused_profile(&error))?;
        if found.is_machines {
            return self.release_machines(found.name).await;
        }
        let own = self.service.tunnels().own(self.uid(), &found.name);
        if let Some(id) = own
            && let Some(tunnels) = self.connected(id).await
        {
            return Ok(tunnels);
        }
        if !self.admission.may_start(now()) {
            return Err(refused("too many attempts: wait some seconds"));
        }
        let (events, inbox) = mpsc::channel(QUEUE);
        let (answers, typed) = mpsc::channel(1);
        let id = self.start(&found, &up, Attached { events, answers: typed }).map_err(refused)?;
        self.accompany(id, inbox, answers).await
    }
}

/// A refusal after which another attempt may succeed.
fn refused(why: impl Into<String>) -> NoReply {
    NoReply::Refused(Refused { why: why.into(), is_final: false })
}
