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
use vpnd_client::user_messages::{Import, ListedProfile, ServiceReply, TunnelState, Up, UserRequest};
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
        let _ = conversation.refuse(&why, true).await;
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

impl Conversation {
    async fn serve(&mut self) -> Result<(), FrameError> {
        while let Ok(Some(request)) = timeout(REQUEST_TIMEOUT, self.requests.recv()).await {
            let request = request?;
            while !self.admission.may_request(now()) {
                tokio::time::sleep(REQUEST_PAUSE).await;
            }
            match request {
                UserRequest::List => self.list().await?,
                UserRequest::Up(up) => self.up(up).await?,
                UserRequest::Down(profile) => self.down(profile.as_deref()).await?,
                UserRequest::Status => self.status().await?,
                UserRequest::Log(profile) => self.log(profile.as_deref()).await?,
                UserRequest::Import(import) => self.import(&import).await?,
                UserRequest::Forget(name) => self.forget(&name).await?,
                UserRequest::Gateway(name) => self.gateway(&name).await?,
                UserRequest::Answer(_) => return self.refuse("nothing was asked", false).await,
            }
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<(), FrameError> {
        self.service.forget_former_users();
        let listed = match self.profiles.list() {
            Ok(listed) => listed,
            Err(error) => return self.refuse_profile(&error).await,
        };
        let listed = listed.into_iter().map(|Listed { name, is_own, found }| {
            let used_by = self.service.tunnels().used_by(self.uid(), &name);
            let machine = found.as_ref().is_ok_and(|found| found.is_machines);
            let (gateway, pages, problem) = match found {
                Ok(found) => (Some(found.gateway), found.pages, None),
                Err(error) => (None, None, Some(self.words(&error))),
            };
            ListedProfile { name, gateway, problem, used_by, is_own, pages, machine }
        });
        let listed = listed.collect();
        self.writer.send(&ServiceReply::Profiles(listed)).await
    }

    async fn import(&mut self, Import { name, text }: &Import) -> Result<(), FrameError> {
        match self.profiles.import(name, text.expose()) {
            Ok(line) => {
                tracing::info!(uid = self.uid(), profile = %**name, "a user imports a profile");
                if self.uid() == 0 {
                    // It may be the machine's.
                    self.service.machines_turn.has_come();
                }
                self.writer.send(&ServiceReply::Lines(vec![line])).await
            }
            Err(error) => self.refuse_profile(&error).await,
        }
    }

    /// Shows where a gateway is, as a user sees on the network who connects to it.
    async fn gateway(&mut self, name: &str) -> Result<(), FrameError> {
        match self.profiles.gateway(name) {
            Ok(profile) => self.writer.send(&ServiceReply::Gateway(profile.to_toml().to_string())).await,
            Err(error) => self.refuse_profile(&error).await,
        }
    }

    async fn forget(&mut self, name: &str) -> Result<(), FrameError> {
        let is_in_use = match self.uid() {
            0 => self.service.tunnels().used_by(0, name).is_some(),
            uid => self.service.tunnels().own(uid, name).is_some(),
        };
        if is_in_use {
            return self
                .refuse(&format!("'{}' is connected: `vpnd down` first", harmless(name)), false)
                .await;
        }
        match self.profiles.forget(name) {
            Ok(()) => {
                tracing::info!(uid = self.uid(), profile = name, "a user removes a profile");
                self.writer.send(&ServiceReply::Lines(vec![format!("'{name}' is removed")])).await
            }
            Err(error) => self.refuse_profile(&error).await,
        }
    }

    async fn status(&mut self) -> Result<(), FrameError> {
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
        self.writer.send(&ServiceReply::Tunnels(shown)).await
    }

    async fn log(&mut self, profile: Option<&str>) -> Result<(), FrameError> {
        let found = self.service.tunnels().log(self.uid(), profile);
        match found {
            Ok(lines) => {
                let line = |(at_s, said): (u64, String)| format!("{} {said}", date::rfc3339(at_s));
                let lines = lines.into_iter().map(line).collect();
                self.writer.send(&ServiceReply::Lines(lines)).await
            }
            Err(denied) => self.refuse(&denied.to_string(), false).await,
        }
    }

    async fn down(&mut self, profile: Option<&str>) -> Result<(), FrameError> {
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
                    false => self.writer.send(&ServiceReply::Lines(lines)).await,
                    true => self.refuse(&denied.to_string(), false).await,
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
        self.writer.send(&ServiceReply::Lines(lines)).await
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

    async fn up(&mut self, up: Up) -> Result<(), FrameError> {
        if let Some(name) = up.login.name.as_deref().filter(|name| !is_login_name(name)) {
            let reason = format!("'{}' can't be a user's name: it has {LOGIN_NAME_RULE}", harmless(name));
            return self.refuse(&reason, true).await;
        }
        let found = match self.profiles.find(up.profile.as_deref()) {
            Ok(found) => found,
            Err(error) => return self.refuse_profile(&error).await,
        };
        if found.is_machines {
            return self.release_machines(found.name).await;
        }
        let own = self.service.tunnels().own(self.uid(), &found.name);
        if let Some(id) = own
            && self.show(id).await?
        {
            return Ok(());
        }
        if !self.admission.may_start(now()) {
            return self.refuse("too many attempts: wait some seconds", false).await;
        }
        let (events, inbox) = mpsc::channel(QUEUE);
        let (answers, typed) = mpsc::channel(1);
        let started = self.start(&found, &up, Attached { events, answers: typed });
        match started {
            Ok(id) => self.accompany(id, inbox, answers).await,
            Err(why) => self.refuse(&why, false).await,
        }
    }

    /// Starts a client, if the user may.
    fn start(&self, found: &Found, up: &Up, attached: Attached) -> Result<TunnelId, String> {
        let uid = self.uid();
        let (handle, ends) = running::handle(&found.name);
        let begin = || {
            let mut tunnels = self.service.tunnels();
            // Before its user types a password.
            tunnels.may_interrupt(uid, now())?;
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
    async fn release_machines(&mut self, name: String) -> Result<(), FrameError> {
        if self.uid() != 0 {
            return self.refuse_profile(&ProfileError::NoUsers(name)).await;
        }
        self.service.tunnels().hold_machines(false);
        self.service.machines_turn.has_come();
        let line =
            format!("'{name}' is this machine's own: the service connects it while no user is connected");
        self.writer.send(&ServiceReply::Line(line)).await?;
        self.writer.send(&ServiceReply::Tunnels(Vec::new())).await
    }

    /// Passes on what the client says and asks, until it is connected or has ended.
    async fn accompany(
        &mut self,
        id: TunnelId,
        mut events: mpsc::Receiver<Event>,
        answers: mpsc::Sender<Option<vpnd_client::user_messages::Typed>>,
    ) -> Result<(), FrameError> {
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Line(line)) => self.writer.send(&ServiceReply::Line(line)).await?,
                    Some(Event::Ask(ask)) => self.writer.send(&ServiceReply::Ask(ask)).await?,
                    Some(Event::Browse(url)) => self.writer.send(&ServiceReply::Browse(url)).await?,
                    Some(Event::Connected) => {
                        if !self.show(id).await? {
                            return self.refuse("the tunnel has ended again; see `vpnd log`", false).await;
                        }
                        return Ok(());
                    }
                    Some(Event::Over { why, is_final }) => return self.refuse(&why, is_final).await,
                    None => return self.refuse("the client has ended; see `vpnd log`", false).await,
                },
                // Without a user the client ends: its answers do.
                request = self.requests.recv() => match request.transpose()? {
                    Some(UserRequest::Answer(typed)) => {
                        // One that was not asked for is one too many.
                        let _ = answers.try_send(typed);
                    }
                    Some(_) => return self.refuse("a client is connecting: one thing at a time", false).await,
                    None => return Ok(()),
                },
            }
        }
    }

    /// Shows a tunnel that is connected; whether it is.
    async fn show(&mut self, id: TunnelId) -> Result<bool, FrameError> {
        let found = {
            let tunnels = self.service.tunnels();
            let mut visible = tunnels.visible(self.uid());
            visible.find(|(of, _, _)| *of == id).map(|(_, status, handle)| (status, handle.cloned()))
        };
        let Some((status, Some(handle))) = found else { return Ok(false) };
        if status.state != TunnelState::Connected {
            return Ok(false);
        }
        let status = handle.detailed(status).await;
        self.writer.send(&ServiceReply::Tunnels(vec![status])).await?;
        Ok(true)
    }

    async fn refuse_profile(&mut self, error: &ProfileError) -> Result<(), FrameError> {
        let reason = self.words(error);
        self.refuse(&reason, true).await
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

    async fn refuse(&mut self, why: &str, is_final: bool) -> Result<(), FrameError> {
        self.service.log_refusal(self.uid(), why);
        self.writer.send(&ServiceReply::Refused { why: why.to_owned(), is_final }).await
    }

    fn uid(&self) -> u32 {
        self.admission.uid()
    }
}
