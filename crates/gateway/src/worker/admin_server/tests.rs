//! The control socket with both ends: a real socket in a separate directory, and a gateway that
//! is none.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::parent::listeners::{BindError, SocketFile, control_socket};
use vpnd_ipc::admin::client::{Client, ClientError};
use vpnd_ipc::admin::testing::{Fake, status};
use vpnd_ipc::admin::{FleetGateway, Status};

/// A user that is neither root nor the one who runs the tests.
const STRANGER: u32 = 65_534;

/// A gateway that answers until it is dropped.
struct Gateway {
    runtime: tokio::runtime::Runtime,
    serving: tokio::task::JoinHandle<()>,
    path: PathBuf,
    _file: SocketFile,
    _dir: tempfile::TempDir,
}

impl Gateway {
    fn start() -> Self {
        Self::start_with(Fake::new(), |_| {})
    }

    fn start_with(fake: impl Handler, change: impl FnOnce(&mut AdminSocket)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run").join("admin.sock");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (mut socket, file) = bind(&runtime, &path).unwrap();
        change(&mut socket);
        let serving = runtime.spawn(socket.serve(Arc::new(fake), Arc::default()));
        Self { runtime, serving, path, _file: file, _dir: dir }
    }

    fn client(&self) -> Client {
        Client::connect(&self.path).unwrap()
    }

    /// Sends bytes as they are and returns all that comes back until the gateway hangs up.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.stream();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn stream(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn stop(self) -> (PathBuf, tempfile::TempDir) {
        self.serving.abort();
        // Whether it was cancelled does not matter: it is over, and the socket with it.
        let _ = self.runtime.block_on(self.serving);
        (self.path, self._dir)
    }
}

fn bind(runtime: &tokio::runtime::Runtime, path: &Path) -> Result<(AdminSocket, SocketFile), BindError> {
    let _inside = runtime.enter();
    let (listener, file) = control_socket(path)?;
    let owner = rustix::process::geteuid().as_raw();
    Ok((AdminSocket::adopt(listener, owner).unwrap(), file))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_status_arrives_as_it_was_sent() {
    let gateway = Gateway::start();
    let mut client = gateway.client();
    assert_eq!(client.status().unwrap(), status());
    assert_eq!(client.status().unwrap(), status(), "one connection takes many requests");
}

#[test]
fn the_json_has_the_promised_names() {
    let gateway = Gateway::start();
    let answer = gateway.raw(b"{\"request\":\"status\"}\n");
    let json: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let status = &json["status"];
    let keys =
        |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(status),
        "audit certificate_left_s counters drain firewall fleet listen offloads parent_version pid pools portal processes refused_devices sessions settings shards sources steering suites uptime_s version"
    );
    assert_eq!(
        keys(&status["sessions"][0]),
        "backend connected connected_s device epoch group_limit id idle_s inner_v4 inner_v6 last_handshake_s outer \
         over_tcp path_datagram path_mtu profile protocol rx_bytes rx_halved rx_limit rx_packets suite two_devices_s tx_bytes tx_halved tx_limit tx_packets tx_single user user_rx_limit user_tx_limit"
    );
    assert_eq!(
        keys(&status["offloads"]["tun"]),
        "checksum checksum_gave_up refused tso4 tso6 tso_ecn tso_gave_up uso uso_gave_up"
    );
    assert_eq!(
        keys(&status["offloads"]["udp"]),
        "gro gso_gave_up gso_segments may_fragment recv_buffer send_buffer"
    );
    assert_eq!(
        keys(&status["processes"][0]),
        "landlock name no_capabilities no_new_privs seccomp uid undumpable"
    );
    assert_eq!(status["steering"], "cbpf");
    assert_eq!(status["counters"]["drops"]["replayed"], 7);
    assert_eq!(status["sessions"][0]["outer"][0], "192.0.2.7:40001");
}

