//! Chromium in a namespace, which enforces what pages say: it is driven by the DevTools protocol
//! over a pair of pipes, as a person would by mouse and keyboard.
//!
//! It takes any certificate: who a page is from is not what tests with it are about.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value as Json, json};

use crate::lab::{Lab, eventually};
use crate::namespace::Namespace;
use crate::process;

const TIMEOUT: Duration = Duration::from_secs(90);

/// A key of the keyboard.
pub(crate) struct Key {
    name: &'static str,
    code: u32,
    /// The text that it types.
    text: Option<&'static str>,
}

pub(crate) const TAB: Key = Key { name: "Tab", code: 9, text: None };
pub(crate) const ENTER: Key = Key { name: "Enter", code: 13, text: Some("\r") };
pub(crate) const SPACE: Key = Key { name: " ", code: 32, text: Some(" ") };

/// A browser with one page.
pub(crate) struct Chromium {
    child: Child,
    to: ChildStdin,
    from: Receiver<Json>,
    session: Option<String>,
    next: u64,
    /// Faults that the browser has found in pages, such as something that a policy forbids.
    complaints: Vec<String>,
    log: PathBuf,
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("---- Chromium ----\n{}", fs::read_to_string(&self.log).unwrap_or_default());
            eprintln!("{:#?}", self.complaints);
        }
    }
}

