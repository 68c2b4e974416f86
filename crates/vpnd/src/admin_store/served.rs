//! The store behind the requests of a command.

mod wireguard;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use vpnd_proto::session::DeviceId;
use zeroize::Zeroizing;

use vpnd_admission::whois::OfGateway;
use vpnd_ipc::messages::SecretBytes;
use vpnd_ipc::request::{Answer, Reason, Request};
use vpnd_store::audit::whois::Asked;
use vpnd_store::audit::{self, AuditEntry, AuditError, AuditFile, Event};
use vpnd_store::postgres::Postgres;
use vpnd_store::sqlite::{Replacement, Sqlite};
use vpnd_store::{
    ExternalUser, KickProgress, Kicks, NewUser, PasswordHash, Store, StoreError, TotpSecret, User, UserImport,
};

use super::database::Target;
use super::fault::Fault;
use super::message::{
    DeviceSummary, MAX_GROUP_BYTES, MAX_USERS, Opening, PART_BYTES, UserSecrets, UserSummary, UserToAdd,
};
use super::request::{
    AddCertificate, AddUser, AskFleet, CopyPart, Devices, Export, Exported, ImportStaged, Invite,
    KickProgressQuery, LeaveKick, MakeCopy, ModifyUser, OneUser, RecordDeed, RemoveDevice, RemoveToken,
    RemoveUser, Replace, ReplacementPart, Replied, RevokeCertificates, Secrets, SetEnabled, SetPassword,
    StageUsers, StoreRequest, TokenSummary, Tokens, Users, Whois,
};

/// Messages that arrive or leave in several parts.
#[derive(Default)]
pub(super) struct Parts {
    /// Users of an import that have come so far.
    staged: Vec<UserImport>,
    /// All users, as they were when the first part of a list was asked for: reading them for each
    /// part takes its time.
    listed: Vec<User>,
    /// The rest of a copy of the store.
    copy: Option<File>,
    /// The audit file.
    audit: PathBuf,
}

impl Parts {
    fn new(store: &Path) -> Self {
        Self { audit: audit_path(store), ..Self::default() }
    }

    fn state_dir(&self) -> &Path {
        vpnd_sys::secret_file::parent(&self.audit)
    }

    /// The users for the part of a list after this one.
    fn users(&mut self, store: &dyn Store, after: Option<&str>) -> Result<&[User], StoreError> {
        if after.is_none() {
            self.listed = store.users()?;
        }
        Ok(&self.listed)
    }
}

/// The engine that keeps a store.
pub(super) enum Engine {
    Sqlite(Box<Sqlite>),
    Postgres(Box<Postgres>),
}

impl Engine {
    fn store(&self) -> &dyn Store {
        match self {
            Self::Sqlite(store) => store.as_ref(),
            Self::Postgres(store) => store.as_ref(),
        }
    }
}

/// A store that is open.
pub(super) enum Served {
    Store(Engine, Parts),
    /// Users of a store that was opened for reading.
    Inspected(Vec<User>),
    /// One that comes from the command, to take the place of the one at this path.
    Replacing {
        path: PathBuf,
        replacement: Option<Replacement>,
    },
    /// The audit file alone.
    Audit(AuditFile, PathBuf),
    /// The kicks on their way to the gateways of a fleet, alone.
    Kicks(Kicks),
    /// Nothing: the store of this path and this database are to change places.
    Moving(PathBuf, Target),
}

