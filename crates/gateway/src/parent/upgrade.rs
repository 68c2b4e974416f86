//! The parent's steps of an upgrade: it starts the program that is installed now next to the one
//! that runs, lets one worker hand over to the other, and ends the old one.
//!
//! Invariants: whatever goes wrong before the old worker has handed over, that one goes on as if
//! nothing had been; which program is started is decided here, never by the requester, for the
//! worker that passes the request on is not trusted; the program's file can be changed by no one
//! else than its owner, who is root or this process's user. The parent sees no key: the workers
//! exchange it among themselves.
//!
//! The parent itself goes on as the program that it was started as: what it knows of the machine,
//! and its journal, stay where they are. It could replace itself by `execve`, but then a new
//! program would have to adopt, with all privileges, children that end with the thread that started
//! them, half-read channels and an open journal, and a failure after the point of no return would
//! end every session. Of all processes it has the least to do with the network: it reads nothing
//! that a client sends. So what is mended in it takes a restart, which clients survive without a
//! login.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use super::certificate::{CurrentCertificate, TlsMaterial};
use super::idp::Idp;
use super::kept_children::KeptChildren;
use super::launcher::Launcher;
use super::portal::Portal;
use super::{CHILD_END_TIMEOUT, Gateway};
use vpnd_config::{ConfigError, ServerConfig, check};
use vpnd_ipc::channel;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::{Begin, FromWorker, ToAuth, ToWorker};
use vpnd_ipc::spawn::{ChildError, StartingChild};
use vpnd_sys::clock::wall_s;

/// Limit for the new version's processes to be prepared.
const PREPARATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit for the old worker to hand over or to refuse that; an honest one gives up after 5 s.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit for the report of a child that has failed.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bits of a file's mode that let others write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The new version's processes, prepared.
struct Next {
    config: ServerConfig,
    launcher: Launcher,
    auth: StartingChild,
    worker: StartingChild,
    /// The portal is not started before the hand-over.
    kept: KeptChildren,
    certificate_in_use: CurrentCertificate,
}

impl Gateway {
    /// Has the program that is installed now go on.
    ///
    /// # Errors
    /// If the gateway has lost its worker: the old one, or the new one after it took over. A
    /// failure before that is reported to the administrator who has asked, and is none.
    pub(super) async fn upgrade(&mut self) -> Result<(), ChildError> {
        tracing::info!(program = %self.launcher.installed().display(), "an upgrade begins");
        let prepared = match tokio::time::timeout(PREPARATION_TIMEOUT, self.prepare()).await {
            Ok(prepared) => prepared,
            Err(_) => Err(anyhow!("its processes were not ready within {} s", PREPARATION_TIMEOUT.as_secs())),
        };
        let mut next = match prepared {
            Ok(next) => next,
            Err(error) => return self.not_upgraded(&error).await,
        };
        if let Err(error) = self.hand_over(&mut next).await? {
            return self.not_upgraded(&error).await;
        }
        let Next { config, launcher, auth, worker, kept, certificate_in_use } = next;
        let (auth, worker) = (auth.at_work(), worker.ready().await?);
        let old = (self.worker.replace(worker), std::mem::replace(&mut self.auth, auth));
        let old_kept = std::mem::replace(&mut self.kept, kept);
        // Its visits are the old auth process's, which learns of nothing any more.
        if let Some(portal) = old_kept.portal {
            portal.dismiss(CHILD_END_TIMEOUT).await;
        }
        if let Err(error) = self.machine.reconfigure(&config).await {
            tracing::error!(error = %vpnd_sys::text::format_chain(&error), "the firewall rules stay unchanged");
        }
        (self.config, self.launcher, self.certificate_in_use) = (config, launcher, certificate_in_use);
        self.orders.look_now(&self.config);
        self.kept.portal = self.kept.portal.take().map(|portal| portal.with_proofs(self.orders.proofs()));
        // If it is gone already, so is the requester.
        let _ = old.0.send(&ToWorker::Stop(None), &[]).await;
        old.0.end(CHILD_END_TIMEOUT).await;
        let _ = old.1.send(&ToAuth::Replaced, &[]).await;
        old.1.dismiss(CHILD_END_TIMEOUT).await;
        if let Some(idp) = old_kept.idp {
            idp.dismiss(CHILD_END_TIMEOUT).await;
        }
        tracing::info!("the gateway is upgraded");
        Ok(())
    }

    async fn not_upgraded(&self, error: &anyhow::Error) -> Result<(), ChildError> {
        let reason = format!(
            "the gateway is not upgraded and continues unchanged: {}",
            vpnd_sys::text::format_chain(error)
        );
        tracing::error!("{reason}");
        self.worker.send(&ToWorker::NotUpgraded(reason), &[]).await
    }