impl Chromium {
    /// Starts one in a namespace; `None` where it is not installed, which fails in CI.
    pub(crate) fn start(lab: &Lab, place: &Namespace) -> Option<Self> {
        if Command::new("chromium").arg("--version").output().is_err() {
            assert!(std::env::var_os("CI").is_none(), "this test needs chromium: ./x setup");
            eprintln!("SKIPPED: there is no chromium; run ./x setup");
            return None;
        }
        // Fonts and its start script's settings.
        for name in ["fonts", "chromium.d", "alternatives"] {
            let from = Path::new("/etc").join(name);
            if from.exists() {
                let mut copy = Command::new("cp");
                copy.arg("--recursive").arg("--dereference").arg(from).arg(process::etc(lab, place));
                assert!(copy.output().unwrap().status.success(), "{name} can be copied");
            }
        }
        let home = lab.path(format!("chromium-{}", place.name()));
        fs::create_dir(&home).unwrap();
        let log = home.join("log");
        // Its pipes are descriptors 3 and 4.
        let script = "exec chromium \"$@\" 3<&0 4>&1 </dev/null >&2";
        let mut command = process::command(lab, place, "sh");
        command.args(["-c", script, "chromium", "--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run"]);
        command.arg(format!("--user-data-dir={}", home.join("profile").display())).env("HOME", &home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let (to, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self { child, to, from, session: None, next: 0, complaints: Vec::new(), log };
        let page = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            browser.ask("Target.attachToTarget", json!({"targetId": page["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Audits.enable"] {
            browser.ask(domain, json!({}));
        }
        browser.ask("Security.setIgnoreCertificateErrors", json!({"ignore": true}));
        // Keys go to the page although no window has the focus.
        browser.ask("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        Some(browser)
    }

    /// Has this run before the scripts of each page from now on.
    pub(crate) fn before_scripts(&mut self, script: &str) {
        self.ask("Page.addScriptToEvaluateOnNewDocument", json!({"source": script}));
    }

    /// Has what is downloaded saved there.
    pub(crate) fn save_to(&mut self, directory: &Path) {
        let session = self.session.take();
        self.ask("Browser.setDownloadBehavior", json!({"behavior": "allow", "downloadPath": directory}));
        self.session = session;
    }

    /// Goes to an address, as if it was typed.
    pub(crate) fn open(&mut self, address: &str) {
        let gone = self.ask("Page.navigate", json!({"url": address}));
        assert!(gone.get("errorText").is_none(), "{address}: {gone}");
        self.until(
            "the page is there",
            "location.href !== 'about:blank' && document.readyState === 'complete'",
        );
    }

    /// Types into a field.
    pub(crate) fn fill(&mut self, field: &str, text: &str) {
        self.until(field, &format!("document.getElementById({}) !== null", json!(field)));
        self.value(&format!("document.getElementById({}).value = {}", json!(field), json!(text)));
    }

    /// Presses what this selects.
    pub(crate) fn press(&mut self, selector: &str) {
        self.until(selector, &format!("document.querySelector({}) !== null", json!(selector)));
        self.value(&format!("document.querySelector({}).click()", json!(selector)));
    }

    /// Shows pages in a window of this size in CSS pixels, each `scale` pixels of the screen wide:
    /// at 200 % a window has half as many as at 100 %.
    pub(crate) fn resize(&mut self, (width, height): (u32, u32), scale: u32) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Presses a key of the keyboard, as a person does.
    pub(crate) fn key(&mut self, key: &Key) {
        let Key { name, code, text } = key;
        let event =
            |kind: &str| json!({"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code});
        let mut down = event(if text.is_some() { "keyDown" } else { "rawKeyDown" });
        if let Some(text) = text {
            down["text"] = json!(text);
        }
        self.ask("Input.dispatchKeyEvent", down);
        self.ask("Input.dispatchKeyEvent", event("keyUp"));
    }

    /// Types a text where the focus is.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.ask("Input.insertText", json!({"text": text}));
    }

    /// Saves a picture of the page, if `VPND_PICTURES` names a directory for that.
    pub(crate) fn picture(&mut self, name: &str) {
        let Some(directory) = std::env::var_os("VPND_PICTURES") else { return };
        let picture = self.ask("Page.captureScreenshot", json!({"captureBeyondViewport": true}));
        let bytes = BASE64.decode(picture["data"].as_str().unwrap()).unwrap();
        fs::write(Path::new(&directory).join(format!("{name}.png")), bytes).unwrap();
    }

    /// Waits until an expression is true of the page.
    pub(crate) fn until(&mut self, what: &str, expression: &str) {
        eventually(what, TIMEOUT, || (self.value(expression) == json!(true)).then_some(()));
    }

    /// The text of the page.
    pub(crate) fn text(&mut self) -> String {
        self.value("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// The value of an expression; `null` if the page goes away meanwhile.
    pub(crate) fn value(&mut self, expression: &str) -> Json {
        let arguments = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        self.send("Runtime.evaluate", &arguments);
        self.reply().map_or(Json::Null, |reply| reply["result"]["value"].clone())
    }

    /// Faults that the browser has found in pages until now.
    pub(crate) fn complaints(&mut self) -> &[String] {
        // Messages that it sent before the answer have arrived then.
        self.value("0");
        &self.complaints
    }

    fn ask(&mut self, method: &str, arguments: Json) -> Json {
        self.send(method, &arguments);
        self.reply().unwrap_or_else(|error| panic!("{method} {arguments}: {error}"))
    }

    fn send(&mut self, method: &str, arguments: &Json) {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": arguments});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        self.to.flush().unwrap();
    }

    fn reply(&mut self) -> Result<Json, Json> {
        loop {
            let mut message = match self.from.recv_timeout(TIMEOUT) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => panic!("Chromium does not answer"),
                Err(RecvTimeoutError::Disconnected) => panic!("Chromium has ended"),
            };
            match message["method"].as_str() {
                Some("Log.entryAdded") => self.complaints.push(message["params"]["entry"].to_string()),
                Some("Audits.issueAdded") => self.complaints.push(message["params"]["issue"].to_string()),
                Some("Runtime.exceptionThrown") => self.complaints.push(message["params"].to_string()),
                _ => {}
            }
            if message["id"] == self.next {
                let error = message["error"].take();
                return if error.is_null() { Ok(message["result"].take()) } else { Err(error) };
            }
        }
    }
}
