//! The store for commands of an administrator (`vpnd user`, `revoke`, `check`, `init`):
//! [`Confined`] is the command's end, and a separate process opens it ([`run`]).
//!
//! The auth process of a gateway writes the state directory, and an attacker who has taken it over
//! writes there what they like. SQLite follows links, opens files by names that it makes up, and
//! trusts a journal next to a database that it finds there, which may name any other file of the
//! machine. So INVARIANT: no process opens the store unless it has shut itself in as the auth
//! process does: as the directory's owner, without a capability, and with nothing of the file
//! system but that directory. The command itself, usually root's, opens nothing in there, and does
//! not wait for an answer without limit.

mod confined;
mod database;
mod fault;
pub(crate) mod message;
mod moving;
pub(crate) mod request;
mod served;
mod wireguard;

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use minicbor::Decode;
use rustix::fs::{CWD, Mode, OFlags};
use zeroize::Zeroizing;

pub use confined::Confined;
pub use message::wireguard::WireGuardSummary;
pub use message::{DeviceSummary, Opening, UserSecrets, UserSummary};
pub(crate) use message::{FromStore, StoreLaunch};
use message::{MAX_USERS, StagedUser, UserToAdd};
pub(crate) use moving::DatabaseFacts;
use request::{
    AddCertificate, AddUser, AskFleet, CopyPart, Devices, Export, Exported, ImportStaged, Invite,
    KickProgressQuery, LeaveKick, MakeCopy, ModifyUser, OneUser, RecordDeed, RemoveDevice, RemoveToken,
    RemoveUser, Replace, ReplacementPart, Replied, RevokeCertificates, Secrets, SetEnabled, SetPassword,
    StageUsers, StoreRequest, TokenSummary, Tokens, Users, Whois,
};
#[cfg(test)]
pub(crate) use served::InThisProcess;
use served::{Desk, Served};
use vpnd_admission::whois::{OfGateway, Question};
use vpnd_config::ServerConfig;
use vpnd_ipc::channel::Channel;
use vpnd_ipc::child::{self, ChildRole, Preparation, Started};
use vpnd_ipc::messages::{Prepared, SecretBytes};
use vpnd_ipc::request::{AnsweredBy as _, Reason, Request};
use vpnd_store::audit::AuditEntry;
use vpnd_store::audit::query::{Answer, Cursor, Range, Record};
use vpnd_store::audit::whois::Asked;
use vpnd_store::{
    ApiToken, CertificateHash, InvitationHash, Kick, KickProgress, NewUser, PasswordHash, StoreError,
    UserChange, UserImport,
};
use vpnd_sys::account::{UnixUser, invoker};
pub(crate) use wireguard::DeviceRequest;

/// No store has this many users.
const MAX_LISTED: usize = 1 << 20;

/// Opens stores; tests do so without a process.
pub trait Stores {
    /// Opens the store of the gateway with this configuration.
    fn open(&self, config: &ServerConfig, opening: Opening) -> Result<AdminStore, StoreError>;
}

/// Carries requests to a store.
pub(crate) trait Requests {
    /// The reply, encoded.
    fn request(&mut self, request: StoreRequest) -> Result<SecretBytes, StoreError>;
}

/// A gateway's store, as far as commands of an administrator need it.
pub struct AdminStore {
    requests: Box<dyn Requests>,
    path: PathBuf,
    /// Whether the configuration has deeds recorded.
    records: bool,
}

impl AdminStore {
    /// All users, by name.
    ///
    /// # Errors
    /// [`StoreError`], here and below.
    pub fn users(&mut self) -> Result<Vec<UserSummary>, StoreError> {
        let mut users: Vec<UserSummary> = Vec::new();
        loop {
            let after = users.last().map(|user| user.name.clone());
            let more = self.ask(Users(after))?;
            if more.is_empty() {
                return Ok(users.into_iter().map(UserSummary::plain).collect());
            }
            users.extend(more);
            if users.len() > MAX_LISTED {
                return Err(self.unexpected_reply());
            }
        }
    }

