//! `vpnd user import` and `vpnd user export`.
//!
//! Invariants: an import changes everything or nothing, and every mistake of a file is reported
//! before anything is hashed; an export holds no secret unless that is asked for. What is there
//! already is changed only with `--update`, and then only in the fields that a row has.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::table::{self, FIELDS, Row};
use super::{UserError, encoding, entry, modify, open, secret_input};
use crate::admin_store::{Stores, UserSummary};
use crate::cli::{UserExportArgs, UserImportArgs};
use vpnd_config::ServerConfig;
use vpnd_config::access_profile::Who;
use vpnd_config::profile::{USER_NAME_RULE, is_user_name};
use vpnd_store::password::{
    Hasher, MAX_PASSWORD_BYTES, MIN_PASSWORD_CHARS, NoMemory, Password, is_guessable,
};
use vpnd_store::{AddressChange, LOCAL, PasswordHash, TotpSecret, UserChange, UserImport};
use vpnd_sys::date::Expiry;
use vpnd_sys::process;

/// Users of one file, at most.
const MAX_ROWS: usize = 200_000;
/// Bytes of the largest file.
const MAX_BYTES: u64 = 64 << 20;
/// Mistakes that are printed, and users without an access profile; the rest is counted.
const MAX_SHOWN: usize = 50;
/// Interval of the lines about the progress of hashing.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Bytes of the shortest secret of one-time codes (RFC 4226 section 4).
const MIN_TOTP_BYTES: usize = 16;

/// The changes that a row asks for.
struct Planned {
    import: UserImport,
    /// A password that is to be hashed.
    password: Option<Password>,
    /// Whether the user is added or gets other groups, and no access profile is for them.
    lacks_profile: bool,
}

pub(super) fn import(
    args: &UserImportArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let text = read(args)?;
    let (config, mut store) = open(&args.store, stores)?;
    let existing = store.users()?;
    let table::Table { rows, mut mistakes } = table::read(&text);
    let mut planned = plan(&config, &rows, &existing, args.update, &mut mistakes);
    if !mistakes.is_empty() {
        let rest = mistakes.len().saturating_sub(MAX_SHOWN);
        mistakes.truncate(MAX_SHOWN);
        return Err(UserError::Rows { file: args.file.display().to_string(), mistakes, rest });
    }
    let updated = planned.iter().filter(|planned| planned.import.exists).count();
    let added = planned.len() - updated;
    let without_profile: Vec<String> =
        planned.iter().filter(|one| one.lacks_profile).map(|one| one.import.name.clone()).collect();
    if args.dry_run {
        writeln!(out, "nothing is wrong: {added} users would be added, {updated} updated")?;
        return Ok(warn_without_profile(&without_profile, out)?);
    }
    hash_all(&mut planned)?;
    let imports: Vec<UserImport> = planned.into_iter().map(|planned| planned.import).collect();
    store.import(&imports, now_s)?;
    let mut entry = entry("users-imported", "", now_s);
    entry.detail = format!("{added} added, {updated} updated");
    store.audit(entry)?;
    writeln!(out, "{added} users added, {updated} updated")?;
    Ok(warn_without_profile(&without_profile, out)?)
}

/// Says what these users meet, whom no access profile is for.
fn warn_without_profile(names: &[String], out: &mut dyn Write) -> std::io::Result<()> {
    let (shown, rest) = names.split_at(names.len().min(MAX_SHOWN));
    for name in shown {
        modify::write_without_profile(name, out)?;
    }
    if rest.is_empty() { Ok(()) } else { writeln!(out, "and none is for {} more users", rest.len()) }
}

