//! Reloads: the configuration is read again, checked as a whole, and put into force in each process
//! in turn.
//!
//! INVARIANT: the worker comes last. Until it has the new policy the old one holds, behind a
//! firewall that is as configured already.

use std::time::Duration;

use super::Gateway;
use super::certificate::revoked_by_authority;
use super::launcher::client_profile;
use super::portal::Portal;
use vpnd_config::endpoint::Endpoint;
use vpnd_config::{Invalid, ServerConfig, Tls};
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::{Configuration, FromAuth, ReloadedConfiguration, ToAuth, ToWorker};
use vpnd_ipc::spawn::ChildError;
use vpnd_pki::revocation_list::LoadError;
use vpnd_sys::clock::wall_s;

/// Limit for the auth process to take a configuration over.
const CONFIGURATION_TIMEOUT: Duration = Duration::from_secs(10);

impl Gateway {
    /// Reads the configuration again on a worker's request, which may come from an administrator or
    /// from an attacker in the worker.
    pub(super) async fn reconfigure_for_worker(&mut self) -> Result<(), ChildError> {
        if self.worker.may_reread() {
            return self.reconfigure().await;
        }
        let reason = "the configuration was read too often; try again in a second".to_owned();
        self.worker.send(&ToWorker::Configuration(ReloadedConfiguration::Bad(reason)), &[]).await
    }

    /// Reads the configuration for the worker, takes over the certificate, applies its firewall
    /// rules, and has the auth process go by it.
    pub(super) async fn reconfigure(&mut self) -> Result<(), ChildError> {
        let reread = match self.launcher.read_configuration() {
            Ok((configuration, config)) => match self.take_over(&configuration, &config).await? {
                Ok(()) => ReloadedConfiguration::Good(configuration),
                Err(why) => ReloadedConfiguration::Bad(why),
            },
            Err(error) => ReloadedConfiguration::Bad(error.to_string()),
        };
        self.worker.send(&ToWorker::Configuration(reread), &[]).await
    }

    /// Goes by a configuration in this process and the auth process; the inner error is the reason
    /// why not.
    async fn take_over(
        &mut self,
        configuration: &Configuration,
        config: &ServerConfig,
    ) -> Result<Result<(), String>, ChildError> {
        let conflict = || config.profiles.conflict(&self.config.tunnel);
        if config.tunnel != self.config.tunnel
            && let Some(conflict) = conflict()
        {
            return Ok(Err(format!("{}: {conflict}; nothing was changed", config.file)));
        }
        if let Err(invalid) = self.check_files(config) {
            return Ok(Err(format!("{invalid}\nnothing was changed")));
        }
        let config = &config.clone().reloaded(&self.config);
        let portal = Portal::prepare(&self.launcher, config, self.kept.portal.as_ref());
        let portal = match portal {
            Ok(portal) => portal,
            Err(error) => {
                return Ok(Err(format!("{}; nothing was changed", vpnd_sys::text::format_chain(&error))));
            }
        };
        if let Err(error) = self.send_revocations(config).await? {
            return Ok(Err(format!("{error}; nothing was changed")));
        }
        adopt_tls(&mut self.config, config);
        self.orders.look_now(config);
        self.take_over_certificate().await?;
        if let Err(error) = self.machine.reconfigure(config).await {
            return Ok(Err(vpnd_sys::text::format_chain(&error)));
        }
        // Before the worker: a login by new profiles is nothing to a policy that does not know them
        // yet. The auth process answers once all of this is in force.
        self.send_client_files().await?;
        self.configure_auth(configuration).await?;
        self.kept.replace_portal(portal, &self.orders, &self.auth, &self.worker).await?;
        self.worker.report(self.machine.firewall()).await?;
        Ok(Ok(()))
    }

    /// Checks the files that are not in use yet. One that is in use is no reason to go on with the
    /// rest of the old configuration.
    fn check_files(&self, config: &ServerConfig) -> Result<(), Invalid> {
        if !self.certificate_in_use.is_in(&config.tls) {
            config.check_certificate(wall_s())?;
        }
        if config.sources == self.config.sources { Ok(()) } else { config.check_sources() }
    }

    /// Has the worker let in no certificate that the lists of a configuration name; the inner error
    /// is the reason why they don't count, and the ones before do.
    async fn send_revocations(&self, config: &ServerConfig) -> Result<Result<(), LoadError>, ChildError> {
        let revoked = match revoked_by_authority(&config.tls) {
            Ok(revoked) => revoked.unwrap_or_default(),
            Err(error) => return Ok(Err(error)),
        };
        // The worker goes on with the authority that it began with.
        if config.tls.client_ca == self.config.tls.client_ca {
            self.worker.send(&ToWorker::Revoked(revoked.file().into()), &[]).await?;
        }
        Ok(Ok(()))
    }

    /// Takes certificate and key over from their files. If that fails, what is presented stays.
    ///
    /// # Errors
    /// If a process is lost.
    pub(super) async fn take_over_certificate(&mut self) -> Result<(), ChildError> {
        if self.certificate_in_use.take_over(&self.config, &mut self.auth, &self.worker).await? {
            // It may be another authority's, or have other names.
            self.send_client_files().await?;
        }
        Ok(())
    }

    /// Has pages and API hand out profiles and WireGuard files for the gateway as clients reach it
    /// now.
    async fn send_client_files(&mut self) -> Result<(), ChildError> {
        self.auth.send(&ToAuth::ClientProfile(client_profile(&self.config)), &[]).await?;
        let endpoint = Endpoint::of(&self.config).ok().map(Into::into);
        self.auth.send(&ToAuth::Endpoint(endpoint), &[]).await
    }

    /// Has the auth process go by the access profiles of a configuration.
    async fn configure_auth(&mut self, configuration: &Configuration) -> Result<(), ChildError> {
        self.auth.send(&ToAuth::Configuration(configuration.clone()), &[]).await?;
        match tokio::time::timeout(CONFIGURATION_TIMEOUT, self.auth.receive()).await {
            Ok(Ok(FromAuth::ConfigurationTaken)) => Ok(()),
            Ok(Ok(FromAuth::KeyTaken)) => Err(ChildError::Unexpected(ChildRole::Auth)),
            Ok(Ok(FromAuth::Failed(why))) => Err(ChildError::Failed(why)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ChildError::Slow(ChildRole::Auth)),
        }
    }
}

/// Files and authority as a configuration that was read again has them.
fn adopt_tls(own: &mut ServerConfig, config: &ServerConfig) {
    let Tls { certificate, key, ca, ca_key, certificate_days, client_ca, client_ca_key, .. } = &config.tls;
    own.tls.certificate.clone_from(certificate);
    own.tls.key.clone_from(key);
    own.tls.ca.clone_from(ca);
    own.tls.ca_key.clone_from(ca_key);
    own.tls.certificate_days = *certificate_days;
    own.tls.client_ca.clone_from(client_ca);
    own.tls.client_ca_key.clone_from(client_ca_key);
    own.acme.clone_from(&config.acme);
    // These go into profiles.
    own.server.addresses.clone_from(&config.server.addresses);
    own.portal.clone_from(&config.portal);
}