    /// The user with this login name.
    pub fn user(&mut self, name: &str) -> Result<Option<UserSummary>, StoreError> {
        Ok(self.ask_about(name, OneUser(name.to_owned()))?.map(UserSummary::plain))
    }

    pub fn add_user(&mut self, user: &NewUser, now_s: u64) -> Result<(), StoreError> {
        self.ask_about(&user.name, AddUser { user: UserToAdd::from(user), now_s })
    }

    /// Lets a user in or not. Disabling is a revocation; with the `source` that the name belongs
    /// to, it is also for users who have not been here.
    pub fn set_enabled(
        &mut self,
        name: &str,
        source: Option<&str>,
        enabled: bool,
        now_s: u64,
    ) -> Result<(), StoreError> {
        let source = source.map(str::to_owned);
        self.ask_about(name, SetEnabled { name: name.to_owned(), enabled, now_s, source })
    }

    /// Has the running gateway kick or disable a user at all gateways of its fleet. Only for
    /// [`Opening::Kicks`].
    pub(crate) fn leave_kick(&mut self, kick: &Kick) -> Result<(), StoreError> {
        self.ask_about(&kick.user, LeaveKick::from(kick))
    }

    /// The state of a kick, while that is known. Only for [`Opening::Kicks`].
    pub(crate) fn kick_progress(&mut self, id: [u8; 16]) -> Result<Option<KickProgress>, StoreError> {
        self.ask(KickProgressQuery(id.into()))
    }

    /// Gives a user another password, which is a revocation.
    pub fn set_password(&mut self, name: &str, hash: &PasswordHash, now_s: u64) -> Result<(), StoreError> {
        let hash = SecretBytes(hash.expose().as_bytes().to_vec().into());
        self.ask_about(name, SetPassword { name: name.to_owned(), hash, now_s })
    }

    /// Makes the invitation of a user, in place of an earlier one.
    pub fn invite(
        &mut self,
        name: &str,
        invitation: &InvitationHash,
        until_s: u64,
    ) -> Result<(), StoreError> {
        let invitation = (*invitation).into();
        self.ask_about(name, Invite { name: name.to_owned(), invitation, until_s })
    }

    /// Adds a token of the API: `false` if there is one of that name.
    pub(crate) fn add_api_token(&mut self, token: &ApiToken) -> Result<bool, StoreError> {
        self.ask(TokenSummary::from(token.clone()))
    }

    /// All tokens of the API.
    pub(crate) fn api_tokens(&mut self) -> Result<Vec<ApiToken>, StoreError> {
        Ok(self.ask(Tokens)?.into_iter().map(ApiToken::from).collect())
    }

    /// `false` if there is no token of that name.
    pub(crate) fn remove_api_token(&mut self, name: &str) -> Result<bool, StoreError> {
        self.ask(RemoveToken(name.to_owned()))
    }

    /// Changes what a user is besides the password.
    pub fn modify_user(&mut self, name: &str, change: &UserChange, now_s: u64) -> Result<(), StoreError> {
        self.ask_about(name, ModifyUser { name: name.to_owned(), change: change.into(), now_s })
    }

    /// Adds and changes users, all of them or, if one can't be, none.
    pub fn import(&mut self, users: &[UserImport], now_s: u64) -> Result<(), StoreError> {
        for piece in users.chunks(MAX_USERS) {
            self.ask(StageUsers(piece.iter().map(StagedUser::from).collect()))?;
        }
        self.ask(ImportStaged { now_s })
    }

    /// Hashes and secrets of all local users.
    pub fn secrets(&mut self) -> Result<Vec<UserSecrets>, StoreError> {
        let mut secrets: Vec<UserSecrets> = Vec::new();
        loop {
            let after = secrets.last().map(|user| user.name.clone());
            let more = self.ask(Secrets(after))?;
            if more.is_empty() {
                return Ok(secrets);
            }
            secrets.extend(more);
            if secrets.len() > MAX_LISTED {
                return Err(self.unexpected_reply());
            }
        }
    }

