//! The answers to the requests of the worker. That each has the reply that it is answered with is
//! kept by the compiler.

use std::net::IpAddr;
use std::sync::Arc;

use minicbor::bytes::ByteArray;
use vpnd_proto::session::{DeviceId, SessionId};

use super::{Service, credentials};
use vpnd_admission::authenticator::LoginOutcome;
use vpnd_ipc::gateway::auth::{
    Abandon, ApprovalQuery, AuthStatus, BrowserLogin, BrowserLoginReply, Carried, Commit, Committed,
    ConfirmAbsences, LoginReply, LoginRequest, MAX_WRITES, MissingQuery, Observed, Reason, RevocationQuery,
    Revocations, SessionQuery, StatusQuery, StoredSession, TrafficReport, TypedAnswer, id,
};
use vpnd_ipc::request::Answer;
use vpnd_store::StoreError;

impl Answer<LoginRequest> for Service {
    async fn answer(self: &Arc<Self>, login: LoginRequest) -> Result<LoginReply, Reason> {
        let (device, outer) = (DeviceId(login.device.into()), login.source);
        let outcome = match login.grant.clone() {
            Some(grant) => {
                let login = credentials(login);
                self.blocking(move |service| Ok(service.portal.finish_in_browser(&grant, login))).await?
            }
            None => self.authenticator.log_in(credentials(login), self.now_s()).await,
        };
        self.decided(outcome, device, Some(outer)).await
    }
}

impl Answer<BrowserLogin> for Service {
    async fn answer(self: &Arc<Self>, login: BrowserLogin) -> Result<BrowserLoginReply, Reason> {
        self.blocking(move |service| Ok(service.portal.begin_in_browser(login))).await
    }
}

impl Answer<TypedAnswer> for Service {
    async fn answer(self: &Arc<Self>, typed: TypedAnswer) -> Result<LoginReply, Reason> {
        let device = DeviceId(typed.device.into());
        let outcome = self.authenticator.answer(typed.login, &typed.answer, device, self.now_s()).await;
        self.decided(outcome, device, None).await
    }
}

impl Answer<ApprovalQuery> for Service {
    async fn answer(self: &Arc<Self>, query: ApprovalQuery) -> Result<Option<LoginReply>, Reason> {
        let device = DeviceId(query.device.into());
        match self.authenticator.approved(query.login, device, self.now_s()).await {
            Some(outcome) => self.decided(outcome, device, None).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Answer<Abandon> for Service {
    async fn answer(self: &Arc<Self>, Abandon(login): Abandon) -> Result<(), Reason> {
        let now_s = self.now_s();
        self.blocking(move |service| {
            service.authenticator.abandon(login, now_s);
            Ok(())
        })
        .await
    }
}

impl Answer<Carried> for Service {
    async fn answer(self: &Arc<Self>, Carried(sessions): Carried) -> Result<(), Reason> {
        self.are_there(sessions.into_iter().take(MAX_WRITES).map(|id| SessionId(id.into())));
        // The process before has answered handshakes until now, after this one read the devices.
        self.forget_peers();
        Ok(())
    }
}

impl Answer<SessionQuery> for Service {
    async fn answer(
        self: &Arc<Self>,
        SessionQuery(id): SessionQuery,
    ) -> Result<Option<StoredSession>, Reason> {
        self.from_store(move |service| service.session(SessionId(id.into()))).await
    }
}

impl Answer<Commit> for Service {
    async fn answer(self: &Arc<Self>, Commit(writes): Commit) -> Result<Committed, Reason> {
        self.blocking(move |service| service.commit(writes)).await
    }
}

impl Answer<RevocationQuery> for Service {
    async fn answer(self: &Arc<Self>, query: RevocationQuery) -> Result<Revocations, Reason> {
        self.from_store(move |service| service.revocations(&query)).await
    }
}

impl Answer<MissingQuery> for Service {
    async fn answer(
        self: &Arc<Self>,
        MissingQuery(sessions): MissingQuery,
    ) -> Result<Vec<ByteArray<16>>, Reason> {
        let ids: Vec<_> = sessions.into_iter().take(MAX_WRITES).map(|id| SessionId(id.into())).collect();
        self.from_store(move |service| {
            let missing = service.store.missing_sessions(&ids, (service.clocks.steady)())?;
            Ok(missing.into_iter().map(id).collect())
        })
        .await
    }
}

impl Answer<StatusQuery> for Service {
    async fn answer(self: &Arc<Self>, StatusQuery: StatusQuery) -> Result<AuthStatus, Reason> {
        self.from_store(Self::status).await
    }
}

impl Answer<TrafficReport> for Service {
    async fn answer(
        self: &Arc<Self>,
        TrafficReport(used): TrafficReport,
    ) -> Result<Vec<ByteArray<16>>, Reason> {
        self.blocking(move |service| Ok(service.account(used))).await
    }
}

impl Answer<Observed> for Service {
    async fn answer(self: &Arc<Self>, Observed(state): Observed) -> Result<bool, Reason> {
        Ok(self.portal.observed(state))
    }
}

impl Answer<ConfirmAbsences> for Service {
    async fn answer(
        self: &Arc<Self>,
        ConfirmAbsences(source): ConfirmAbsences,
    ) -> Result<Option<u64>, Reason> {
        self.blocking(move |service| Ok(service.authenticator.confirm_absences(&source))).await
    }
}

impl Service {
    /// Answers with what was decided about a login; one that was let in gets its addresses first.
    async fn decided(
        self: &Arc<Self>,
        outcome: LoginOutcome,
        device: DeviceId,
        outer: Option<IpAddr>,
    ) -> Result<LoginReply, Reason> {
        Ok(match outcome {
            LoginOutcome::Granted(user) => {
                return self.blocking(move |service| service.admit(&user, device, outer, false)).await;
            }
            LoginOutcome::CodeRequired(number) => LoginReply::CodeRequired(number),
            LoginOutcome::Challenge(number, demanded) | LoginOutcome::Approval(number, demanded) => {
                LoginReply::Challenge(demanded.of_login(number))
            }
            LoginOutcome::Refused(refused) => LoginReply::Refused(refused),
        })
    }

    pub(super) fn now_s(&self) -> u64 {
        (self.clocks.wall)()
    }

    pub(super) async fn from_store<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Reason> {
        self.blocking(|service| work(service).map_err(|error| Reason::cut(&error.to_string()))).await
    }

    /// Runs `work` on a thread that may wait for the disk.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Reason> + Send + 'static,
    ) -> Result<T, Reason> {
        let service = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&service)).await;
        done.unwrap_or_else(|error| Err(Reason::cut(&error.to_string())))
    }
}
