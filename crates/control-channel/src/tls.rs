//! TLS 1.3 as a client of the control channel uses it, and the secrets that both ends take from a
//! handshake.

use std::sync::Arc;

use quinn::Connection;
use quinn::crypto::ExportKeyingMaterialError;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};
use vpnd_crypto::{BINDING_LABEL, Binding, EXPORTER_LABEL, EpochSecret};

/// The control channel's name in ALPN.
pub const ALPN: &[u8] = b"vpnd/1";

/// The beginning of a client's configuration: TLS 1.3 and nothing older.
///
/// # Errors
/// If the provider lacks it, which only another build of it could.
pub fn client_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
}

/// The end of a client's configuration: the protocol's name, and no early data, which could be
/// replayed.
#[must_use]
pub fn finish(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_early_data = false;
    config
}

/// The secret of the epoch that a connection makes (PROTOCOL §6.1). Call it once for each
/// connection.
///
/// # Errors
/// If the handshake is not complete.
pub fn epoch_secret(connection: &Connection) -> Result<EpochSecret, ExportKeyingMaterialError> {
    EpochSecret::try_export(|out| connection.export_keying_material(out, EXPORTER_LABEL, b""))
}

/// Ties a device's proof to a connection (PROTOCOL §4.1).
///
/// # Errors
/// If the handshake is not complete.
pub fn device_binding(connection: &Connection) -> Result<Binding, ExportKeyingMaterialError> {
    Binding::try_export(|out| connection.export_keying_material(out, BINDING_LABEL, b""))
}