    /// The devices of a user.
    pub fn devices(&mut self, name: &str) -> Result<Vec<DeviceSummary>, StoreError> {
        self.ask_about(name, Devices(name.to_owned()))
    }

    /// Removes a device of the user and ends its sessions.
    pub fn remove_device(
        &mut self,
        name: &str,
        device: &DeviceSummary,
        now_s: u64,
    ) -> Result<(), StoreError> {
        self.ask_about(name, RemoveDevice { name: name.to_owned(), device: device.id, now_s })
    }

    /// Removes a user, which is a revocation.
    pub fn remove_user(&mut self, name: &str, now_s: u64) -> Result<(), StoreError> {
        self.ask_about(name, RemoveUser { name: name.to_owned(), now_s })
    }

    /// A certificate that the user may show from now on; they must show one then.
    pub fn add_certificate(&mut self, name: &str, certificate: &CertificateHash) -> Result<(), StoreError> {
        let certificate = (*certificate).into();
        self.ask_about(name, AddCertificate { name: name.to_owned(), certificate })
    }

    /// These certificates of the user are no good any more, which is a revocation.
    pub fn revoke_certificates(
        &mut self,
        name: &str,
        certificates: &[CertificateHash],
        now_s: u64,
    ) -> Result<(), StoreError> {
        let certificates = certificates.to_vec();
        self.ask_about(name, RevokeCertificates { name: name.to_owned(), certificates, now_s })
    }

    /// Records what the administrator who runs this has done.
    pub fn audit(&mut self, entry: AuditEntry) -> Result<(), StoreError> {
        if !self.records {
            return Ok(());
        }
        let user = entry.user.clone();
        self.ask_about(&user, RecordDeed::from(AuditEntry { by: invoker(), ..entry }))
    }

    /// The holder of this address, or of this port of it, at a time. The question is recorded with
    /// its reason. Only for [`Opening::Audit`].
    pub(crate) fn whois(
        &mut self,
        address: IpAddr,
        port: Option<u16>,
        at_s: u64,
        now_s: u64,
        detail: String,
    ) -> Result<Answer, StoreError> {
        self.ask(Whois { address, port, at_s, now_s, detail, by: invoker() })
    }

    /// The answers of the fleet's other gateways to the same question.
    pub(crate) fn ask_fleet(
        &mut self,
        asked: Asked,
        at_s: u64,
        detail: String,
        gateway: &str,
    ) -> Result<Vec<OfGateway>, StoreError> {
        let Asked { address, port } = asked;
        let asks = format!("{} at {gateway}", invoker());
        self.ask(AskFleet(Question { address, port, at_s, detail, by: asks }))
    }

    /// A part of what is recorded, and where it goes on. Only for [`Opening::Audit`].
    pub(crate) fn export(
        &mut self,
        range: &Range,
        cursor: Cursor,
    ) -> Result<(Vec<Record>, Option<Cursor>), StoreError> {
        let Exported(records, next) = self.ask(Export { range: range.clone(), cursor })?;
        Ok((records, next))
    }

    /// A copy of this moment, as the bytes of its file; at most `max_bytes`.
    pub(crate) fn copy(&mut self, max_bytes: u64) -> Result<Zeroizing<Vec<u8>>, StoreError> {
        self.ask(MakeCopy)?;
        let mut bytes = Zeroizing::new(Vec::new());
        loop {
            let part = self.ask(CopyPart)?;
            if part.0.is_empty() {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&part.0);
            if bytes.len() as u64 > max_bytes {
                let detail = format!("it is longer than {max_bytes} bytes");
                return Err(StoreError::Failed { path: self.path.clone(), detail });
            }
        }
    }

    /// Puts the store with these bytes in place of the one that is there, without its sessions.
    /// Whether there was one, which is kept. Only for [`Opening::Replace`].
    pub(crate) fn replace(&mut self, bytes: &[u8]) -> Result<bool, StoreError> {
        for part in bytes.chunks(message::PART_BYTES) {
            self.ask(ReplacementPart(SecretBytes(Zeroizing::new(part.to_vec()))))?;
        }
        self.ask(Replace)
    }

