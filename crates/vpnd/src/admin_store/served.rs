//! The store behind the requests of a command.

mod wireguard;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use vpnd_proto::session::DeviceId;
use zeroize::Zeroizing;

use vpnd_ipc::messages::SecretBytes;
use vpnd_store::audit::{self, AuditEntry, AuditError, AuditFile, Event};
use vpnd_store::sqlite::{Replacement, Sqlite};
use vpnd_store::{
    ExternalUser, NewUser, PasswordHash, Sessions as _, StoreError, TotpSecret, User, UserImport, Users as _,
};

use super::fault::Fault;
use super::message::{
    DeviceSummary, MAX_GROUP_BYTES, MAX_USERS, Opening, PART_BYTES, StoreReply, StoreRequest, UserSecrets,
    UserSummary, UserToAdd,
};

/// What comes and goes in several parts.
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

    /// The users for the part of a list after this one.
    fn users(&mut self, store: &Sqlite, after: Option<&str>) -> Result<&[User], StoreError> {
        if after.is_none() {
            self.listed = store.users()?;
        }
        Ok(&self.listed)
    }
}

/// A store that is open.
pub(super) enum Served {
    Store(Box<Sqlite>, Parts),
    /// Users of a store that was opened for reading.
    Inspected(Vec<User>),
    /// One that comes from the command, to take the place of the one at this path.
    Replacing {
        path: PathBuf,
        replacement: Option<Replacement>,
    },
    /// The audit file alone.
    Audit(AuditFile, PathBuf),
}

impl Served {
    pub(super) fn open(path: &Path, opening: Opening) -> Result<Self, StoreError> {
        Ok(match opening {
            Opening::Existing => Self::Store(Box::new(Sqlite::open(path)?), Parts::new(path)),
            Opening::Create => Self::Store(Box::new(Sqlite::open_or_create(path)?), Parts::new(path)),
            Opening::Replace => {
                Self::Replacing { path: path.to_owned(), replacement: Some(Replacement::new(path)?) }
            }
            Opening::Inspect => Self::Inspected(Sqlite::inspect(path)?),
            Opening::Audit => {
                let path = audit_path(path);
                Self::Audit(AuditFile::open(&path).map_err(|error| failed(&path, &error))?, path)
            }
        })
    }

    fn replaced(&mut self, replacement: Replacement, path: &Path) -> Result<StoreReply, StoreError> {
        let kept = replacement.publish()?;
        *self = Self::Store(Box::new(Sqlite::open(path)?), Parts::new(path));
        Ok(StoreReply::Replaced(kept))
    }

    pub(super) fn answer(&mut self, request: StoreRequest) -> StoreReply {
        let answer = match self {
            Self::Store(store, parts) => of_store(store, parts, request),
            Self::Replacing { path, replacement } => match (replacement.take(), request) {
                (Some(mut taken), StoreRequest::Replacement(bytes)) => taken.write(&bytes.0).map(|()| {
                    *replacement = Some(taken);
                    StoreReply::Done
                }),
                (Some(taken), StoreRequest::Replace) => {
                    let path = path.clone();
                    self.replaced(taken, &path)
                }
                _ => Ok(unexpected("another store is to take its place")),
            },
            Self::Audit(file, path) => of_audit(file, path, request),
            Self::Inspected(users) => match request {
                StoreRequest::Users(after) => Ok(page(users, after.as_deref())),
                _ => Ok(unexpected("it was opened for a look only")),
            },
        };
        answer.unwrap_or_else(|error| StoreReply::Failed(error.into()))
    }
}

fn audit_path(store: &Path) -> PathBuf {
    store.with_file_name(audit::FILE_NAME)
}

fn failed(path: &Path, error: &AuditError) -> StoreError {
    StoreError::Failed { path: path.to_owned(), detail: error.to_string() }
}

/// INVARIANT: nothing is answered that is not recorded.
fn of_audit(file: &mut AuditFile, path: &Path, request: StoreRequest) -> Result<StoreReply, StoreError> {
    let entry = |at_s, event: String, user, detail, by| {
        [Event::Entry(AuditEntry { at_s, event, user, source: String::new(), detail, by })]
    };
    let answered = match request {
        StoreRequest::Whois { address, port, at_s, now_s, detail, by } => file
            .record(&entry(now_s, "whois".to_owned(), String::new(), detail, by))
            .and_then(|()| file.who_had(address, port, at_s, now_s))
            .map(StoreReply::Whois),
        StoreRequest::Audit { event, user, detail, at_s, by } => {
            file.record(&entry(at_s, event, user, detail, by)).map(|()| StoreReply::Done)
        }
        StoreRequest::Export { range, cursor } => {
            file.export(&range, cursor).map(|(records, next)| StoreReply::Exported(records, next))
        }
        _ => return Ok(unexpected("the audit file was opened, not the store")),
    };
    answered.map_err(|error| failed(path, &error))
}

fn unexpected(reason: &str) -> StoreReply {
    StoreReply::Failed(Fault::Failed(reason.to_owned()))
}

/// The next bytes of a copy.
fn part(copy: Option<&mut File>) -> StoreReply {
    let Some(copy) = copy else { return unexpected("no copy was made") };
    let mut bytes = Zeroizing::new(Vec::with_capacity(PART_BYTES));
    match copy.take(PART_BYTES as u64).read_to_end(&mut bytes) {
        Ok(_) => StoreReply::Part(SecretBytes(bytes)),
        Err(error) => unexpected(&error.to_string()),
    }
}

