//! New messages about a user's tunnels as notifications of the desktop.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;

use super::{ServiceClient, ServiceSocket, say};
use vpnd_client::user_messages::{Lines, Log};
use vpnd_sys::text::harmless;

/// The program that shows a notification.
const NOTIFIER: &str = "notify-send";
/// Pause between two looks: an idle machine sleeps meanwhile, for the service replies from its
/// memory.
const INTERVAL: Duration = Duration::from_secs(15);

/// Shows each message that comes from now on, until the service is gone.
///
/// # Errors
/// If the service can't be reached, or there is no program that shows notifications.
pub(super) async fn notify(socket: &ServiceSocket) -> anyhow::Result<()> {
    let mut service = ServiceClient::connect(&socket.socket).await?;
    let mut seen: Option<Vec<String>> = None;
    loop {
        let Lines(lines) = service.request(Log(None)).await?;
        for line in seen.iter().flat_map(|seen| news(seen, &lines)) {
            show(line).await?;
        }
        if seen.replace(lines).is_none() {
            say("new messages are shown on the desktop, until Ctrl-C")?;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The lines that were not seen. One that comes again is new, and one of another tunnel may stand
/// before others of its second.
fn news<'l>(seen: &[String], lines: &'l [String]) -> Vec<&'l str> {
    let mut left: HashMap<&String, usize> = HashMap::new();
    seen.iter().for_each(|line| *left.entry(line).or_default() += 1);
    let is_new = |line: &&String| match left.get_mut(*line) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    lines.iter().filter(is_new).map(String::as_str).collect()
}

async fn show(line: &str) -> anyhow::Result<()> {
    // Its time is now.
    let text = line.split_once(' ').map_or(line, |(_, text)| text);
    let mut notifier = tokio::process::Command::new(NOTIFIER);
    notifier.args(["--app-name=vpnd", "--", "VPN"]).arg(harmless(text)).stdin(Stdio::null());
    let status = notifier.status().await;
    let status = status.with_context(|| format!("{NOTIFIER} does not run: install libnotify-bin"))?;
    anyhow::ensure!(status.success(), "{NOTIFIER} fails ({status}): is this a session with a desktop?");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_shown() {
        let lines = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = lines(&["1 a", "2 b", "2 b", "3 c"]);
        let shown = [
            (&[][..], &["1 a", "2 b", "2 b", "3 c"][..]),
            (&["0 gone"], &["1 a", "2 b", "2 b", "3 c"]),
            (&["1 a"], &["2 b", "2 b", "3 c"]),
            (&["1 a", "2 b"], &["2 b", "3 c"]),
            (&["1 a", "3 c"], &["2 b", "2 b"]),
            (&["0 gone", "1 a", "2 b", "2 b", "3 c"], &[]),
        ];
        for (seen, new) in shown {
            assert_eq!(news(&lines(seen), &all), new, "{seen:?}");
        }
    }
}