    fn ask<R, T>(&mut self, request: R) -> Result<T, StoreError>
    where
        R: Request<Message = StoreRequest, Reply = Replied<T>>,
        T: for<'b> Decode<'b, ()>,
    {
        self.ask_about("", request)
    }

    /// Sends a request about the user with this name.
    fn ask_about<R, T>(&mut self, name: &str, request: R) -> Result<T, StoreError>
    where
        R: Request<Message = StoreRequest, Reply = Replied<T>>,
        T: for<'b> Decode<'b, ()>,
    {
        let reply = self.requests.request(request.into())?;
        match minicbor::decode::<Result<R::Reply, Reason>>(&reply.0) {
            Ok(Ok(reply)) => reply.map_err(|fault| fault.into_error(&self.path, name)),
            Ok(Err(reason)) => {
                Err(StoreError::Failed { path: self.path.clone(), detail: reason.to_string() })
            }
            Err(_) => Err(self.unexpected_reply()),
        }
    }

    fn unexpected_reply(&self) -> StoreError {
        let detail = "the process that opened it has sent the answer to another request".to_owned();
        StoreError::Failed { path: self.path.clone(), detail }
    }
}

/// Runs the process; `stream` leads to the command.
pub(crate) fn run(stream: UnixStream) -> anyhow::Result<()> {
    let started =
        child::start(ChildRole::Store, &stream, |launch: &StoreLaunch| &launch.common, own_directory);
    match started.and_then(|started| child::work(&stream, async |command| serve(started, command).await)) {
        Ok(()) => Ok(()),
        Err(error) => child::finish(stream, &FromStore::Failed(vpnd_sys::text::format_chain(&error))),
    }
}

/// The state directory as the only place that stays in reach.
fn own_directory(launch: &StoreLaunch) -> anyhow::Result<Preparation<OwnedFd>> {
    let path = directory(launch);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, path, flags, Mode::empty())
        .with_context(|| format!("the state directory {} can't be opened", path.display()))?;
    let owner = rustix::fs::fstat(&opened)?.st_uid;
    let this = rustix::process::geteuid();
    let user = launch.common.identity.as_ref().map_or(this.as_raw(), UnixUser::uid);
    // A user without privileges has none to lose.
    if this.is_root() && owner != user {
        bail!(
            "the state directory {} belongs to user {owner}, and this process runs as user {user}: run the command as \
             the directory's owner",
            path.display()
        );
    }
    // By its descriptor, since by its name another directory could be reached meanwhile.
    let writable = vec![PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))];
    Ok(Preparation { writable, tcp_ports: Vec::new(), made: opened })
}

fn directory(launch: &StoreLaunch) -> &Path {
    Path::new(OsStr::from_bytes(&launch.directory))
}

async fn serve(started: Started<StoreLaunch, OwnedFd>, command: Channel) -> anyhow::Result<()> {
    command.send(&Prepared::Prepared(started.protections), &[]).await?;
    let (launch, connections) = (started.launch.message, started.launch.descriptors);
    let path = directory(&launch).join(vpnd_config::STORE_FILE_NAME);
    let target = launch.database.map(|database| database.take(connections)).transpose()?;
    let (opened, desk) = match Served::open(&path, launch.opening, target) {
        Ok(store) => (Ok(()), Some(Desk::new(store))),
        Err(error) => (Err(error.into()), None),
    };
    command.send(&FromStore::Opened(opened), &[]).await?;
    let Some(desk) = desk else { return Ok(()) };
    while let Some(received) = command.receive::<StoreRequest>().await? {
        // Nothing else is to be done meanwhile.
        let reply = received.alone()?.answered_by(&desk).await;
        command.send(&FromStore::Reply(reply), &[]).await?;
    }
    Ok(())
}