fn of_store(store: &Sqlite, parts: &mut Parts, request: StoreRequest) -> Result<StoreReply, StoreError> {
    match request {
        StoreRequest::Users(after) => {
            return Ok(page(parts.users(store, after.as_deref())?, after.as_deref()));
        }
        StoreRequest::User(name) => {
            return Ok(StoreReply::User(store.user(&name)?.as_ref().map(UserSummary::from)));
        }
        StoreRequest::Add { user, now_s } => store.add_user(&new_user(user)?, now_s).map(drop)?,
        StoreRequest::SetEnabled { name, enabled, now_s, source } => {
            if let (false, Some(source), None) = (enabled, source, store.user(&name)?) {
                store.refresh_external(&ExternalUser::expected(&source, &name), now_s)?;
            }
            store.set_enabled(&name, enabled, now_s)?;
        }
        StoreRequest::SetPassword { name, hash, now_s } => {
            store.set_password(&name, &password_hash(&hash.0)?, now_s)?;
        }
        StoreRequest::Remove { name, now_s } => store.remove_user(&name, now_s)?,
        StoreRequest::AddCertificate { name, certificate } => store.add_certificate(&name, &certificate)?,
        StoreRequest::RevokeCertificates { name, certificates, now_s } => {
            store.revoke_certificates(&name, &certificates, now_s)?;
        }
        StoreRequest::Modify { name, change, now_s } => store.modify_user(&name, &change.into(), now_s)?,
        StoreRequest::Stage(users) => {
            for user in users {
                parts.staged.push(user.into_import()?);
            }
        }
        StoreRequest::Import { now_s } => store.import_users(&std::mem::take(&mut parts.staged), now_s)?,
        StoreRequest::Secrets(after) => {
            return Ok(secrets(parts.users(store, after.as_deref())?, after.as_deref()));
        }
        StoreRequest::Devices(name) => {
            let Some(user) = store.user(&name)? else { return Err(StoreError::NoSuchUser { name }) };
            let devices = store.devices(user.id)?;
            return Ok(StoreReply::Devices(devices.iter().map(DeviceSummary::from).collect()));
        }
        StoreRequest::RemoveDevice { name, device, now_s } => {
            store.remove_device(&name, DeviceId(device.into()), now_s)?;
        }
        StoreRequest::Audit { event, user, detail, at_s, by } => {
            let entry = AuditEntry { at_s, event, user, source: String::new(), detail, by };
            let recorded = AuditFile::open_or_create(&parts.audit)
                .and_then(|mut file| file.record(&[Event::Entry(entry)]));
            recorded.map_err(|error| StoreError::Failed {
                path: parts.audit.clone(),
                detail: format!("it is done, but not recorded: {error}"),
            })?;
        }
        StoreRequest::WireGuard(request) => {
            let state_dir = vpnd_sys::secret_file::parent(&parts.audit);
            return wireguard::answer(store, state_dir, request).map(StoreReply::WireGuard);
        }
        StoreRequest::Whois { .. } | StoreRequest::Export { .. } => {
            return Ok(unexpected("the store was opened, not the audit file"));
        }
        StoreRequest::Copy => parts.copy = Some(store.copy()?),
        StoreRequest::CopyPart => return Ok(part(parts.copy.as_mut())),
        StoreRequest::Replacement(_) | StoreRequest::Replace => {
            return Ok(unexpected("it was not opened to be replaced"));
        }
    }
    Ok(StoreReply::Done)
}

/// The first users after the one of this name; they are sorted by it.
fn page(users: &[User], after: Option<&str>) -> StoreReply {
    let mut group_bytes = 0;
    let fits = |user: &&User| {
        let room = group_bytes < MAX_GROUP_BYTES;
        group_bytes += user.groups.iter().map(|group| group.len() + 8).sum::<usize>();
        room
    };
    let page = later(users, after).take(MAX_USERS).take_while(fits);
    StoreReply::Users(page.map(UserSummary::from).collect())
}

fn later<'u>(users: &'u [User], after: Option<&'u str>) -> impl Iterator<Item = &'u User> {
    users.iter().filter(move |user| after.is_none_or(|after| user.name.as_str() > after))
}

/// Hashes and secrets of the first local users after the one of this name.
fn secrets(users: &[User], after: Option<&str>) -> StoreReply {
    let bytes = |bytes: &[u8]| SecretBytes(bytes.to_vec().into());
    let local = later(users, after).filter_map(|user| {
        let hash = bytes(user.password.as_ref()?.expose().as_bytes());
        let totp = user.totp.as_ref().map(|totp| bytes(totp.expose()));
        Some(UserSecrets { name: user.name.clone(), hash, totp })
    });
    StoreReply::Secrets(local.take(MAX_USERS).collect())
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
        let requests = Box::new(Served::open(&path, opening)?);
        Ok(super::AdminStore { requests, path, records: config.audit.enabled })
    }
}

#[cfg(test)]
impl super::Requests for Served {
    fn request(&mut self, request: &StoreRequest) -> Result<StoreReply, StoreError> {
        // As it would come from the channel.
        let bytes = minicbor::to_vec(request).unwrap();
        let answer = minicbor::to_vec(self.answer(minicbor::decode(&bytes).unwrap())).unwrap();
        Ok(minicbor::decode(&answer).unwrap())
    }
}
