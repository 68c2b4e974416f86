//! The answer of a user's script: which client is reached where, which processes count, what the
//! report says.

use std::net::IpAddr;

use crate::system::ClientAddress;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptAnswer {
    /// The clients in order.
    pub addresses: Vec<ClientAddress>,
    /// Processes of the gateway.
    pub gateway: Vec<u32>,
    /// Processes of the clients.
    pub clients: Vec<u32>,
    pub version: Option<String>,
    /// The cipher in use.
    pub cipher: Option<String>,
    /// Anything else for the report.
    pub notes: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptAnswerError {
    /// A line cannot be read.
    #[error("line {line}: `{text}`: {reason}")]
    Line {
        /// Its number, from 1.
        line: usize,
        text: String,
        reason: String,
    },
    /// A client is not mentioned.
    #[error("no line for client {0}")]
    NoClient(usize),
}

impl ScriptAnswer {
    /// Reads an answer for a lab with `clients` clients.
    ///
    /// # Errors
    /// [`ScriptAnswerError`] of the first line that is wrong.
    pub fn parse(text: &str, clients: usize) -> Result<Self, ScriptAnswerError> {
        let mut answer = Self::default();
        let mut addresses: Vec<Option<ClientAddress>> = vec![None; clients];
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |reason: String| ScriptAnswerError::Line {
                line: at + 1,
                text: line.chars().take(200).collect(),
                reason,
            };
            let (kind, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim();
            match kind {
                "version" => answer.version = Some(rest.to_owned()),
                "cipher" => answer.cipher = Some(rest.to_owned()),
                "note" => answer.notes.push(rest.to_owned()),
                "process" => answer.take_process(rest).map_err(wrong)?,
                "client" => {
                    let (number, address) = client(rest, clients).map_err(wrong)?;
                    if addresses[number - 1].replace(address).is_some() {
                        return Err(wrong("this client had a line already".into()));
                    }
                }
                _ => {
                    return Err(wrong(
                        "it begins with none of client, process, version, cipher, note".into(),
                    ));
                }
            }
        }
        if let Some(missing) = addresses.iter().position(Option::is_none) {
            return Err(ScriptAnswerError::NoClient(missing + 1));
        }
        answer.addresses = addresses.into_iter().flatten().collect();
        Ok(answer)
    }

    fn take_process(&mut self, text: &str) -> Result<(), String> {
        let (side, pid) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let pid = pid.trim().parse::<u32>().ok().filter(|pid| *pid > 0);
        let pid = pid.ok_or_else(|| "a process is `process gateway|client PID`".to_owned())?;
        match side {
            "gateway" => self.gateway.push(pid),
            "client" => self.clients.push(pid),
            _ => return Err("a process is the gateway's or a client's".into()),
        }
        Ok(())
    }
}

/// `NUMBER DEVICE ADDRESS [ADDRESS]`.
fn client(text: &str, clients: usize) -> Result<(usize, ClientAddress), String> {
    let mut words = text.split_whitespace();
    let number =
        words.next().and_then(|word| word.parse::<usize>().ok()).filter(|n| (1..=clients).contains(n));
    let number = number.ok_or_else(|| format!("clients are numbered from 1 to {clients}"))?;
    let device = words.next().ok_or("the device is missing")?.to_owned();
    let mut address = ClientAddress { v4: None, v6: None, device };
    for word in words {
        let twice = match word.parse::<IpAddr>().map_err(|_| format!("`{word}` is no IP address"))? {
            IpAddr::V4(v4) => address.v4.replace(v4).is_some(),
            IpAddr::V6(v6) => address.v6.replace(v6).is_some(),
        };
        if twice {
            return Err("it has two addresses of one version".into());
        }
    }
    if address.v4.is_none() && address.v6.is_none() {
        return Err("the inner address is missing".into());
    }
    Ok((number, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_answer_is_read_in_any_order() {
        let text = "# mine\nclient 2 tun0 10.0.0.2\nversion mine 1.0\n\n  client 1 tun1 fd00::1 10.0.0.1\ncipher  x y\n\
                    process gateway 7\nprocess client 8\nprocess client 9\nnote a\nnote b c\n";
        let answer = ScriptAnswer::parse(text, 2).unwrap();
        assert_eq!((answer.gateway, answer.clients), (vec![7], vec![8, 9]));
        assert_eq!((answer.version.as_deref(), answer.cipher.as_deref()), (Some("mine 1.0"), Some("x y")));
        assert_eq!(answer.notes, ["a", "b c"]);
        assert_eq!(answer.addresses[0].device, "tun1");
        assert_eq!(answer.addresses[0].v6, Some("fd00::1".parse().unwrap()));
        assert_eq!(
            (answer.addresses[1].v4, answer.addresses[1].v6),
            (Some("10.0.0.2".parse().unwrap()), None)
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, expected) in [
            ("", "no line for client 1"),
            ("client 1 tun0 10.0.0.1", "no line for client 2"),
            ("hello", "line 1: `hello`: it begins with none of"),
            (
                "\nclient 3 tun0 10.0.0.1",
                "line 2: `client 3 tun0 10.0.0.1`: clients are numbered from 1 to 2",
            ),
            ("client 0 tun0 10.0.0.1", "numbered from 1"),
            ("client 1", "the device is missing"),
            ("client 1 tun0", "the inner address is missing"),
            ("client 1 tun0 10.0.0.300", "`10.0.0.300` is no IP address"),
            ("client 1 tun0 10.0.0.1 10.0.0.2", "two addresses of one version"),
            ("client 1 tun0 10.0.0.1\nclient 1 tun0 10.0.0.1", "line 2"),
            ("process gateway", "process gateway|client PID"),
            ("process gateway 0", "process gateway|client PID"),
            ("process other 5", "the gateway's or a client's"),
        ] {
            let said = ScriptAnswer::parse(text, 2).unwrap_err().to_string();
            assert!(said.contains(expected), "{text}: {said}");
        }
    }
}
