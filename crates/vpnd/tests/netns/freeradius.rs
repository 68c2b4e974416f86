//! A RADIUS server for tests: FreeRADIUS with its own configuration, in a directory that goes
//! away with it. No service of the machine is touched.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a panic is how a test fails; not each test uses all of it"
)]

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

pub const SECRET: &str = "testing 123";

/// A name that its certificate is for besides its address.
pub const NAME: &str = "radius.example";

/// The server's rules: `ann` gets in by her password, `token` by that and the code 123456, `menu`
/// by a choice before (`1`), `phone` when a person has approved it.
const CONFIGURATION: &str = r#"
libdir = /usr/lib/freeradius
logdir = AT
run_dir = AT
pidfile = AT/pid
client gateway {
    ipaddr = ADDRESS
    secret = "SECRET"
    require_message_authenticator = yes
}
clients in_tls {
    client gateway_in_tls {
        ipaddr = ADDRESS
        proto = tls
        secret = radsec
    }
}
security {
    status_server = yes
}
thread pool {
    start_servers = 8
    max_servers = 16
}
modules {
    pap {
    }
    always ok {
        rcode = ok
    }
    always reject {
        rcode = reject
    }
    always handled {
        rcode = handled
    }
    exec phone {
        program = "/bin/sh AT/phone"
        wait = yes
        timeout = 25
        input_pairs = request
    }
    files {
        usersfile = AT/users
    }
    detail {
        filename = AT/detail
        header = "%t"
    }
}
server default {
    listen {
        type = auth
        ipaddr = ADDRESS
        port = PORT
    }
    listen {
        type = acct
        ipaddr = ADDRESS
        port = ACCOUNTING
    }
    IN_TLS
    accounting {
        detail
    }
    authorize {
        if (&State) {
            update control { Auth-Type := ROUND }
        }
        else {
            files
            pap
        }
    }
    authenticate {
        Auth-Type PAP {
            pap
            if (ok) {
                switch &User-Name {
                    case "token" {
                        update reply {
                            Message-Authenticator := 0x00
                            State := "code"
                            Reply-Message := "Code from your token:"
                            Filter-Id !* ANY
                        }
                        update control { Response-Packet-Type := Access-Challenge }
                        handled
                    }
                    case "menu" {
                        update reply {
                            Message-Authenticator := 0x00
                            State := "menu"
                            Prompt := Echo
                            Reply-Message := "1 = token, 2 = SMS"
                            Filter-Id !* ANY
                        }
                        update control { Response-Packet-Type := Access-Challenge }
                        handled
                    }
                    case "phone" {
                        phone
                    }
                }
            }
        }
        Auth-Type ROUND {
            if ((&State == "menu") && (&User-Password == "1")) {
                update reply {
                    Message-Authenticator := 0x00
                    State := "code"
                    Reply-Message := "Code from your token:"
                }
                update control { Response-Packet-Type := Access-Challenge }
                handled
            }
            elsif ((&State == "code") && (&User-Password == "123456")) {
                update reply { Filter-Id := "staff" }
                ok
            }
            else {
                reject
            }
        }
    }
    post-auth {
        update reply { Message-Authenticator := 0x00 }
        Post-Auth-Type REJECT {
            update reply { Message-Authenticator := 0x00 }
        }
    }
}
"#;

/// The server in TLS, for clients with a certificate.
const IN_TLS: &str = r"
    listen {
        type = auth+acct
        ipaddr = ADDRESS
        port = RADSEC
        proto = tcp
        clients = in_tls
        tls {
            ca_file = AT/ca.pem
            certificate_file = AT/server.pem
            private_key_file = AT/server-key.pem
            require_client_cert = yes
            tls_min_version = 1.2
            tls_max_version = 1.3
        }
    }
";

/// Users whose sessions the server limits, with attributes that a gateway ignores; `brief` has
/// another name in its records, and an address that is in no pool, `still` has [`FRAMED`].
const LIMITED: &str = "brief Cleartext-Password := \"right\"\n\tSession-Timeout = 6,\n\tUser-Name := \"brief@here\",\n\t\
                       Class = 0x00ff02,\n\tFramed-IP-Address = 10.9.8.7,\n\tFramed-IP-Netmask = 255.255.255.0\n\
                       still Cleartext-Password := \"right\"\n\tIdle-Timeout = 5,\n\tFramed-IP-Address = 10.86.77.7,\n\t\
                       Framed-IPv6-Address = fd86::7:7,\n\tFramed-IP-Netmask = 255.255.255.0\n";

/// The addresses of `still`.
pub const FRAMED: [&str; 2] = ["10.86.77.7", "fd86::7:7"];

/// It knows `ann`, `token`, `menu` and `phone` with the password `right` and two groups, `brief`
/// and `still` with that password.
pub struct FreeRadius {
    directory: tempfile::TempDir,
    process: Child,
    pub port: u16,
    pub accounting_port: u16,
    /// For RADIUS in TLS, if it was started with that; `ca.pem`, `client.pem` and `client-key.pem`
    /// are in its directory then.
    pub radsec_port: u16,
}

