//! `vpnd backup` and `vpnd restore`: everything of a gateway in one file, and back.
//!
//! Invariants: a backup may be made while the gateway runs, and its store is that of one moment; a
//! restore looks at everything before it writes anything, writes only where the administrator
//! permits ([`places`]), never touches a gateway that runs, lets none start, and leaves an older
//! store next to the new one. Sessions are not restored: their tokens are older than what clients
//! have.

mod passphrase;
mod places;

use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::admin_store::{AdminStore, Opening, Stores};
use crate::backup::{
    self, Absence, ArchiveError, CONFIGURATION, Contents, MAX_BYTES, STORE, WIREGUARD_KEY, named_files,
    sealed,
};
use crate::cli::{BackupArgs, RestoreArgs};
use crate::commands::store::{is_silent, lock_out};
use passphrase::PassphraseError;
use places::{PlaceError, Places};
use vpnd_config::{ConfigError, Invalid, ServerConfig};
use vpnd_pki::wireguard_key;
use vpnd_store::StoreError;
use vpnd_store::audit::AuditEntry;
use vpnd_sys::lock::LockedFile;
use vpnd_sys::secret_file::{self, Existing, PUBLIC_MODE, SECRET_MODE, Staged, WriteError};

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Archive { path: PathBuf, source: ArchiveError },
    #[error("the configuration in the backup can't be used by this vpnd:\n{0}")]
    Configuration(#[from] Invalid),
    #[error("{} has more than {MAX_BYTES} bytes", .0.display())]
    TooLong(PathBuf),
    #[error("a gateway runs with {}; stop it first: systemctl stop vpnd-server", .0.display())]
    Running(PathBuf),
    #[error("can't keep the gateway from starting meanwhile: {0}; run this as root")]
    Lock(#[source] std::io::Error),
    #[error(
        "the users are in a PostgreSQL database: back that up by 'pg_dump' or by the server's own backups, and this \
         machine's files (the configuration, what it names, and the state directory) as files"
    )]
    Database,
    #[error("there is something already; --force replaces it:\n{}", list(.0))]
    Exists(Vec<PathBuf>),
    #[error("can't make the directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("can't make the archive: {0}")]
    Archiving(#[source] std::io::Error),
    #[error(transparent)]
    Passphrase(#[from] PassphraseError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("{entry} in the backup can't become {}; nothing was changed", path.display())]
    Content { entry: String, path: PathBuf },
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("can't print the result: {0}")]
    Output(#[from] std::io::Error),
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("  {}", path.display())).collect::<Vec<_>>().join("\n")
}

/// Writes the backup. The gateway may run.
///
/// # Errors
/// [`BackupError`]; there is no new file then.
pub fn backup(
    args: &BackupArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), BackupError> {
    let config = ServerConfig::load(&args.store.config)?;
    refuse_database(&config)?;
    let passphrase = passphrase::new(args.passphrase_file.as_deref())?;
    let mut contents = Contents::new();
    contents.insert(CONFIGURATION.to_owned(), read(&args.store.config)?);
    let mut left_out = Vec::new();
    for file in named_files(&config) {
        match read(&file.path) {
            Ok(bytes) => drop(contents.insert(file.entry, bytes)),
            Err(BackupError::Read { source, .. })
                if file.absence != Absence::Refused && source.kind() == std::io::ErrorKind::NotFound =>
            {
                left_out.extend((file.absence == Absence::Reported).then_some(file.path));
            }
            Err(error) => return Err(error),
        }
    }
    let mut store = stores.open(&config, Opening::Existing)?;
    contents.insert(STORE.to_owned(), store.copy(MAX_BYTES)?);
    if let Some(key) = store.back_up_wireguard_key()? {
        contents.insert(WIREGUARD_KEY.to_owned(), key);
    }
    let archive = backup::write(&contents, now_s).and_then(|archive| sealed::seal(&archive, &passphrase));
    let archive = archive.map_err(BackupError::Archiving)?;
    secret_file::write(&args.file, &archive, SECRET_MODE, Existing::Refuse)?;
    audit(&mut store, "backup-made", &args.file, now_s)?;
    let users = store.users()?.len();
    writeln!(out, "{}: {users} users, {} KiB", args.file.display(), archive.len() >> 10)?;
    for path in left_out {
        writeln!(out, "without {}, which is not on this machine", path.display())?;
    }
    writeln!(
        out,
        "it holds private keys and password hashes, encrypted under the passphrase: keep that elsewhere"
    )?;
    Ok(())
}

fn refuse_database(config: &ServerConfig) -> Result<(), BackupError> {
    if config.store.database().is_some() { Err(BackupError::Database) } else { Ok(()) }
}

