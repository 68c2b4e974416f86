//! The auth process of a gateway, from its first message to its end.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::auth::password::Hasher;
use crate::auth::{Authenticator, LONGEST_WAIT, Settings};
use crate::config::ServerConfig;
use crate::lease::Pools;
use crate::privsep::auth::message;
use crate::privsep::auth::service::{Clocks, Service};
use crate::privsep::channel::Channel;
use crate::privsep::launch::{AuthLaunch, ToOpener, ToWorker};
use crate::privsep::part::{self, Begun, Part};
use crate::store::Store;
use crate::store::sqlite::Sqlite;
use crate::sys::process;

/// How often the user store is copied.
const BACKUP_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// How long the opener may take to notice that the worker is gone.
const LET_GO_WITHIN: Duration = Duration::from_secs(5);

/// Runs it; `stream` leads to the opener.
pub(crate) fn run(stream: UnixStream) -> anyhow::Result<()> {
    let state_dir = |launch: &AuthLaunch| {
        // A configuration that can't be parsed fails below, where it can be told.
        launch.configuration.parse().map(|config| vec![config.server.state_dir]).unwrap_or_default()
    };
    match part::begin(Part::Auth, &stream, |launch: &AuthLaunch| &launch.common, state_dir) {
        Ok(begun) => part::work(stream, async |opener| serve(begun, opener).await),
        Err(error) => part::fail(stream, &error),
    }
}

async fn serve(begun: Begun<AuthLaunch>, opener: Channel) -> anyhow::Result<()> {
    let config = begun.launch.message.configuration.parse()?;
    let Ok([worker]) = <[_; 1]>::try_from(begun.launch.descriptors) else {
        bail!("the auth process was started without a channel to the worker");
    };
    let worker = Channel::new(worker.into(), message::MAX_FRAME)?;
    let sqlite = Arc::new(Sqlite::open(&config.server.store_path())?);
    let settings = settings(&config)?;
    let store: Arc<dyn Store> = Arc::clone(&sqlite) as _;
    let for_auth = Arc::clone(&store);
    let authenticator =
        tokio::task::spawn_blocking(move || Authenticator::new(for_auth, Hasher::default(), settings))
            .await
            .context("the authenticator can't be made")??;
    let service = Arc::new(Service::new(
        store,
        authenticator,
        Pools::new(&config.tunnel),
        config.timeouts.session_lifetime,
        settings.workers + settings.queue,
        Clocks::default(),
    ));
    opener.send(&ToOpener::Prepared(begun.protections), &[]).await?;
    tokio::spawn(back_up(sqlite));
    tokio::select! {
        // The opener says nothing more; that its channel ends is what this process waits for.
        said = opener.receive::<ToWorker>() => match said? {
            None => Ok(()),
            Some(_) => bail!("the auth process was told something that it does not know"),
        },
        ended = service.run(worker) => match ended {
            // The opener waits for the worker's end before it lets this process go.
            Ok(()) => match tokio::time::timeout(LET_GO_WITHIN, opener.receive::<ToWorker>()).await {
                Ok(Ok(None)) => Ok(()),
                _ => bail!("the auth process has lost the worker"),
            },
            Err(error) => Err(error).context("the worker has sent what no worker sends"),
        },
    }
}

fn settings(config: &ServerConfig) -> anyhow::Result<Settings> {
    Ok(Settings {
        workers: match config.limits.password_workers {
            0 => process::available_cores()?.len().div_ceil(2),
            workers => workers,
        },
        queue: config.limits.password_queue,
        longest_wait: LONGEST_WAIT,
        require_certificate: config.tls.require_client_certificate,
    })
}

/// Keeps a copy of the store, which has just proved whole, beside it.
async fn back_up(store: Arc<Sqlite>) {
    loop {
        let copied = Arc::clone(&store);
        match tokio::task::spawn_blocking(move || copied.back_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the user store has no new backup"),
            Err(error) => tracing::error!(%error, "the user store has no new backup"),
        }
        tokio::time::sleep(BACKUP_INTERVAL).await;
    }
}
