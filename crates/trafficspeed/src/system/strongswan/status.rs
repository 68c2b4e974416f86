//! The state of a running charon, by `swanctl`.

/// The algorithms of the first association that is in use, for example `AES_GCM_16-256`.
pub fn installed(associations: &str) -> Option<String> {
    let line = associations.lines().find(|line| line.contains(", INSTALLED,"))?;
    Some(line.split_once("ESP:")?.1.trim().to_owned())
}

/// The plugin whose code runs the cipher of `esp`, from the list of algorithms.
pub fn library(algorithms: &str, esp: &str) -> Option<String> {
    let cipher = esp.split('/').next()?;
    let name = cipher.split('-').next()?;
    let entry = format!("{name}[");
    let line = algorithms.lines().map(str::trim).find(|line| line.starts_with(&entry))?;
    Some(line[entry.len()..].split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAS: &str = "lab: #1, ESTABLISHED, IKEv2, feab04d0de285d5a_i* ea03a3c36d333d5c_r\n  \
        AES_CBC-128/HMAC_SHA2_256_128/PRF_HMAC_SHA2_256/CURVE_25519\n  \
        lab: #1, reqid 1, INSTALLED, TUNNEL-in-UDP, ESP:AES_GCM_16-256\n    installed 2s ago\n";

    const ALGS: &str = "encryption:\n  AES_CBC[openssl]\n  NULL[openssl]\naead:\n  AES_GCM_8[aesni]\n  \
                        AES_GCM_16[aesni]\n  CHACHA20_POLY1305[openssl]\n";

    #[test]
    fn the_protection_of_packets_is_read_not_that_of_the_key_exchange() {
        assert_eq!(installed(SAS).as_deref(), Some("AES_GCM_16-256"));
        assert_eq!(installed(&SAS.replace("INSTALLED", "CREATED")), None);
        assert_eq!(installed(""), None);
    }

    #[test]
    fn the_plugin_of_exactly_this_cipher_is_found() {
        assert_eq!(library(ALGS, "AES_GCM_16-256").as_deref(), Some("aesni"));
        assert_eq!(library(ALGS, "AES_CBC-256/HMAC_SHA2_256_128").as_deref(), Some("openssl"));
        assert_eq!(library(ALGS, "CHACHA20_POLY1305").as_deref(), Some("openssl"));
        assert_eq!(library(ALGS, "CAMELLIA_CBC-256/HMAC_SHA2_256_128"), None);
        assert_eq!(library("", "AES_GCM_16-256"), None);
    }
}
