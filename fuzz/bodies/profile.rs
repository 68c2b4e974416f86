//! Any text as a client's profile: it is read or refused, and what is read is written in a form
//! that reads the same.

use vpnd_config::profile::Profile;

/// Checks one input.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Profile::parse(text, "me.toml") {
        Ok(profile) => {
            assert!(!profile.servers.is_empty());
            // White space around PEM text is settled by the first writing.
            let settled = Profile::parse(&profile.to_toml(), "me.toml").expect("what is written can be read");
            let again = Profile::parse(&settled.to_toml(), "me.toml").expect("what is written can be read");
            assert_eq!(settled, again);
            assert_eq!(
                (settled.servers, settled.user, settled.routes),
                (profile.servers, profile.user, profile.routes)
            );
        }
        Err(invalid) => {
            assert!(!invalid.problems.is_empty());
            assert!(!invalid.to_string().contains("PRIVATE KEY"), "a secret shows");
        }
    }
}