#[test]
fn a_kick_returns_the_number_of_sessions() {
    let gateway = Gateway::start();
    let mut client = gateway.client();
    let kept = |sessions| Kicked { sessions, is_kept: true };
    assert_eq!(client.kick("eve").unwrap(), kept(0));
    assert_eq!(client.kick("ann").unwrap(), kept(1));
    assert_eq!(client.kick("ann").unwrap(), kept(0));
}

#[test]
fn a_failed_reload_gives_the_reason() {
    let gateway = Gateway::start();
    let error = gateway.client().reload().unwrap_err();
    assert!(error.to_string().contains("unknown key 'prot'"), "{error}");
}

#[test]
fn garbage_is_answered_and_the_next_request_too() {
    let gateway = Gateway::start();
    for garbage in
        [&b"\xff\xfe\n"[..], b"\n", b"{\"request\":\"stop\"}\n", b"{\"request\":\"kick\"}\n", b"[]\n"]
    {
        let requests = [garbage, b"{\"request\":\"kick\",\"target\":\"eve\"}\n"].concat();
        let text = gateway.raw(&requests);
        let mut lines = text.lines();
        assert!(lines.next().unwrap().starts_with("{\"error\":\"not a request"), "{text}");
        assert_eq!(lines.next(), Some("{\"ended\":0}"), "{text}");
    }
}

#[test]
fn an_oversize_request_is_refused_at_the_limit() {
    let gateway = Gateway::start();
    let kick = |target: usize| format!("{{\"request\":\"kick\",\"target\":\"{}\"}}\n", "x".repeat(target));
    let around = kick(0).len();
    assert_eq!(gateway.raw(kick(MAX_REQUEST - around).as_bytes()), "{\"ended\":0}\n");
    let text = gateway.raw(kick(MAX_REQUEST - around + 1).as_bytes());
    assert!(text.starts_with("{\"error\":\"a request is one line"), "{text}");
    // Without an end: the gateway must not wait for one, nor keep what it has read.
    let mut stream = gateway.stream();
    stream.write_all(&[b'x'; MAX_REQUEST]).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"error\":\"a request is one line"), "{line}");
}

