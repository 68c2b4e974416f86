//! Passwords that are tried first: those that many people have, and those that a user's name or the
//! service suggests.
//!
//! `frequent.txt` has the 10,000 most frequent ones of eight characters and more, in lower case and
//! in order. They are those of the list in zxcvbn 3.1.1 (Copyright 2016 Joshua Holmer, MIT License,
//! after zxcvbn by Dropbox), whose licence is in `frequent.LICENSE`.

use super::Password;

const FREQUENT: &str = include_str!("frequent.txt");
/// Words that people think of first when asked for a password of this service, in addition to
/// frequent passwords. docs/IDENTITY.md lists them.
const SUGGESTED: [&str; 20] = [
    "vpn",
    "vpnd",
    "wireguard",
    "password",
    "passwort",
    "kennwort",
    "login",
    "gateway",
    "campus",
    "university",
    "universitaet",
    "universität",
    "hochschule",
    "college",
    "student",
    "studium",
    "welcome",
    "willkommen",
    "admin",
    "administrator",
];

/// Whether an attacker who knows the user's name would try this password first.
pub fn is_guessable(password: &Password, user: &str) -> bool {
    let text = password.expose().to_lowercase();
    // Trims the signs around a word that make it long enough: 2026!
    let word = text.trim_matches(|letter: char| !letter.is_alphabetic());
    let name = user.to_lowercase();
    let (local, _) = name.split_once('@').unwrap_or((&name, ""));
    is_frequent(&text)
        || is_repeated(&text)
        || [&*name, local].into_iter().any(|known| text == known || (!known.is_empty() && word == known))
        || SUGGESTED.contains(&word)
}

fn is_frequent(text: &str) -> bool {
    let bytes = FREQUENT.as_bytes();
    let (mut from, mut until) = (0, bytes.len());
    while from < until {
        // The line in which the middle is.
        let middle = from + (until - from) / 2;
        let start = bytes[..middle].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let end =
            bytes[middle..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| middle + at);
        match bytes[start..end].cmp(text.as_bytes()) {
            std::cmp::Ordering::Equal => return true,
            std::cmp::Ordering::Less => from = end + 1,
            std::cmp::Ordering::Greater => until = start,
        }
    }
    false
}

/// Whether it is one or two characters again and again.
fn is_repeated(text: &str) -> bool {
    let letters: Vec<char> = text.chars().collect();
    letters.iter().zip(letters.iter().skip(2)).all(|(one, next)| one == next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_bad(text: &str) -> bool {
        is_guessable(&Password::new(text.to_owned()), "Ann.Miller@uni.example")
    }

    #[test]
    fn every_frequent_password_is_found_and_the_list_is_as_it_is_said_to_be() {
        let lines: Vec<&str> = FREQUENT.lines().collect();
        assert_eq!(lines.len(), 10_000);
        assert!(lines.iter().all(|line| line.len() >= super::super::MIN_PASSWORD_CHARS));
        assert!(lines.windows(2).all(|pair| pair[0] < pair[1]), "in order, each once");
        assert!(lines.iter().all(|line| is_frequent(line)));
        assert!(!is_frequent("") && !is_frequent("zzzzzzzzzzzz") && !is_frequent("!") && !is_frequent("\n"));
    }

    #[test]
    fn frequent_passwords_are_refused_in_any_spelling() {
        for bad in [
            "password",
            "PassWord",
            "1234567890",
            "qwertyuiop",
            "iloveyou",
            "trustno1",
            "aaaaaaaaaa",
            "abababababa",
            "ann.miller@uni.example",
            "Ann.Miller2026!",
            "Passwort2026",
            "!!vpn2026!!",
            "Universität1",
        ] {
            assert!(is_bad(bad), "{bad}");
        }
        for good in [
            "correct horse battery",
            "ann's password",
            "ann.miller likes tea",
            "Passwort und Tee",
            "vpnvpntea",
            "zehn Ziegen",
            "密码密码我喜欢茶",
            "          x",
        ] {
            assert!(!is_bad(good), "{good}");
        }
    }
}
