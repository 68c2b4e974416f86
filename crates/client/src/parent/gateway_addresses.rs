//! Addresses that the gateway has given this client since its profile was made (PROTOCOL §5.3).
//!
//! Invariants: the profile's own file is never written, and its addresses are never left out; what
//! is kept here belongs to the `[server]` of one profile and only adds places to look for the
//! gateway. Whom the client trusts, the name that the gateway must prove, routes and everything
//! else stay the profile's.

use std::io;
use std::path::{Path, PathBuf};

use super::device::file_name;
use vpnd_config::profile::{Profile, ServerAddress, Trust, joined};
use vpnd_proto::control::{MAX_GATEWAY_ADDRESSES, Renewal};
use vpnd_sys::own_file;
use vpnd_sys::secret_file::{self, Existing, SECRET_MODE, WriteError};
use vpnd_sys::text::harmless;

/// More than the longest addresses have.
const MAX_LEN: u64 = 8_192;
/// Weights that differ by more than this part of them are written down.
const ALIKE_PART: u32 = 4;

#[derive(Debug, thiserror::Error)]
pub(super) enum RenewalError {
    #[error("the profile says renew = false")]
    NotPermitted,
    #[error("it names no address")]
    Empty,
    #[error("'{}' is not the address of a gateway", harmless(.0))]
    Address(String),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The addresses of one profile's gateway.
#[derive(Debug)]
pub(super) struct GatewayAddresses {
    path: PathBuf,
    is_permitted: bool,
    own: Vec<ServerAddress>,
    kept: Vec<ServerAddress>,
    /// Their weights: none, or one for each.
    weights: Vec<u32>,
}

impl GatewayAddresses {
    /// Reads what is kept in `directory` for this profile. What can't be used is logged, and the
    /// profile's own addresses are left.
    pub(super) fn read(directory: &Path, profile: &Profile) -> Self {
        let path = directory.join(format!("gateway-{}", digest(profile)));
        let (kept, weights) = if profile.renew { read(&path) } else { <_>::default() };
        Self { path, is_permitted: profile.renew, own: profile.servers.clone(), kept, weights }
    }