fn read(args: &UserImportArgs) -> Result<Zeroizing<String>, UserError> {
    use std::io::Read as _;
    let path = &args.file;
    let failed = |source| UserError::Read { path: path.display().to_string(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    secret_input::own(&file).map_err(failed)?;
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        let detail = format!("it has more than {} MiB; import it in parts", MAX_BYTES >> 20);
        return Err(failed(std::io::Error::other(detail)));
    }
    encoding::decode(&bytes).map_err(|reason| failed(std::io::Error::other(reason)))
}

fn plan(
    config: &ServerConfig,
    rows: &[Row],
    there: &[UserSummary],
    update: bool,
    mistakes: &mut Vec<String>,
) -> Vec<Planned> {
    if rows.len() > MAX_ROWS {
        mistakes.push(format!("the file has {} users; at most {MAX_ROWS} are taken at once", rows.len()));
        return Vec::new();
    }
    // Names that differ in case alone are no two names.
    let known: HashMap<String, &UserSummary> =
        there.iter().map(|user| (user.name.to_ascii_lowercase(), user)).collect();
    let in_file: HashSet<String> =
        rows.iter().filter_map(|row| row.get("name")).map(str::to_ascii_lowercase).collect();
    let mut first: BTreeMap<String, &str> = BTreeMap::new();
    let mut planned = Vec::with_capacity(rows.len());
    for row in rows {
        let mut found = Mistakes { row, list: mistakes };
        let Some(name) = found.name() else { continue };
        let folded = name.to_ascii_lowercase();
        if let Some(place) = first.insert(folded.clone(), &row.place) {
            found.add(&format!("{name} is in {place} already"));
            continue;
        }
        let user = known.get(&folded).copied();
        match user {
            Some(user) if user.name != name => found.add(&format!("there is a user '{}' already", user.name)),
            Some(user) if user.source != LOCAL => {
                found.add(&format!("{name} is a user of the source '{}', which describes them", user.source));
            }
            Some(_) if !update => {
                found.add(&format!("there is a user '{name}' already (--update changes them)"))
            }
            _ => {}
        }
        let is_known = |sponsor: &str| {
            let folded = sponsor.to_ascii_lowercase();
            known.contains_key(&folded) || in_file.contains(&folded) || config.source_of(sponsor).is_some()
        };
        planned.extend(found.planned(config, name, user, is_known));
    }
    planned
}

/// The mistakes of one row.
struct Mistakes<'a> {
    row: &'a Row,
    list: &'a mut Vec<String>,
}

impl Mistakes<'_> {
    fn add(&mut self, what: &str) {
        self.list.push(format!("{}: {what}", self.row.place));
    }

    fn name(&mut self) -> Option<String> {
        let name = self.row.get("name").unwrap_or_default();
        if is_user_name(name) {
            return Some(name.to_owned());
        }
        self.add(&format!("{name:?} can't be a name: write {USER_NAME_RULE}"));
        None
    }

    fn planned(
        &mut self,
        config: &ServerConfig,
        name: String,
        user: Option<&UserSummary>,
        is_known: impl Fn(&str) -> bool,
    ) -> Option<Planned> {
        let before = self.list.len();
        let (hash, password) = self.password(user.is_none());
        let change = UserChange {
            expires_s: self.expires().map(Expiry::seconds),
            sponsor: self.sponsor(is_known).map(Some),
            note: self.note(),
            groups: self.groups(),
            totp: self.totp().map(Some),
            addresses: None,
        };
        let groups = change.groups.as_deref().or(user.map(|user| &*user.groups)).unwrap_or_default();
        let who = Who { user: &name, source: LOCAL, groups };
        let lacks_profile = (user.is_none() || change.groups.is_some()) && config.profiles.of(who).is_none();
        let addresses =
            self.addresses(config, who).map(|addresses| AddressChange { device: None, addresses });
        let change = UserChange { addresses, ..change };
        let sponsor = change.sponsor.clone().unwrap_or_else(|| user.and_then(|user| user.sponsor.clone()));
        let expires_s = change.expires_s.unwrap_or_else(|| user.and_then(|user| user.expires_s));
        if let Err(error) = modify::check_guest(&name, sponsor.as_deref(), expires_s) {
            self.add(&error.to_string());
        }
        let enabled = self.enabled();
        let import = UserImport { name, exists: user.is_some(), password: hash, change, enabled };
        (self.list.len() == before).then_some(Planned { import, password, lacks_profile })
    }

    fn password(&mut self, required: bool) -> (Option<PasswordHash>, Option<Password>) {
        let hash = self.row.get("password_hash").map(|text| PasswordHash::new(text.to_owned()));
        let password = self.row.get("password").map(|text| Password::new(text.to_owned()));
        match (&hash, &password) {
            (Some(_), Some(_)) => self.add("give password or password_hash, not both"),
            (None, None) if required => self.add("a new user needs password or password_hash"),
            (Some(hash), None) if !Hasher::is_acceptable(hash) => {
                self.add(
                    "password_hash must be argon2 (up to 256 MiB, and 512 MiB in all passes together), bcrypt ($2b$, cost 4 to 14) or {SSHA}",
                );
            }
            (None, Some(password)) => {
                let (chars, bytes) = (password.expose().chars().count(), password.expose().len());
                if chars < MIN_PASSWORD_CHARS || bytes > MAX_PASSWORD_BYTES {
                    self.add(&format!(
                        "the password has not {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_BYTES} characters"
                    ));
                } else if is_guessable(password, self.row.get("name").unwrap_or_default()) {
                    self.add("the password is one that is tried first: many people have it, or the name suggests it");
                }
            }
            _ => {}
        }
        (hash, password)
    }

    fn expires(&mut self) -> Option<Expiry> {
        let text = self.row.get("expires")?;
        text.parse().map_err(|error| self.add(&format!("expires is {text:?}: {error}"))).ok()
    }

    fn sponsor(&mut self, is_known: impl Fn(&str) -> bool) -> Option<String> {
        let sponsor = self.row.get("sponsor")?;
        if !is_known(sponsor) {
            self.add(&format!("there is no user '{sponsor}' to be the sponsor"));
        }
        Some(sponsor.to_owned())
    }

    fn note(&mut self) -> Option<String> {
        let text = self.row.get("note")?;
        modify::note(text).map_err(|error| self.add(&error.to_string())).ok()
    }

    fn groups(&mut self) -> Option<Vec<String>> {
        let text = self.row.get("groups")?;
        let groups: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if let Some(group) = groups.iter().find(|group| !is_user_name(group)) {
            self.add(&format!(
                "{group:?} can't be a group: write {USER_NAME_RULE}, and spaces between groups"
            ));
        }
        Some(groups)
    }

    fn addresses(&mut self, config: &ServerConfig, who: Who<'_>) -> Option<Vec<IpAddr>> {
        let text = self.row.get("addresses")?;
        let addresses: Result<Vec<IpAddr>, _> = text.split_whitespace().map(str::parse).collect();
        let Ok(addresses) = addresses else {
            self.add(&format!("addresses are {text:?}: write IP addresses, and spaces between them"));
            return None;
        };
        if let Err(error) = modify::check_addresses(config, who, &addresses) {
            self.add(&error.to_string());
        }
        Some(addresses)
    }

    fn enabled(&mut self) -> Option<bool> {
        match self.row.get("enabled")? {
            "true" => Some(true),
            "false" => Some(false),
            other => {
                self.add(&format!("enabled is {other:?}: write true or false"));
                None
            }
        }
    }

    fn totp(&mut self) -> Option<TotpSecret> {
        let text = self.row.get("totp_secret")?;
        let secret =
            STANDARD.decode(text).ok().filter(|secret| (MIN_TOTP_BYTES..=128).contains(&secret.len()));
        if secret.is_none() {
            self.add("totp_secret is not a secret of 16 to 128 bytes in base64");
        }
        secret.map(TotpSecret::new)
    }
}

