//! Texts about the browsers in which a user is logged in.

use vpnd_ipc::gateway::portal::visits::{BrowserKind, Program, System};

pub(crate) struct VisitTexts {
    pub(crate) browsers: &'static str,
    pub(crate) browser_name: &'static str,
    pub(crate) this: &'static str,
    pub(crate) since: &'static str,
    pub(crate) used: &'static str,
    pub(crate) all_others: &'static str,
    pub(crate) ended: &'static str,
    /// Its name.
    pub(crate) browser: fn(BrowserKind) -> String,
}

pub(super) const ENGLISH: VisitTexts = VisitTexts {
    browsers: "Browsers that are logged in here",
    browser_name: "Browser",
    this: "this one",
    since: "Logged in",
    used: "Last used",
    all_others: "Log out of all other browsers",
    ended: "The other browser is logged out. If you do not know it, change your password.",
    browser: |kind| name(kind, "A browser", "on"),
};

pub(super) const GERMAN: VisitTexts = VisitTexts {
    browsers: "Browser, die hier angemeldet sind",
    browser_name: "Browser",
    this: "dieser",
    since: "Angemeldet",
    used: "Zuletzt benutzt",
    all_others: "Alle anderen Browser abmelden",
    ended: "Der andere Browser ist abgemeldet. Wenn Sie ihn nicht kennen, ändern Sie Ihr Passwort.",
    browser: |kind| name(kind, "Ein Browser", "unter"),
};

fn name(kind: BrowserKind, unknown: &str, on: &str) -> String {
    let program = match kind.program {
        Program::Other => unknown,
        Program::Firefox => "Firefox",
        Program::Chrome => "Chrome",
        Program::Edge => "Edge",
        Program::Safari => "Safari",
    };
    let system = match kind.system {
        System::Other => return program.to_owned(),
        System::Windows => "Windows",
        System::MacOs => "macOS",
        System::Linux => "Linux",
        System::Android => "Android",
        System::Ios => "iOS",
    };
    format!("{program} {on} {system}")
}