impl Served {
    pub(super) fn open(path: &Path, opening: Opening, target: Option<Target>) -> Result<Self, StoreError> {
        if let Some(target) = target {
            if opening == Opening::Move {
                return Ok(Self::Moving(path.to_owned(), target));
            }
            let store = target.open(vpnd_sys::secret_file::parent(path), opening)?;
            return Ok(Self::Store(Engine::Postgres(Box::new(store)), Parts::new(path)));
        }
        let embedded = |store| Self::Store(Engine::Sqlite(Box::new(store)), Parts::new(path));
        Ok(match opening {
            Opening::Existing | Opening::Promptly => embedded(Sqlite::open(path)?),
            Opening::Create => embedded(Sqlite::open_or_create(path)?),
            Opening::Move => {
                let detail = "[store] names no database: it needs 'hosts'".to_owned();
                return Err(StoreError::Unsuitable { store: path.display().to_string(), detail });
            }
            Opening::Replace => {
                Self::Replacing { path: path.to_owned(), replacement: Some(Replacement::new(path)?) }
            }
            Opening::Inspect => Self::Inspected(Sqlite::inspect(path)?),
            Opening::Kicks => Self::Kicks(Kicks::of_state_dir(vpnd_sys::secret_file::parent(path))),
            Opening::Audit => {
                let path = audit_path(path);
                Self::Audit(AuditFile::open(&path).map_err(|error| failed(&path, &error))?, path)
            }
        })
    }

    /// The store, for a request that needs it.
    fn store(&mut self) -> Result<(&dyn Store, &mut Parts), Fault> {
        match self {
            Self::Store(engine, parts) => Ok((engine.store(), parts)),
            other => Err(other.otherwise_opened()),
        }
    }

    /// The audit file alone, for a request that needs it.
    fn audit(&mut self) -> Result<(&mut AuditFile, &Path), Fault> {
        match self {
            Self::Audit(file, path) => Ok((file, path)),
            other => Err(other.otherwise_opened()),
        }
    }

    /// The kicks alone, for a request that needs them.
    fn kicks(&self) -> Result<&Kicks, Fault> {
        match self {
            Self::Kicks(kicks) => Ok(kicks),
            other => Err(other.otherwise_opened()),
        }
    }

    /// Both places, for a request that moves the store.
    pub(super) fn moving(&self) -> Result<(&Path, &Target), Fault> {
        match self {
            Self::Moving(path, target) => Ok((path, target)),
            other => Err(other.otherwise_opened()),
        }
    }

    /// The refusal of a request that does not fit how the store was opened.
    fn otherwise_opened(&self) -> Fault {
        unexpected(match self {
            Self::Store(..) => "the store was opened as it is",
            Self::Inspected(_) => "it was opened for a look only",
            Self::Replacing { .. } => "another store is to take its place",
            Self::Audit(..) => "the audit file was opened, not the store",
            Self::Kicks(_) => "kicks were opened, not the store",
            Self::Moving(..) => "the store is to move",
        })
    }
}

/// Replies to requests `R`.
pub(super) trait Serve<R: Request<Message = StoreRequest>> {
    fn serve(&mut self, request: R) -> R::Reply;
}

/// The store behind all requests, which it answers one after the other.
pub(super) struct Desk(Mutex<Served>);

impl Desk {
    pub(super) fn new(served: Served) -> Arc<Self> {
        Arc::new(Self(Mutex::new(served)))
    }
}

impl<R: Request<Message = StoreRequest>> Answer<R> for Desk
where
    Served: Serve<R>,
{
    async fn answer(self: &Arc<Self>, request: R) -> Result<R::Reply, Reason> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).serve(request))
    }
}

impl Serve<Users> for Served {
    fn serve(&mut self, Users(after): Users) -> Replied<Vec<UserSummary>> {
        let after = after.as_deref();
        match self {
            Self::Store(engine, parts) => Ok(page(parts.users(engine.store(), after)?, after)),
            Self::Inspected(users) => Ok(page(users, after)),
            other => Err(other.otherwise_opened()),
        }
    }
}

impl Serve<OneUser> for Served {
    fn serve(&mut self, OneUser(name): OneUser) -> Replied<Option<UserSummary>> {
        Ok(self.store()?.0.user(&name)?.as_ref().map(UserSummary::from))
    }
}

impl Serve<AddUser> for Served {
    fn serve(&mut self, AddUser { user, now_s }: AddUser) -> Replied<()> {
        self.store()?.0.add_user(&new_user(user)?, now_s)?;
        Ok(())
    }
}