/// Hashes all passwords on all cores, and writes to standard error how far it is.
fn hash_all(planned: &mut [Planned]) -> Result<(), NoMemory> {
    let waiting: Vec<&mut Planned> = planned.iter_mut().filter(|one| one.password.is_some()).collect();
    let total = waiting.len();
    let workers = process::available_cores().map_or(1, |cores| cores.len()).clamp(1, total.max(1));
    let (queue, done) = (std::sync::Mutex::new(waiting.into_iter()), AtomicUsize::new(0));
    let hasher = Hasher::default();
    let work = || -> Result<(), NoMemory> {
        loop {
            // A worker that panics holds no half-done work: each takes one and puts it back itself.
            let next = queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some(one) = next else { return Ok(()) };
            if let Some(password) = one.password.take() {
                one.import.password = Some(hasher.hash(&password)?);
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut shown = Instant::now();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(20));
            if shown.elapsed() >= PROGRESS_INTERVAL {
                eprintln!("{} of {total} passwords are hashed", done.load(Ordering::Relaxed));
                shown = Instant::now();
            }
        }
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Err(NoMemory)))
    })
}

pub(super) fn export(
    args: &UserExportArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (_, mut store) = open(&args.store, stores)?;
    let users = store.users()?;
    let mut secrets = HashMap::new();
    if args.with_hashes {
        secrets = store.secrets()?.into_iter().map(|secret| (secret.name.clone(), secret)).collect();
        store.audit(entry("hashes-exported", "", now_s))?;
    }
    let rows: Vec<_> = users
        .iter()
        // A file has no certificates, and without one a machine is none.
        .filter(|user| user.source == LOCAL && !user.is_machine)
        .map(|user| {
            let secret = secrets.get(&user.name);
            let hash = secret.map_or("", |secret| std::str::from_utf8(&secret.hash.0).unwrap_or(""));
            let totp = secret.and_then(|secret| secret.totp.as_ref());
            FIELDS.map(|field| {
                Zeroizing::new(match field {
                    "name" => user.name.clone(),
                    "groups" => user.groups.join(" "),
                    "expires" => user.expires_s.map_or_else(String::new, |s| Expiry::At(s).to_string()),
                    "sponsor" => user.sponsor.clone().unwrap_or_default(),
                    "note" => user.note.clone(),
                    "enabled" => user.enabled.to_string(),
                    "password_hash" => hash.to_owned(),
                    "addresses" => {
                        let any = user.fixed_addresses.iter().filter(|fixed| fixed.device.is_none());
                        any.map(|fixed| fixed.address.to_string()).collect::<Vec<_>>().join(" ")
                    }
                    "totp_secret" => totp.map_or_else(String::new, |totp| STANDARD.encode(&*totp.0)),
                    _ => String::new(),
                })
            })
        })
        .collect();
    table::write(&rows, args.json, out)
}