    /// Those that the gateway has given last, then those of the profile.
    pub(super) fn servers(&self) -> Vec<ServerAddress> {
        joined(&self.kept, &self.own)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The addresses that were kept last.
    pub(super) fn kept(&self) -> &[ServerAddress] {
        &self.kept
    }

    /// The weights of the first of [`Self::servers`], in their order.
    pub(super) fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// Keeps what the gateway says; returns whether it has new addresses.
    ///
    /// # Errors
    /// If the user does not permit it, it is no list of addresses, or it can't be written. Then all
    /// stays as it was.
    pub(super) fn keep(&mut self, renewal: &Renewal) -> Result<bool, RenewalError> {
        if !self.is_permitted {
            return Err(RenewalError::NotPermitted);
        }
        let parse = |text: &str| text.parse().map_err(|()| RenewalError::Address(text.to_owned()));
        let given: Vec<ServerAddress> =
            renewal.addresses.iter().map(|text| parse(text)).collect::<Result<_, _>>()?;
        let new = joined(&given, &[]);
        if new.is_empty() {
            return Err(RenewalError::Empty);
        }
        // An address that stands there twice has no one weight.
        let weights: Vec<u32> = match renewal.weighted().filter(|_| new.len() == given.len()) {
            Some(weighted) => weighted.map(|(_, weight)| weight).collect(),
            None => Vec::new(),
        };
        let is_known = new == self.kept || (self.kept.is_empty() && new == self.own);
        if is_known && are_alike(&weights, &self.weights) {
            return Ok(false);
        }
        secret_file::write(&self.path, as_text(&new, &weights).as_bytes(), SECRET_MODE, Existing::Replace)?;
        (self.kept, self.weights) = (new, weights);
        Ok(!is_known)
    }
}

/// Whether weights differ too little to write them down: they do a little at each login.
fn are_alike(new: &[u32], known: &[u32]) -> bool {
    let is_alike = |(new, known): (&u32, &u32)| {
        (*new == 0) == (*known == 0) && new.abs_diff(*known) <= new.max(known) / ALIKE_PART
    };
    new.len() == known.len() && new.iter().zip(known).all(is_alike)
}

/// The content of the file: an address in each line, with its weight if there are weights.
fn as_text(addresses: &[ServerAddress], weights: &[u32]) -> String {
    let line = |(place, address): (usize, &ServerAddress)| match weights.get(place) {
        Some(weight) => format!("{address} {weight}\n"),
        None => format!("{address}\n"),
    };
    addresses.iter().enumerate().map(line).collect()
}

/// A name for what the profile says of the gateway: another file for the same one is the same, and
/// one that an administrator has changed there is another.
fn digest(profile: &Profile) -> String {
    let trust = match &profile.trust {
        Trust::System => "system",
        Trust::Pinned { ca_pem } => ca_pem.trim(),
    };
    let addresses: Vec<String> = profile.servers.iter().map(ToString::to_string).collect();
    file_name(addresses.iter().map(String::as_str).chain([&*profile.server_name, trust]))
}

fn read(path: &Path) -> (Vec<ServerAddress>, Vec<u32>) {
    let text = match own_file::read(path, MAX_LEN) {
        Ok(bytes) => String::from_utf8(bytes).unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return <_>::default(),
        Err(error) => {
            tracing::warn!("the gateway's list of its addresses is not used: {}: {error}", path.display());
            return <_>::default();
        }
    };
    let line = |line: &str| {
        let (address, weight) = line.split_once(' ').map_or((line, None), |(at, weight)| (at, Some(weight)));
        let weight = weight.map(|weight| weight.parse::<u32>().ok());
        (weight != Some(None)).then_some((address.parse::<ServerAddress>().ok()?, weight.flatten()))
    };
    let read = text.lines().map(line).collect::<Option<Vec<_>>>();
    match read {
        Some(lines) if (1..=MAX_GATEWAY_ADDRESSES).contains(&lines.len()) => {
            let weights = lines.iter().map(|(_, weight)| *weight).collect::<Option<Vec<u32>>>();
            (lines.into_iter().map(|(address, _)| address).collect(), weights.unwrap_or_default())
        }
        _ => {
            let file = path.display();
            tracing::warn!("the gateway's list of its addresses is not used: {file} is damaged; remove it");
            <_>::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use vpnd_proto::control::{List, Text};

    use super::*;

    fn profile(rest: &str) -> Profile {
        let text =
            format!("version = 1\n[server]\naddresses = [\"vpn.example.org\"]\ntrust = \"system\"\n{rest}");
        Profile::parse(&text, "ann.toml").unwrap()
    }

    fn renewal(addresses: &[&str]) -> Renewal {
        let texts = addresses.iter().map(|address| Text::new(*address).unwrap());
        Renewal { addresses: List::new(texts.collect()).unwrap(), weights: None }
    }

    fn weighted(addresses: &[&str], weights: &[u32]) -> Renewal {
        Renewal { weights: List::new(weights.to_vec()).ok(), ..renewal(addresses) }
    }

    fn texts(servers: &[ServerAddress]) -> Vec<String> {
        servers.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn learned_gateway_addresses_precede_those_of_their_profile() {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = GatewayAddresses::read(dir.path(), &profile(""));
        assert_eq!(texts(&addresses.servers()), ["vpn.example.org:4433"]);
        assert!(!addresses.keep(&renewal(&["vpn.example.org:4433"])).unwrap(), "that is what it has");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "and needs no file");
        let new = renewal(&["192.0.2.9", "[2001:db8::9]:443", "192.0.2.9:4433"]);
        assert!(addresses.keep(&new).unwrap());
        assert!(!addresses.keep(&new).unwrap(), "once");
        let all = ["192.0.2.9:4433", "[2001:db8::9]:443", "vpn.example.org:4433"];
        assert_eq!(texts(&addresses.servers()), all);
        assert_eq!(
            texts(&GatewayAddresses::read(dir.path(), &profile("[tunnel]\ndns = false\n")).servers()),
            all
        );
        for other in ["name = \"vpn2.example.org\"\n", "renew = false\n"] {
            assert_eq!(GatewayAddresses::read(dir.path(), &profile(other)).servers().len(), 1, "{other}");
        }
        assert!(addresses.keep(&renewal(&["192.0.2.10"])).unwrap());
        assert_eq!(texts(&addresses.servers()), ["192.0.2.10:4433", "vpn.example.org:4433"]);
    }

    #[test]
    fn a_lying_gateway_cannot_remove_the_profiles_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = GatewayAddresses::read(dir.path(), &profile(""));
        let hostile = [
            "",
            "vpn.example.org:0",
            "a b",
            "a\nb:1",
            "../x",
            "vpn.example.org:4433\u{1b}[2J",
            "http://x",
            "x:99999",
            "[::1",
            "::1]",
        ];
        for text in hostile {
            let error = addresses.keep(&renewal(&["192.0.2.9", text])).unwrap_err().to_string();
            assert!(
                error.contains("is not the address") && !error.contains('\u{1b}') && !error.contains('\n'),
                "{error}"
            );
        }
        assert!(matches!(addresses.keep(&renewal(&[])), Err(RenewalError::Empty)));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let many: Vec<String> = (0..MAX_GATEWAY_ADDRESSES).map(|n| format!("192.0.2.{n}:1")).collect();
        assert!(addresses.keep(&renewal(&many.iter().map(String::as_str).collect::<Vec<_>>())).unwrap());
        assert!(addresses.servers().contains(&"vpn.example.org".parse().unwrap()), "the profile's stay");
        let mut closed = GatewayAddresses::read(dir.path(), &profile("renew = false\n"));
        assert!(matches!(closed.keep(&renewal(&["192.0.2.9"])), Err(RenewalError::NotPermitted)));
        assert_eq!(texts(&closed.servers()), ["vpn.example.org:4433"]);
    }

    #[test]
    fn weights_are_kept_with_their_addresses_once_they_differ() {
        let dir = tempfile::tempdir().unwrap();
        let read = || GatewayAddresses::read(dir.path(), &profile(""));
        let mut addresses = read();
        let two = ["192.0.2.9:4433", "vpn.example.org:4433"];
        assert!(addresses.keep(&weighted(&two, &[90, 40])).unwrap());
        assert_eq!(
            (texts(&read().servers()), read().weights()),
            (two.map(str::to_owned).to_vec(), &[90, 40][..])
        );
        for (given, kept) in [(&[80, 35][..], [90, 40]), (&[60, 40], [60, 40]), (&[60, 0], [60, 0])] {
            assert!(!addresses.keep(&weighted(&two, given)).unwrap(), "the addresses are no news");
            assert_eq!((addresses.weights(), read().weights()), (&kept[..], &kept[..]), "{given:?}");
        }
        // None, too few, and two for one address.
        for lacking in [renewal(&two), weighted(&two, &[1]), weighted(&[two[0], two[0], two[1]], &[1, 2, 3])]
        {
            addresses.keep(&weighted(&two, &[7, 7])).unwrap();
            assert!(!addresses.keep(&lacking).unwrap());
            assert!(addresses.weights().is_empty() && read().weights().is_empty(), "{lacking:?}");
        }
        // A gateway whose addresses are those of the profile.
        let profile = profile("renew = true\n");
        let elsewhere = tempfile::tempdir().unwrap();
        let mut addresses = GatewayAddresses::read(elsewhere.path(), &profile);
        assert!(!addresses.keep(&weighted(&["vpn.example.org"], &[3])).unwrap());
        assert_eq!(GatewayAddresses::read(elsewhere.path(), &profile).weights(), [3]);
    }

    #[test]
    fn a_file_that_is_damaged_or_another_users_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let mut addresses = GatewayAddresses::read(dir.path(), &profile(""));
        assert!(addresses.keep(&renewal(&["192.0.2.9"])).unwrap());
        let path = addresses.path().to_owned();
        let servers = || GatewayAddresses::read(dir.path(), &profile("")).servers().len();
        assert_eq!(servers(), 2);
        for damage in [
            &b"192.0.2.9:4433\nno address at all\n"[..],
            b"",
            b"\xff\xfe",
            &b"192.0.2.9:1\n".repeat(17),
            b"192.0.2.9:4433 -1\n",
            b"192.0.2.9:4433 4294967296\n",
            b"192.0.2.9:4433 1 2\n",
            &[b'a'; 9_000],
        ] {
            fs::write(&path, damage).unwrap();
            assert_eq!(servers(), 1, "{damage:?}");
        }
        fs::remove_file(&path).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "192.0.2.9:4433\n").unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert_eq!(servers(), 1, "a link");
        // Writing replaces the link, and not what it leads to.
        assert!(addresses.keep(&renewal(&["192.0.2.8"])).unwrap());
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "192.0.2.9:4433\n");
        assert_eq!(servers(), 2);
    }
}