impl Serve<SetEnabled> for Served {
    fn serve(&mut self, request: SetEnabled) -> Replied<()> {
        let (SetEnabled { name, enabled, now_s, source }, (store, _)) = (request, self.store()?);
        if let (false, Some(source), None) = (enabled, source, store.user(&name)?) {
            store.refresh_external(&ExternalUser::expected(&source, &name), now_s)?;
        }
        Ok(store.set_enabled(&name, enabled, now_s)?)
    }
}

impl Serve<LeaveKick> for Served {
    fn serve(&mut self, kick: LeaveKick) -> Replied<()> {
        Ok(self.kicks()?.leave(&kick.into())?)
    }
}

impl Serve<KickProgressQuery> for Served {
    fn serve(&mut self, KickProgressQuery(id): KickProgressQuery) -> Replied<Option<KickProgress>> {
        Ok(self.kicks()?.progress(&id.into())?)
    }
}

impl Serve<SetPassword> for Served {
    fn serve(&mut self, SetPassword { name, hash, now_s }: SetPassword) -> Replied<()> {
        Ok(self.store()?.0.set_password(&name, &password_hash(&hash.0)?, now_s)?)
    }
}

impl Serve<Invite> for Served {
    fn serve(&mut self, Invite { name, invitation, until_s }: Invite) -> Replied<()> {
        Ok(self.store()?.0.invite(&name, &invitation, until_s)?)
    }
}

impl Serve<TokenSummary> for Served {
    fn serve(&mut self, token: TokenSummary) -> Replied<bool> {
        Ok(self.store()?.0.add_api_token(&token.into())?)
    }
}

impl Serve<Tokens> for Served {
    fn serve(&mut self, Tokens: Tokens) -> Replied<Vec<TokenSummary>> {
        Ok(self.store()?.0.api_tokens()?.into_iter().map(TokenSummary::from).collect())
    }
}

impl Serve<RemoveToken> for Served {
    fn serve(&mut self, RemoveToken(name): RemoveToken) -> Replied<bool> {
        Ok(self.store()?.0.remove_api_token(&name)?)
    }
}

impl Serve<RemoveUser> for Served {
    fn serve(&mut self, RemoveUser { name, now_s }: RemoveUser) -> Replied<()> {
        Ok(self.store()?.0.remove_user(&name, now_s)?)
    }
}

impl Serve<AddCertificate> for Served {
    fn serve(&mut self, AddCertificate { name, certificate }: AddCertificate) -> Replied<()> {
        Ok(self.store()?.0.add_certificate(&name, &certificate)?)
    }
}

impl Serve<RevokeCertificates> for Served {
    fn serve(&mut self, request: RevokeCertificates) -> Replied<()> {
        let RevokeCertificates { name, certificates, now_s } = request;
        Ok(self.store()?.0.revoke_certificates(&name, &certificates, now_s)?)
    }
}

impl Serve<RecordDeed> for Served {
    fn serve(&mut self, deed: RecordDeed) -> Replied<()> {
        let entry = [Event::Entry(deed.into())];
        match self {
            Self::Audit(file, path) => file.record(&entry).map_err(|error| failed(path, &error).into()),
            other => {
                let path = &other.store()?.1.audit;
                let recorded = AuditFile::open_or_create(path).and_then(|mut file| file.record(&entry));
                recorded.map_err(|error| unexpected(&format!("it is done, but not recorded: {error}")))
            }
        }
    }
}

impl Serve<ModifyUser> for Served {
    fn serve(&mut self, ModifyUser { name, change, now_s }: ModifyUser) -> Replied<()> {
        Ok(self.store()?.0.modify_user(&name, &change.into(), now_s)?)
    }
}

impl Serve<Devices> for Served {
    fn serve(&mut self, Devices(name): Devices) -> Replied<Vec<DeviceSummary>> {
        let (store, _) = self.store()?;
        let user = store.user(&name)?.ok_or(Fault::NoSuchUser)?;
        Ok(store.devices(user.id)?.iter().map(DeviceSummary::from).collect())
    }
}

