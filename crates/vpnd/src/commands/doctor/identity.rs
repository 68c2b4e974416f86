//! Sources of users: whether their servers can be asked. There is no login.

use std::io;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Finding;
use vpnd_config::ServerConfig;
use vpnd_config::source::{RadiusTls, Source, SourceKind, SourceServer};
use vpnd_config::source_tls::SourceTls;
use vpnd_sys::address_race;

const CHECK: &str = "identity";

/// All sources of users. `directory` says why a server of a directory can't be asked, if it can't.
pub(super) async fn sources(
    config: &ServerConfig,
    directory: impl AsyncFn(&Source, &SourceServer) -> Option<String>,
) -> Vec<Finding> {
    futures_util::future::join_all(config.sources.iter().map(|each| source(each, &directory))).await
}

async fn source(
    source: &Source,
    directory: &impl AsyncFn(&Source, &SourceServer) -> Option<String>,
) -> Finding {
    let name = &source.name;
    let failures = source.servers.iter().map(|server| async move {
        match &source.kind {
            SourceKind::Ldap(_) | SourceKind::Oidc(_) => directory(source, server).await,
            SourceKind::Radius(radius) => failure(source, radius.tls(), server).await,
        }
    });
    let failures = futures_util::future::join_all(failures);
    let failures: Vec<String> = failures.await.into_iter().flatten().collect();
    let advice =
        "let this machine reach it, or take it out of 'servers'; each login waits for its timeout first";
    if failures.len() == source.servers.len() {
        let found = format!(
            "no server of the source {name} can be asked: {}; its users can't log in",
            failures.join("; ")
        );
        return Finding::problem(
            CHECK,
            found,
            format!(
                "'vpnd source test {name}' shows each step; correct what it ends at: server, firewall, certificate or account"
            ),
        );
    }
    if !failures.is_empty() {
        return Finding::warning(CHECK, format!("the source {name} lacks {}", failures.join("; ")), advice);
    }
    match &source.kind {
        SourceKind::Ldap(_) => Finding::good(
            CHECK,
            format!("all servers of the source {name} take the gateway's account and search"),
        ),
        SourceKind::Oidc(_) => Finding::good(
            CHECK,
            format!("the provider of the source {name} is the issuer that is configured, and has keys"),
        ),
        SourceKind::Radius(radius) if radius.tls().is_some() => {
            Finding::good(CHECK, format!("all servers of the source {name} accept TLS, with the right names"))
        }
        // Its servers answer only users, by UDP.
        SourceKind::Radius(_) => Finding::unknown(
            CHECK,
            format!(
                "the servers of the source {name} have addresses; whether they answer shows a login alone"
            ),
            "log in as one of its users",
        ),
    }
}

/// Why a server is out of reach, if it is.
async fn failure(source: &Source, tls: Option<&RadiusTls>, server: &SourceServer) -> Option<String> {
    let SourceServer { host, port, .. } = server;
    let tried = timeout(source.timeout, async {
        match tls {
            Some(tls) => handshake(host, *port, tls).await,
            None => tokio::net::lookup_host((host.as_str(), *port)).await.map(drop),
        }
    });
    match tried.await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{host}:{port} ({error})")),
        Err(_) => Some(format!("{host}:{port} (no answer within {} ms)", source.timeout.as_millis())),
    }
}

async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    address_race::connect(address_race::look_up(host, port).await?).await
}

async fn handshake(host: &str, port: u16, tls: &RadiusTls) -> io::Result<()> {
    let tls =
        SourceTls::radius(tls).map_err(|error| io::Error::other(vpnd_sys::text::format_chain(&error)))?;
    let stream = connect(host, port).await?;
    tls.secure(stream, host).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::commands::doctor::Verdict;

    fn config(servers: &[String]) -> ServerConfig {
        let text = format!(
            "[tls]\ncertificate = 'c'\nkey = 'k'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n[[source]]\nname = 'campus'\n\
             kind = 'ldap'\nrealm = 'uni.example'\nservers = {servers:?}\nbase = 'dc=uni'\n\
             user_dn = 'uid={{user}},dc=uni'\n"
        );
        ServerConfig::parse(&text, "server.toml", Path::new("/etc/vpnd")).unwrap()
    }

    /// In the place of what asks a directory.
    async fn connects(_: &Source, server: &SourceServer) -> Option<String> {
        let address = (server.host.as_str(), server.port);
        TcpStream::connect(address).await.err().map(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_source_is_as_good_as_its_servers() {
        let open = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = |address: std::net::SocketAddr| format!("ldaps://{address}");
        let (open, closed) = (address(open.local_addr().unwrap()), address(closed));
        for (servers, verdict) in [
            (vec![open.clone()], Verdict::Good),
            (vec![closed.clone(), open], Verdict::Warning),
            (vec![closed], Verdict::Problem),
        ] {
            let findings = sources(&config(&servers), connects).await;
            assert_eq!(findings[0].verdict, verdict, "{findings:?}");
        }
    }
    #[tokio::test]
    async fn a_server_in_tls_is_in_reach_if_it_proves_its_name() {
        let key = rcgen::KeyPair::generate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        let signed = |name: &str| {
            let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.self_signed(&key).unwrap()
        };
        let not_by_it = format!("no authority in {} (the source's 'ca') has signed it", ca.display());
        let cases = [
            ("127.0.0.1", "127.0.0.1", Verdict::Good, "with the right names"),
            ("127.0.0.2", "127.0.0.2", Verdict::Problem, "not valid for name"),
            ("127.0.0.1", "127.0.0.3", Verdict::Problem, not_by_it.as_str()),
        ];
        for (name, trusted, verdict, words) in cases {
            let certificate = signed(name);
            std::fs::write(&ca, signed(trusted).pem()).unwrap();
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let server = rustls::ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], key.serialize_der().try_into().unwrap());
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server.unwrap()));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                let _ = acceptor.accept(stream).await;
            });
            let text = format!(
                "[tls]\ncertificate = 'c'\nkey = 'k'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n[[source]]\nname = 'guests'\n\
                 kind = 'radius'\nmatch = '*'\nservers = 'radsec://{address}'\nca = {ca:?}\n"
            );
            let config = ServerConfig::parse(&text, "server.toml", Path::new("/etc/vpnd")).unwrap();
            let findings = sources(&config, connects).await;
            assert_eq!(findings[0].verdict, verdict, "{findings:?}");
            assert!(findings[0].found.contains(words), "{findings:?}");
        }
    }
}