impl FreeRadius {
    /// Starts one on this address; it listens a while later. `None` if the machine has no
    /// FreeRADIUS, which fails where CI is set.
    pub fn start(address: &str, command: impl Fn(&str) -> Command) -> Option<Self> {
        Self::launch(address, command, "")
    }

    /// Starts one that listens for TLS, too.
    pub fn start_with_tls(address: &str, command: impl Fn(&str) -> Command) -> Option<Self> {
        Self::launch(address, command, IN_TLS)
    }

    fn launch(address: &str, command: impl Fn(&str) -> Command, in_tls: &str) -> Option<Self> {
        if !Path::new("/usr/sbin/freeradius").exists() {
            assert!(std::env::var_os("CI").is_none(), "this test needs freeradius: ./x setup");
            eprintln!("SKIPPED: there is no freeradius; run ./x setup");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let sockets = [(), ()].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let [port, accounting_port] = sockets.map(|socket| socket.local_addr().unwrap().port());
        let radsec_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        make_certificates(directory.path(), address);
        let configuration = CONFIGURATION
            .replace("IN_TLS", in_tls)
            .replace("RADSEC", &radsec_port.to_string())
            .replace("AT", &directory.path().display().to_string())
            .replace("ADDRESS", address)
            .replace("ACCOUNTING", &accounting_port.to_string())
            .replace("PORT", &port.to_string())
            .replace("SECRET", SECRET);
        fs::write(directory.path().join("radiusd.conf"), configuration).unwrap();
        let user = |name: &str| {
            format!(
                "{name} Cleartext-Password := \"right\"\n\tFilter-Id = \"staff\",\n\tFilter-Id += \"vpn\",\n\tClass = 0x00ff01,\n\t\
                 Class += 0x74776f,\n\tAcct-Interim-Interval = 900\n"
            )
        };
        let users = ["ann", "token", "menu", "phone"].map(user).concat() + LIMITED;
        fs::write(directory.path().join("users"), users).unwrap();
        let approved = directory.path().join("approved");
        let phone = format!(
            "for i in $(seq 220); do [ -e {} ] && exit 0; sleep 0.1; done; exit 1\n",
            approved.display()
        );
        fs::write(directory.path().join("phone"), phone).unwrap();
        let mut command = command("/usr/sbin/freeradius");
        command.args(["-f", "-l", "stdout", "-n", "radiusd", "-D", "/usr/share/freeradius", "-d"]);
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let process = command.arg(directory.path()).stdin(Stdio::null()).stdout(log).spawn().unwrap();
        Some(Self { directory, process, port, accounting_port, radsec_port })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Approves the logins of `phone`.
    pub fn approve(&self) {
        fs::write(self.directory.path().join("approved"), "").unwrap();
    }

    /// Lets the next ones wait again.
    pub fn take_approval_back(&self) {
        fs::remove_file(self.directory.path().join("approved")).unwrap();
    }

    /// Ends it; its files stay.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// The accounting records that it has, each with its attributes.
    pub fn records(&self) -> Vec<Vec<(String, String)>> {
        let text = fs::read_to_string(self.directory.path().join("detail")).unwrap_or_default();
        let of_record = |record: &str| {
            let lines = record.lines().filter_map(|line| line.trim().split_once(" = "));
            lines.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect()
        };
        // The last one may be half there.
        let complete = text.rsplit_once("\n\n").map_or("", |(complete, _)| complete);
        complete.split("\n\n").filter(|record| record.contains(" = ")).map(of_record).collect()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// A source of this server for a gateway, with these keys besides.
    pub fn source(&self, address: &str, keys: &str) -> String {
        format!(
            "name = \"guests\"\nkind = \"radius\"\nrealm = \"guests.example\"\n\
             servers = [\"radius://{address}:{}\"]\nsecret_file = {:?}\n{keys}",
            self.port,
            self.secret_file()
        )
    }

    /// A file with the secret, for the gateway.
    pub fn secret_file(&self) -> PathBuf {
        let path = self.directory.path().join("secret");
        fs::write(&path, format!("{SECRET}\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for FreeRadius {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A CA, a certificate of it for this address, and one for a client.
fn make_certificates(directory: &Path, address: &str) {
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "a CA");
    let write = |name: &str, text: String| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    write("ca.pem", params.self_signed(&ca_key).unwrap().pem());
    let issuer = Issuer::from_params(&params, &ca_key);
    for (owner, names) in [("server", vec![address, NAME]), ("client", vec!["vpn.example"])] {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(names).unwrap();
        // With the name of its CA it would be taken for one that signs itself.
        params.distinguished_name.push(DnType::CommonName, owner);
        write(&format!("{owner}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{owner}-key.pem"), key.serialize_pem());
    }
}