impl Serve<RemoveDevice> for Served {
    fn serve(&mut self, RemoveDevice { name, device, now_s }: RemoveDevice) -> Replied<()> {
        self.store()?.0.remove_device(&name, DeviceId(device.into()), now_s)?;
        Ok(())
    }
}

impl Serve<StageUsers> for Served {
    fn serve(&mut self, StageUsers(users): StageUsers) -> Replied<()> {
        let (_, parts) = self.store()?;
        for user in users {
            parts.staged.push(user.into_import()?);
        }
        Ok(())
    }
}

impl Serve<ImportStaged> for Served {
    fn serve(&mut self, ImportStaged { now_s }: ImportStaged) -> Replied<()> {
        let (store, parts) = self.store()?;
        Ok(store.import_users(&std::mem::take(&mut parts.staged), now_s)?)
    }
}

impl Serve<Secrets> for Served {
    fn serve(&mut self, Secrets(after): Secrets) -> Replied<Vec<UserSecrets>> {
        let (store, parts) = self.store()?;
        Ok(secrets(parts.users(store, after.as_deref())?, after.as_deref()))
    }
}

impl Serve<MakeCopy> for Served {
    fn serve(&mut self, _: MakeCopy) -> Replied<()> {
        match self {
            Self::Store(Engine::Sqlite(store), parts) => parts.copy = Some(store.copy()?),
            Self::Store(..) => return Err(unexpected("a database is copied by 'pg_dump'")),
            other => return Err(other.otherwise_opened()),
        }
        Ok(())
    }
}

impl Serve<CopyPart> for Served {
    fn serve(&mut self, _: CopyPart) -> Replied<SecretBytes> {
        let copy = self.store()?.1.copy.as_mut().ok_or_else(|| unexpected("no copy was made"))?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(PART_BYTES));
        let read = copy.take(PART_BYTES as u64).read_to_end(&mut bytes);
        read.map_err(|error| unexpected(&error.to_string()))?;
        Ok(SecretBytes(bytes))
    }
}

impl Serve<ReplacementPart> for Served {
    fn serve(&mut self, ReplacementPart(bytes): ReplacementPart) -> Replied<()> {
        let Self::Replacing { replacement, .. } = self else { return Err(self.otherwise_opened()) };
        // After a failure there is none to go on with.
        let mut taken = replacement.take().ok_or_else(|| unexpected("it could not be written"))?;
        taken.write(&bytes.0)?;
        *replacement = Some(taken);
        Ok(())
    }
}

impl Serve<Replace> for Served {
    fn serve(&mut self, _: Replace) -> Replied<bool> {
        let Self::Replacing { path, replacement } = self else { return Err(self.otherwise_opened()) };
        let taken = replacement.take().ok_or_else(|| unexpected("it could not be written"))?;
        let kept = taken.publish()?;
        *self = Self::Store(Engine::Sqlite(Box::new(Sqlite::open(path)?)), Parts::new(path));
        Ok(kept)
    }
}

/// INVARIANT: nothing is answered that is not recorded.
impl Serve<Whois> for Served {
    fn serve(&mut self, request: Whois) -> Replied<audit::query::Answer> {
        let (Whois { address, port, at_s, now_s, detail, by }, (file, path)) = (request, self.audit()?);
        let (event, user, source) = ("whois".to_owned(), String::new(), String::new());
        let question = AuditEntry { at_s: now_s, event, user, source, detail, by };
        file.whois(question, Asked { address, port }, at_s, now_s)
            .map_err(|error| failed(path, &error).into())
    }
}

impl Serve<AskFleet> for Served {
    fn serve(&mut self, AskFleet(question): AskFleet) -> Replied<Vec<OfGateway>> {
        Ok(vpnd_admission::whois::ask(self.store()?.0, question)?)
    }
}

