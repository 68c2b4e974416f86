//! The portal as the parent holds it: there where it is switched on.
//!
//! Invariants: the parent opens the socket and reads the files, so the portal needs no right but to
//! what it is handed; its key is not the gateway's; whatever becomes of it, sessions go on.

use std::fs::File;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use zeroize::Zeroizing;

use super::kept_child::{Failure, KeptChild};
use super::{CHILD_END_TIMEOUT, Gateway};
use vpnd_config::{LogoFile, ServerConfig};
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::portal::{FromPortal, Logo, PortalLaunch};
use vpnd_ipc::messages::{Common, SecretBytes};
use vpnd_pki::tls::{self, Identity};
use vpnd_proto::control::Text;

/// Connections that may wait in the kernel's queue.
const BACKLOG: i32 = 128;
/// The largest file of an image.
const MAX_LOGO_BYTES: u64 = 256 << 10;

impl Failure for FromPortal {
    const LOSS: &'static str = "no web pages";

    fn into_reason(self) -> String {
        let Self::Failed(why) = self;
        why
    }
}

pub(super) struct Portal {
    child: KeptChild<PortalLaunch, FromPortal>,
    address: SocketAddr,
    /// It stays open while one process follows another, and holds connections meanwhile.
    listener: OwnedFd,
}

impl Portal {
    /// The same at the gateway's start, which is worth more than web pages.
    pub(super) fn prepare_first(program: &Path, config: &ServerConfig, common: &Common) -> Option<Self> {
        Self::prepare(program, config, common, None).unwrap_or_else(|error| {
            let error = vpnd_sys::text::format_chain(&error);
            tracing::error!(%error, "no web pages until that is mended and 'vpnd reload' was run");
            None
        })
    }

    /// Reads its files and opens its socket, where it is switched on. The process is not started.
    pub(super) fn prepare(
        program: &Path,
        config: &ServerConfig,
        common: &Common,
        before: Option<&Self>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(portal) = &config.portal else { return Ok(None) };
        let chain = vpnd_config::certificate::read(&portal.certificate)?;
        let key = read_key(&portal.key)?;
        Identity::from_pem(&chain, &key.0).and_then(Identity::certified).with_context(|| {
            format!("{} is not the key of {}", portal.key.display(), portal.certificate.display())
        })?;
        if tls::private_key(&key.0)? == tls::private_key(&read_key(&config.tls.key)?.0)? {
            bail!("{} is the gateway's own key: make another for the portal", portal.key.display());
        }
        let launch = PortalLaunch {
            common: common.clone(),
            chain: chain.into(),
            key,
            name: Text::cut(&portal.name),
            logo: portal.logo.as_ref().map(read_logo).transpose()?,
        };
        let listener = match before.filter(|before| before.address == portal.listen) {
            Some(before) => before.listener.try_clone()?,
            None => listen(portal.listen).with_context(|| {
                format!("can't serve web pages on {}; choose another `listen` in [portal]", portal.listen)
            })?,
        };
        let child = KeptChild::new(program, ChildRole::Portal, launch);
        Ok(Some(Self { child, address: portal.listen, listener }))
    }

    /// Waits until it should be there, for the first time or again. Safe to cancel.
    pub(super) async fn ended(&mut self) {
        self.child.ended().await;
    }

    /// Starts it; the auth process's end of the channel to it.
    pub(super) async fn restart(&mut self) -> Option<OwnedFd> {
        // A portal that was taken over can shut the socket down for all who hold it.
        if let Err(error) = SockRef::from(&self.listener).listen(BACKLOG) {
            tracing::error!(%error, "no web pages: {} takes no connections", self.address);
        }
        self.child.restart(std::iter::once(&self.listener)).await
    }

    /// Lets it go.
    pub(super) async fn dismiss(self, timeout: Duration) {
        self.child.dismiss(timeout).await;
    }

    fn is_as(&self, other: &Self) -> bool {
        let launch = |portal: &Self| minicbor::to_vec(&portal.child.launch).map(Zeroizing::new).ok();
        self.address == other.address && launch(self) == launch(other)
    }
}

impl Gateway {
    /// Goes on with this portal, if it is another one. Visits are kept by the auth process.
    pub(super) async fn replace_portal(&mut self, next: Option<Portal>) {
        if let (Some(old), Some(next)) = (&self.portal, &next)
            && old.is_as(next)
        {
            return;
        }
        if let Some(old) = std::mem::replace(&mut self.portal, next) {
            old.dismiss(CHILD_END_TIMEOUT).await;
        }
    }
}

fn read_key(path: &Path) -> anyhow::Result<SecretBytes> {
    let key = std::fs::read(path).map(Zeroizing::new);
    key.map(SecretBytes).with_context(|| format!("can't read {}", path.display()))
}

fn read_logo(logo: &LogoFile) -> anyhow::Result<Logo> {
    let path = logo.path.display();
    let mut bytes = Vec::new();
    let file = File::open(&logo.path).with_context(|| format!("can't read the logo {path}"))?;
    file.take(MAX_LOGO_BYTES + 1).read_to_end(&mut bytes).with_context(|| format!("can't read {path}"))?;
    if bytes.len() as u64 > MAX_LOGO_BYTES {
        bail!("the logo {path} is larger than {} KiB", MAX_LOGO_BYTES >> 10);
    }
    Ok(Logo { media_type: Text::cut(logo.media_type), bytes: bytes.into() })
}

/// `[::]` takes IPv4 too, whatever the system's default is.
fn listen(address: SocketAddr) -> std::io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from(socket).into())
}