/// Puts a backup in place.
///
/// # Errors
/// [`BackupError`]. All that can be known beforehand is found before anything is written.
pub fn restore(
    args: &RestoreArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), BackupError> {
    let file = read(&args.file)?;
    let damaged = |source| BackupError::Archive { path: args.file.clone(), source };
    let passphrase = passphrase::known(args.passphrase_file.as_deref())?;
    let archive = sealed::open(&file, &passphrase).map_err(damaged)?;
    let (manifest, contents) = backup::read(&archive).map_err(damaged)?;
    let missing = |name: &str| damaged(ArchiveError::Damaged(format!("{name} is missing")));
    let text = contents.get(CONFIGURATION).ok_or_else(|| missing(CONFIGURATION))?;
    let copy = contents.get(STORE).ok_or_else(|| missing(STORE))?;
    let config_path = &places::absolute(&args.store.config)?;
    let base = secret_file::parent(config_path);
    let name = config_path.display().to_string();
    let config = ServerConfig::parse(&String::from_utf8_lossy(text), &name, base)?;
    refuse_database(&config)?;
    let targets = targets(&config, &contents, config_path)?;
    if contents.get(WIREGUARD_KEY).is_some_and(|key| !wireguard_key::is_key(key)) {
        let path = config.server.state_dir.join(wireguard_key::FILE_NAME);
        return Err(BackupError::Content { entry: WIREGUARD_KEY.to_owned(), path });
    }
    let store_path = config.server.store_path();
    let places = Places::new(base, &args.outside)?;
    let paths = || targets.iter().map(|target| &target.path).chain([&store_path]);
    paths().try_for_each(|path| places.check(path))?;
    if !args.force {
        let existing: Vec<PathBuf> = paths().filter(|path| path.exists()).cloned().collect();
        if !existing.is_empty() {
            return Err(BackupError::Exists(existing));
        }
    }
    for target in &targets {
        let directory = secret_file::parent(&target.path);
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(directory);
        made.map_err(|source| BackupError::Directory { path: directory.to_owned(), source })?;
    }
    let _locks = locks(&config, config_path, &places)?;
    // Large files come first; the configuration, without which nothing starts, last.
    let staged = targets.iter().map(|target| Staged::new(&target.path, target.bytes, target.mode));
    let staged = staged.collect::<Result<Vec<_>, _>>()?;
    let mut store = stores.open(&config, Opening::Replace)?;
    let kept = store.replace(copy).map_err(|error| match error {
        StoreError::Corrupted { detail, .. } => {
            damaged(ArchiveError::Damaged(format!("its store: {detail}")))
        }
        other => other.into(),
    })?;
    for file in staged {
        file.publish(Existing::Replace)?;
    }
    if let Some(key) = contents.get(WIREGUARD_KEY) {
        store.restore_wireguard_key(key)?;
    }
    audit(&mut store, "backup-restored", &args.file, now_s)?;
    for path in paths() {
        writeln!(out, "wrote {}", path.display())?;
    }
    let users = store.users()?.len();
    let age_h = now_s.saturating_sub(manifest.made_s) / 3_600;
    writeln!(out, "{name} is in place, with {users} users as they were {age_h} hours ago")?;
    if kept {
        writeln!(out, "the previous store is kept as vpnd.db.replaced")?;
    }
    writeln!(
        out,
        "users that were disabled, removed or given other passwords since can log in again: repeat that first\n\
         tokens of the API and invitations are gone: make others (vpnd token add, vpnd user passwd NAME --invite)\n\
         next: vpnd doctor --config {name}, then systemctl start vpnd-server. Clients have to log in again"
    )?;
    Ok(())
}

/// Locks without which no gateway starts, neither with the configuration in place nor with that of
/// the backup: their control sockets may be others.
///
/// # Errors
/// [`BackupError::Running`], [`BackupError::Lock`].
fn locks(config: &ServerConfig, path: &Path, places: &Places) -> Result<Vec<LockedFile>, BackupError> {
    let running = || BackupError::Running(path.to_owned());
    let lock = |socket: &PathBuf| lock_out(socket).map_err(BackupError::Lock)?.ok_or_else(running);
    let in_place = ServerConfig::load(path).ok().map(|config| config.admin.socket);
    let mut locks = in_place.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
    let socket = &config.admin.socket;
    if in_place.as_ref() == Some(socket) {
        return Ok(locks);
    }
    // The backup has chosen this one.
    match places.check(&LockedFile::path_of_socket(socket)) {
        Ok(()) => locks.push(lock(socket)?),
        Err(_) if is_silent(socket) => {}
        Err(_) => return Err(running()),
    }
    Ok(locks)
}

/// A file that a restore writes.
struct Target<'c> {
    path: PathBuf,
    bytes: &'c [u8],
    mode: u32,
}

/// The files to write, the configuration last. Two keys of it may name one file.
///
/// # Errors
/// [`BackupError::Content`]: an entry is not what the gateway reads at its path.
fn targets<'c>(
    config: &ServerConfig,
    contents: &'c Contents,
    config_path: &Path,
) -> Result<Vec<Target<'c>>, BackupError> {
    let mut targets: Vec<Target<'_>> = Vec::new();
    for file in named_files(config) {
        let Some(bytes) = contents.get(&file.entry) else { continue };
        if !file.kind.accepts(bytes) {
            return Err(BackupError::Content { entry: file.entry, path: file.path });
        }
        if targets.iter().all(|target| target.path != file.path) {
            targets.push(Target { path: file.path, bytes, mode: file.kind.mode() });
        }
    }
    if let Some(bytes) = contents.get(CONFIGURATION) {
        targets.push(Target { path: config_path.to_owned(), bytes, mode: PUBLIC_MODE });
    }
    Ok(targets)
}

fn audit(store: &mut AdminStore, event: &str, file: &Path, now_s: u64) -> Result<(), StoreError> {
    store.audit(AuditEntry {
        at_s: now_s,
        event: event.to_owned(),
        user: String::new(),
        source: String::new(),
        detail: file.display().to_string(),
        by: String::new(),
    })
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, BackupError> {
    use std::io::Read as _;
    let failed = |source| BackupError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut bytes = Zeroizing::new(Vec::with_capacity(length.min(MAX_BYTES) as usize + 1));
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES { Err(BackupError::TooLong(path.to_owned())) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests;