    /// Starts the new version's processes. The old ones carry on meanwhile.
    async fn prepare(&self) -> anyhow::Result<Next> {
        let installed = self.launcher.installed();
        check_program(installed)?;
        let launcher = self.launcher.of_installed();
        let launcher = launcher.with_context(|| format!("can't open {}", installed.display()))?;
        let (configuration, config) = launcher.read_configuration()?;
        config.check(&check::local_networks(), wall_s()).map_err(ConfigError::Invalid)?;
        if let Some(setting) = self.settings.restart_only(&configuration.settings()) {
            bail!("{setting} has changed since the gateway started: that takes a restart");
        }
        // On a machine without IPv6 the same settings mean another tunnel.
        if config.tunnel != self.config.tunnel {
            bail!("IPv6 was switched on or off since the gateway started: that takes a restart");
        }
        let TlsMaterial { certificate, key } = TlsMaterial::load(&config)?;
        let (auth, to_auth, protections) = launcher.start_auth(&configuration, key, false).await?;
        let idp = Idp::start(&launcher, &configuration, &config, &auth, self.kept.idp.as_ref()).await?;
        let portal = Portal::prepare(&launcher, &config, self.kept.portal.as_ref())?;
        let certificate_in_use = CurrentCertificate::new(certificate.clone(), &config.tls);
        let launch = launcher.worker_launch(&config, configuration, certificate, protections)?;
        let worker = launcher.start_worker(&launch, to_auth, &self.worker.listeners).await?;
        let kept = KeptChildren { idp, portal };
        Ok(Next { config, launcher, auth, worker, kept, certificate_in_use })
    }

    /// Lets the old worker hand over to the new one: the inner error is the reason why it goes on
    /// instead.
    async fn hand_over(&mut self, next: &mut Next) -> Result<anyhow::Result<()>, ChildError> {
        let (from_predecessor, from_successor) = match channel::pair() {
            Ok((one, other)) => (one.into(), other.into()),
            Err(error) => return Ok(Err(error.into())),
        };
        if let Err(error) = next.worker.send(&Begin::TakeOver, &[from_successor]).await {
            return Ok(Err(error.into()));
        }
        self.worker.send(&ToWorker::HandOver, &[from_predecessor]).await?;
        let deadline = tokio::time::Instant::now() + HANDOVER_TIMEOUT;
        loop {
            let received = tokio::time::timeout_at(deadline, self.worker.process.receive()).await;
            // Whether the new one has taken any of it is unknown, and both must not go on.
            match received.map_err(|_| ChildError::Slow(ChildRole::Worker))?? {
                FromWorker::HandedOver => return Ok(Ok(())),
                FromWorker::HandoverFailed(why) => {
                    // If the new one has failed, its report is more precise.
                    let failure = next.worker.failure(FAILURE_TIMEOUT).await;
                    return Ok(Err(anyhow!(failure.map_or(why, |error| error.to_string()))));
                }
                FromWorker::ReadConfiguration => self.reconfigure_for_worker().await?,
                // Confirmed after the hand-over, to the successor if that is the worker by then: it
                // asks for all of them again.
                FromWorker::Released(addresses) => self.worker.release(addresses)?,
                FromWorker::Hosts(changes) => self.worker.set_hosts(&changes, &self.machine).await?,
                FromWorker::ReportFirewall => self.worker.ask_for_firewall(),
                // The portal that waits for it ends with this worker.
                FromWorker::RelayKnown(_) => {}
                FromWorker::Failed(why) => return Err(ChildError::Failed(why)),
                FromWorker::Upgrade => return Err(ChildError::Unexpected(ChildRole::Worker)),
            }
        }
    }
}

/// Whether only its owner can have written this program: no other user can change it, or a
/// directory or link on the way to it.
fn check_program(program: &Path) -> anyhow::Result<()> {
    trusted_path::check(program)
        .with_context(|| format!("others may have replaced {}: install it elsewhere", program.display()))?;
    let found = std::fs::metadata(program).with_context(|| format!("can't find {}", program.display()))?;
    if !found.is_file() || found.mode() & WRITABLE_BY_OTHERS != 0 {
        bail!(
            "{} is no file that only root can change: install it again (mode 755, owner root)",
            program.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_program_that_others_can_replace_is_not_started() {
        let place = tempfile::tempdir().unwrap();
        let [own, open] = ["own", "open"].map(|name| place.path().join(name));
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for directory in [&own, &open] {
            fs::create_dir(directory).unwrap();
            mode(directory, 0o755);
        }
        let program = own.join("vpnd");
        fs::write(&program, "").unwrap();
        mode(&program, 0o755);
        // The way by the first link leads through the second, in a directory that neither the
        // path's name nor the true path has.
        let (first, second) = (own.join("first"), open.join("second"));
        symlink(&second, &first).unwrap();
        symlink(&program, &second).unwrap();
        let ways = || [&program, &first, &second].map(|way| check_program(way).is_ok());
        assert_eq!(ways(), [true; 3]);
        mode(&open, 0o777);
        assert_eq!(ways(), [true, false, false]);
        let refused = vpnd_sys::text::format_chain(&check_program(&first).unwrap_err());
        assert!(
            refused.contains("others may have replaced") && refused.contains("open and put"),
            "{refused}"
        );
        mode(&open, 0o1777);
        assert_eq!(ways(), [true; 3]);
        mode(&own, 0o775);
        assert_eq!(ways(), [false; 3]);
        mode(&own, 0o755);
        mode(&program, 0o775);
        assert_eq!(ways(), [false; 3], "others can change it");
        assert!(check_program(&own.join("missing")).unwrap_err().to_string().contains("can't find"));
    }
}
