//! The children without which the gateway goes on: idp and portal.
//!
//! INVARIANT: one that was started again is connected to the auth process, and the worker knows no
//! relay of a portal that is gone.

use super::CHILD_END_TIMEOUT;
use super::acme::Orders;
use super::idp::Idp;
use super::portal::Portal;
use super::worker::Worker;
use vpnd_ipc::gateway::portal::FromPortal;
use vpnd_ipc::gateway::{FromAuth, ToAuth};
use vpnd_ipc::spawn::{ChildError, RunningChild};

pub(super) struct KeptChildren {
    /// There only where sources are configured.
    pub(super) idp: Option<Idp>,
    /// There only where it is switched on.
    pub(super) portal: Option<Portal>,
}

/// An event of them.
pub(super) enum Event {
    /// The idp process has ended and should be there again.
    IdpEnded,
    /// The portal has ended and should be there again.
    PortalEnded,
    Portal(FromPortal),
}

impl KeptChildren {
    /// The next event; never returns without one. Safe to cancel.
    pub(super) async fn next(&mut self) -> Event {
        let of_idp = async {
            match &mut self.idp {
                Some(idp) => idp.ended().await,
                None => std::future::pending().await,
            }
        };
        let of_portal = async {
            match &mut self.portal {
                Some(portal) => portal.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = of_idp => Event::IdpEnded,
            message = of_portal => message.map_or(Event::PortalEnded, Event::Portal),
        }
    }

    /// Handles an event of them: one that has ended is started again.
    ///
    /// # Errors
    /// If the auth process or the worker is lost.
    pub(super) async fn handle(
        &mut self,
        event: Event,
        orders: &mut Orders,
        auth: &RunningChild<FromAuth>,
        worker: &Worker,
    ) -> Result<(), ChildError> {
        match (event, &mut self.idp, &mut self.portal) {
            (Event::IdpEnded, Some(idp), _) => match idp.restart().await {
                Some(to_auth) => auth.send(&ToAuth::Idp, &[to_auth]).await,
                None => Ok(()),
            },
            (Event::PortalEnded, _, Some(portal)) => {
                let to_auth = portal.restart().await;
                // It goes on where only its files were read again.
                if to_auth.is_some() || !portal.is_running() {
                    portal.end_relays(worker).await?;
                }
                if let Some(to_auth) = to_auth {
                    // The process was started with the proofs.
                    orders.answering().await;
                    auth.send(&ToAuth::Portal, &[to_auth]).await?;
                }
                portal.report_certificate(auth).await
            }
            (Event::Portal(message), _, Some(portal)) => portal.handle(message, orders, worker).await,
            (Event::IdpEnded, None, _) | (Event::PortalEnded | Event::Portal(_), _, None) => Ok(()),
        }
    }

    /// Goes on with this portal, if it is another one. Visits are kept by the auth process, and the
    /// answers for an order under way here.
    ///
    /// # Errors
    /// If the auth process or the worker is lost.
    pub(super) async fn replace_portal(
        &mut self,
        next: Option<Portal>,
        orders: &Orders,
        auth: &RunningChild<FromAuth>,
        worker: &Worker,
    ) -> Result<(), ChildError> {
        let next = next.map(|next| next.with_proofs(orders.proofs()));
        if let (Some(old), Some(next)) = (&mut self.portal, &next)
            && old.is_as(next)
        {
            old.go_on_as(next).await;
            return old.report_certificate(auth).await;
        }
        if let Some(portal) = &mut self.portal {
            portal.end_relays(worker).await?;
        }
        if let Some(old) = std::mem::replace(&mut self.portal, next) {
            old.dismiss(CHILD_END_TIMEOUT).await;
        }
        Ok(())
    }
}
