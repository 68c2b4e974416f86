//! Any text as `server.toml`: it is read or refused, and each problem stands on a line of the text.

use std::path::Path;

use vpnd_config::ServerConfig;

/// Checks one input.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ServerConfig::parse(text, "server.toml", Path::new("/etc/vpnd")) {
        Ok(config) => {
            assert!(config.tunnel.pools().next().is_some());
            assert!(config.tunnel.gateway_v4().is_none_or(|v4| config.tunnel.pool_v4.unwrap().contains(&v4)));
            assert!(config.tunnel.gateway_v6().is_none_or(|v6| config.tunnel.pool_v6.unwrap().contains(&v6)));
            assert!(config.tls.certificate.is_absolute() && config.admin.socket.is_absolute());
        }
        Err(invalid) => {
            assert!(!invalid.problems.is_empty());
            let lines = text.split('\n').count();
            assert!(
                invalid
                    .problems
                    .iter()
                    .filter_map(|problem| problem.line)
                    .all(|line| (1..=lines).contains(&line))
            );
            assert!(invalid.to_string().starts_with("server.toml:"));
        }
    }
}
