//! OpenVPN's log at its verbosity 3.

use std::fmt;

use super::config::CipherNames;

/// Whether the process says that it is ready: a server to serve, a client to send.
pub fn is_complete(log: &str) -> bool {
    log.contains("Initialization Sequence Completed")
}

/// The version in the first words of `openvpn --version`.
pub fn version(words: &str) -> Option<(u32, u32)> {
    let mut numbers = words.strip_prefix("OpenVPN ")?.split(['.', '_', ' ']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// How the data channel is protected, in OpenVPN's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    cipher: String,
    auth: Option<String>,
}

impl Channel {
    /// Whether this is what was asked for.
    pub fn is(&self, words: &CipherNames) -> bool {
        let absent = |word: &str| word.starts_with("[null-");
        let same = |found: &str, wanted: &str| found == wanted || (wanted == "none" && absent(found));
        // A cipher that authenticates itself shows no other authentication.
        same(&self.cipher, words.cipher) && self.auth.as_ref().is_none_or(|auth| same(auth, words.auth))
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.cipher)?;
        match &self.auth {
            Some(auth) => write!(out, " with {auth}"),
            None => Ok(()),
        }
    }
}

/// The newest data channel of a client's log.
pub fn channel(log: &str) -> Option<Channel> {
    let line = log.lines().rfind(|line| line.contains("Data Channel: cipher '"))?;
    let quoted = |after: &str| line.split_once(after)?.1.split_once('\'').map(|(word, _)| word.to_owned());
    Some(Channel { cipher: quoted("Data Channel: cipher '")?, auth: quoted(", auth '") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GCM: &str = "2026-11-21 04:55:54 Initialization Sequence Completed\n\
                       2026-11-21 04:55:54 Data Channel: cipher 'AES-256-GCM', peer-id: 0\n";

    #[test]
    fn the_negotiated_cipher_is_the_newest_of_the_log() {
        let found = channel(GCM).unwrap();
        assert_eq!(found.to_string(), "AES-256-GCM");
        assert!(found.is(&CipherNames { cipher: "AES-256-GCM", auth: "SHA256" }));
        assert!(!found.is(&CipherNames { cipher: "AES-128-GCM", auth: "SHA256" }));
        let later = format!("{GCM}x Data Channel: cipher 'AES-256-CBC', auth 'SHA256', peer-id: 1\n");
        let found = channel(&later).unwrap();
        assert_eq!(found.to_string(), "AES-256-CBC with SHA256");
        assert!(!found.is(&CipherNames { cipher: "AES-256-CBC", auth: "none" }));
        assert_eq!(channel("Outgoing Data Channel: Cipher 'AES-256-GCM' initialized"), None);
    }

    #[test]
    fn no_protection_and_no_encryption_are_distinguished() {
        let (nothing, auth_only) =
            (CipherNames { cipher: "none", auth: "none" }, CipherNames { cipher: "none", auth: "SHA256" });
        let bare = channel("Data Channel: cipher '[null-cipher]', auth '[null-digest]', peer-id: 1").unwrap();
        assert!(bare.is(&nothing) && !bare.is(&auth_only));
        let signed = channel("Data Channel: cipher '[null-cipher]', auth 'SHA256', peer-id: 1").unwrap();
        assert!(signed.is(&auth_only) && !signed.is(&nothing));
        let sealed = channel("Data Channel: cipher 'AES-256-CBC', auth '[null-digest]', peer-id: 1").unwrap();
        assert!(sealed.is(&CipherNames { cipher: "AES-256-CBC", auth: "none" }) && !sealed.is(&nothing));
        assert!(!channel(GCM).unwrap().is(&nothing));
    }

    #[test]
    fn versions_are_numbers_and_not_text() {
        assert_eq!(version("OpenVPN 2.6.14 x86_64-pc-linux-gnu [SSL (OpenSSL)]"), Some((2, 6)));
        assert_eq!(version("OpenVPN 2.10_beta1 x86_64"), Some((2, 10)));
        assert_eq!((version("version unknown"), version("OpenVPN two")), (None, None));
    }

    #[test]
    fn readiness_is_read() {
        assert!(is_complete(GCM) && !is_complete("Initialization"));
    }
}