#[test]
fn a_silent_admin_peer_is_disconnected() {
    let short = Duration::from_millis(50);
    let gateway = Gateway::start_with(Fake::new(), |socket| {
        socket.timeouts = Timeouts { request: short, ..Timeouts::default() };
    });
    let (began, mut rest) = (Instant::now(), Vec::new());
    gateway.stream().read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    assert!((short..Duration::from_secs(5)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[test]
fn a_drain_begins_with_its_time_and_is_cancelled() {
    let gateway = Gateway::start();
    let mut client = gateway.client();
    client.drain(Some(90), false).unwrap();
    let drain = client.status().unwrap().drain.unwrap();
    assert_eq!((drain.in_use, drain.left_s, drain.over), (2, Some(90), false));
    client.cancel_drain().unwrap();
    assert_eq!(client.status().unwrap().drain, None);
    client.drain(None, false).unwrap();
    assert_eq!(client.status().unwrap().drain.unwrap().left_s, None);
    let error = client.drain(None, true).unwrap_err();
    assert!(matches!(&error, ClientError::Refused(text) if text.contains("of no fleet")), "{error}");
}

#[test]
fn a_gateway_that_hangs_is_an_error() {
    struct Hanging;
    impl Handler for Hanging {
        async fn status(&self) -> Result<Status, String> {
            std::future::pending().await
        }
        async fn kick(&self, _: String) -> Result<Kicked, String> {
            std::future::pending().await
        }
        async fn reload(&self) -> Result<String, String> {
            std::future::pending().await
        }
        async fn upgrade(&self) -> Result<String, String> {
            std::future::pending().await
        }
        async fn fleet(&self) -> Result<Vec<FleetGateway>, String> {
            std::future::pending().await
        }
        async fn drain(&self, _: Option<Duration>, _: bool) -> Result<(), String> {
            std::future::pending().await
        }
        async fn cancel_drain(&self) -> Result<(), String> {
            std::future::pending().await
        }
        async fn confirm_absences(&self, _: String) -> Result<u64, String> {
            std::future::pending().await
        }
    }
    let gateway = Gateway::start_with(Hanging, |socket| {
        socket.timeouts = Timeouts { handler: Duration::from_millis(50), ..Timeouts::default() };
    });
    let error = gateway.client().status().unwrap_err();
    assert!(matches!(&error, ClientError::Refused(text) if text.contains("did not answer")), "{error}");
}

/// Security: the kernel's word on the peer counts even if the file's permissions let everyone in.
#[test]
fn a_peer_of_another_user_is_refused() {
    let us = rustix::process::geteuid();
    // If this is root, a thread becomes another user (on Linux users are per thread); otherwise the
    // gateway takes another user for its owner.
    let owner = if us.is_root() { us.as_raw() } else { us.as_raw() + 1 };
    let gateway = Gateway::start_with(Fake::new(), |socket| socket.owner = owner);
    let open =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    for directory in [gateway._dir.path(), gateway.path.parent().unwrap()] {
        open(directory, 0o755);
    }
    open(&gateway.path, 0o666);
    let path = gateway.path.clone();
    let as_stranger = move || {
        if us.is_root() {
            let stranger = rustix::process::Uid::from_raw(STRANGER);
            rustix::thread::set_thread_res_uid(stranger, stranger, stranger).unwrap();
        }
        Client::connect(&path).and_then(|mut client| client.status())
    };
    let error = std::thread::spawn(as_stranger).join().unwrap().unwrap_err();
    assert!(matches!(&error, ClientError::Refused(text) if text.contains("only root")), "{error}");
    if us.is_root() {
        gateway.client().status().unwrap();
    }
}

/// Security: file permissions alone keep others out too.
#[test]
fn the_socket_and_its_new_directory_are_for_their_owner_alone() {
    let gateway = Gateway::start();
    assert!(std::fs::metadata(&gateway.path).unwrap().file_type().is_socket());
    assert_eq!(mode(&gateway.path), 0o600);
    assert_eq!(mode(gateway.path.parent().unwrap()), 0o700);
    assert_eq!(mode(&gateway.path.with_extension("sock.lock")), 0o600);
}

#[test]
fn a_live_gateway_keeps_its_socket_and_a_dead_one_does_not() {
    let gateway = Gateway::start();
    let error = bind(&gateway.runtime, &gateway.path).unwrap_err();
    assert!(matches!(error, BindError::InUse(_)), "{error}");
    gateway.client().status().unwrap();
    let (path, _dir) = gateway.stop();
    assert!(!path.exists(), "a gateway that ends takes its socket away");

    // One that was killed leaves a socket without a listener.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let socket = bind(&runtime, &path).unwrap();
    assert_eq!(mode(&path), 0o600);
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    std::fs::write(&path, "precious").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(matches!(bind(&runtime, &path), Err(BindError::NotASocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let long = dir.path().join("x".repeat(120));
    assert!(matches!(bind(&runtime, &long), Err(BindError::Io { .. })), "sun_path has 108 bytes");
}

#[test]
fn without_a_gateway_the_error_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.sock");
    let stale = dir.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    for path in [missing, stale] {
        let error = Client::connect(&path).unwrap_err();
        assert!(matches!(error, ClientError::NotRunning(_)), "{error}");
        let text = error.to_string();
        for wanted in [path.to_str().unwrap(), "vpnd server", "--socket", "--config"] {
            assert!(text.contains(wanted), "{text}");
        }
    }
}

#[test]
fn a_malformed_admin_reply_is_reported() {
    for answer in
        ["{}\n", "HTTP/1.1 200 OK\r\n", "", "{\"ended\":1}", "{\"ended\":1}\n", "{\"\\u001b[2J\":1}\n"]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let error = Client::connect(&path).unwrap().status().unwrap_err();
        assert!(matches!(error, ClientError::InvalidResponse { .. }), "{answer:?}: {error}");
        assert!(!error.to_string().contains('\x1b'), "{answer:?} plays with the terminal");
        other.join().unwrap();
    }
}