impl Serve<Export> for Served {
    fn serve(&mut self, Export { range, cursor }: Export) -> Replied<Exported> {
        let (file, path) = self.audit()?;
        let exported = file.export(&range, cursor);
        exported.map(|(records, next)| Exported(records, next)).map_err(|error| failed(path, &error).into())
    }
}

fn audit_path(store: &Path) -> PathBuf {
    store.with_file_name(audit::FILE_NAME)
}

fn failed(path: &Path, error: &AuditError) -> StoreError {
    StoreError::Failed { path: path.to_owned(), detail: error.to_string() }
}

fn unexpected(reason: &str) -> Fault {
    Fault::Failed(reason.to_owned())
}

/// The first users after the one of this name; they are sorted by it.
fn page(users: &[User], after: Option<&str>) -> Vec<UserSummary> {
    let mut group_bytes = 0;
    let fits = |user: &&User| {
        let room = group_bytes < MAX_GROUP_BYTES;
        group_bytes += user.groups.iter().map(|group| group.len() + 8).sum::<usize>();
        room
    };
    let page = later(users, after).take(MAX_USERS).take_while(fits);
    page.map(UserSummary::from).collect()
}

fn later<'u>(users: &'u [User], after: Option<&'u str>) -> impl Iterator<Item = &'u User> {
    users.iter().filter(move |user| after.is_none_or(|after| user.name.as_str() > after))
}

/// Hashes and secrets of the first local users after the one of this name.
fn secrets(users: &[User], after: Option<&str>) -> Vec<UserSecrets> {
    let bytes = |bytes: &[u8]| SecretBytes(bytes.to_vec().into());
    let local = later(users, after).filter_map(|user| {
        let hash = bytes(user.password.as_ref()?.expose().as_bytes());
        let totp = user.totp.as_ref().map(|totp| bytes(totp.expose()));
        Some(UserSecrets { name: user.name.clone(), hash, totp })
    });
    local.take(MAX_USERS).collect()
}

fn new_user(user: UserToAdd) -> Result<NewUser, StoreError> {
    Ok(NewUser {
        password: password_hash(&user.hash.0)?,
        name: user.name,
        totp: user.totp.map(|secret| TotpSecret::new(secret.0.to_vec())),
        groups: user.groups,
        certificate: user.certificate.map(Into::into),
        expires_s: user.expires_s,
        sponsor: user.sponsor,
        note: user.note,
    })
}

pub(super) fn password_hash(text: &[u8]) -> Result<PasswordHash, StoreError> {
    let text = std::str::from_utf8(text).map(str::to_owned);
    text.map(PasswordHash::new).map_err(|_| StoreError::Failed {
        path: vpnd_config::STORE_FILE_NAME.into(),
        detail: "a password hash is no text".to_owned(),
    })
}

/// Opens stores in the process of a test, which has nothing to shut itself in with.
#[cfg(test)]
pub(crate) struct InThisProcess;

#[cfg(test)]
impl super::Stores for InThisProcess {
    fn open(
        &self,
        config: &vpnd_config::ServerConfig,
        opening: Opening,
    ) -> Result<super::AdminStore, StoreError> {
        let path = config.server.store_path();
        let target = super::database::DatabaseTarget::dial(config, opening)?;
        let target = target.map(|(target, connections)| target.take(connections).unwrap());
        let requests = Box::new(Desk::new(Served::open(&path, opening, target)?));
        Ok(super::AdminStore { requests, path, records: config.audit.enabled })
    }
}

#[cfg(test)]
impl super::Requests for Arc<Desk> {
    fn request(&mut self, request: StoreRequest) -> Result<SecretBytes, StoreError> {
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        use vpnd_ipc::request::AnsweredBy as _;

        // The request as the channel would bring it.
        let bytes = minicbor::to_vec(&request).unwrap();
        let request: StoreRequest = minicbor::decode(&bytes).unwrap();
        match pin!(request.answered_by(self)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => Ok(reply),
            Poll::Pending => unreachable!("a store waits for nothing"),
        }
    }
}
