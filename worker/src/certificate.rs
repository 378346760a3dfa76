//! Renews this node's certificate with its existing key, since the node's id follows from the key: in time, when it has
//! expired, by the clock of this machine or that of a manager, and when the certificate authority of the cluster was
//! replaced. It is requested on a connection with the earlier one, or without it, once that has expired.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::Status;
use warren_control::{BackgroundTasks, Clock, RunOutcome, RunnerSettings, Shutdown, WorkQueue};
use warren_proto::v1;
use warren_proto::v1::membership_client::MembershipClient;
use warren_security::{
    AuthorityError, CertificateRequest, Credentials, MaterialError, MembershipStore, NodeMembership,
    NodeMembershipError, PrivateKey, ReloadableCertificate, Roots, TlsError, Trust,
};
use warren_task::DesiredState;
use warren_types::CaDigest;

use crate::session::{ManagerConnection, ManagerDialError, SharedDialer, refuse_departed};

/// Interval of checks whether renewal is due. A third of the lifetime is left then, so this is often enough,
/// also to notice a clock change.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Minimum interval until a certificate that is due sooner is checked again.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// After this time no further manager is asked.
const ROUND_DEADLINE: Duration = Duration::from_secs(30);
/// Deadline of the manager's answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(15);
const SETTINGS: RunnerSettings = RunnerSettings {
    concurrency: 1,
    // Longer than that of a round and those of the last manager: dialling twice, and the answer.
    deadline: Duration::from_secs(90),
    first_retry: Duration::from_secs(10),
    max_retry: Duration::from_secs(600),
};

/// The certificate was not renewed; the agent retries it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewalError {
    #[error("cannot use the membership on disk")]
    Store(#[from] NodeMembershipError),
    #[error("the data directory has no membership: {0}; restore it, or join again")]
    NotAMember(String),
    #[error("cannot create a certificate request")]
    Request(#[from] AuthorityError),
    #[error("cannot reach a manager to renew the certificate")]
    Dial(#[from] ManagerDialError),
    #[error("manager {manager} did not renew the certificate: {}", .status.message())]
    Refused { manager: String, status: Status },
    #[error("manager {0} did not renew the certificate within {ANSWER_DEADLINE:?}")]
    Timeout(String),
    #[error("manager {manager} answered with certificate authorities that cannot be read")]
    Authorities { manager: String, source: MaterialError },
    #[error("cannot use the certificate authorities of the cluster")]
    Trust(#[from] TlsError),
}

/// What a manager issued for the key of this node.
pub(crate) struct IssuedCertificate {
    pub manager: String,
    /// PEM.
    pub certificate: String,
    /// The authorities that the manager trusts.
    pub authorities: Roots,
}

/// Requests another certificate for the key of this node from a manager. A rejection does not prove a removal, whatever
/// its message: the manager may have read stale state. The session gets a reliable answer.
pub(crate) async fn request_certificate(
    connection: ManagerConnection,
    key: &PrivateKey,
) -> Result<IssuedCertificate, RenewalError> {
    let certificate_request = CertificateRequest::create(key)?;
    let ManagerConnection { manager, channel, .. } = connection;
    let mut client = MembershipClient::new(channel);
    let answer = timeout(ANSWER_DEADLINE, client.renew(v1::RenewRequest { certificate_request })).await;
    let refused = |status| RenewalError::Refused { manager: manager.clone(), status };
    let answer = answer.map_err(|_| RenewalError::Timeout(manager.clone()))?.map_err(refused)?;
    let v1::RenewResponse { certificate, authorities } = answer.into_inner();
    match Roots::parse(&authorities) {
        Ok(authorities) => Ok(IssuedCertificate { manager, certificate, authorities }),
        Err(source) => Err(RenewalError::Authorities { manager, source }),
    }
}

/// Renews the certificate of this node.
pub(crate) struct CertificateRenewal {
    /// Store of the certificate.
    pub store: MembershipStore,
    /// Certificate resolver of connections.
    pub live: Arc<ReloadableCertificate>,
    /// What connections trust.
    pub trust: Arc<Trust>,
    /// Its settings say which authority the node is to trust.
    pub desired_state: watch::Receiver<DesiredState>,
    /// Whether a manager refused the certificate as expired since it was renewed.
    pub expired: watch::Sender<bool>,
    /// Dialer of managers.
    pub dial: SharedDialer,
    /// Places the renewal within its window; constant while the agent runs.
    pub random: u64,
    pub clock: Arc<dyn Clock>,
}

impl CertificateRenewal {
    /// Checks now, and then whenever renewal may be due.
    pub fn start(self, background_tasks: &BackgroundTasks, shutdown: &Shutdown) {
        let (queue, renewal) = (WorkQueue::new(1), Arc::new(self));
        let (wake, mut desired_state) = (queue.handle(), renewal.desired_state.clone());
        wake.wake(()).expect("an empty queue has room for one key");
        let (trust, retry) = (Arc::clone(&renewal.trust), queue.handle());
        let mut expired = renewal.expired.subscribe();
        // Before the first connection.
        refuse_departed(&trust, &desired_state.borrow());
        shutdown.spawn_cancellable("worker.authority", async move {
            let mut known = None;
            while desired_state.changed().await.is_ok() {
                let wanted = {
                    let desired = desired_state.borrow_and_update();
                    refuse_departed(&trust, &desired);
                    desired.settings.as_ref().and_then(|it| it.authority)
                };
                if wanted != known {
                    known = wanted;
                    // The queue has room for its only key.
                    let _ = wake.wake(());
                }
            }
        });
        shutdown.spawn_cancellable("worker.expired-certificate", async move {
            while expired.changed().await.is_ok() {
                if *expired.borrow_and_update() {
                    let _ = retry.wake(());
                }
            }
        });
        background_tasks.spawn_queue("worker.certificate", queue, SETTINGS, move |()| {
            let renewal = Arc::clone(&renewal);
            async move {
                let now = UNIX_EPOCH + Duration::from_millis(renewal.clock.wall_millis());
                match renewal.ensure(now).await {
                    Ok(again) => RunOutcome::RequeueAfter(again),
                    Err(error) => RunOutcome::Failed(error.into()),
                }
            }
        });
    }

    /// Renews the certificate if due, and returns the delay until the next check.
    async fn ensure(&self, now: SystemTime) -> Result<Duration, RenewalError> {
        let (credentials, roots) = self.load().await?;
        let is_due = credentials.is_renewal_due(now, self.random) || *self.expired.borrow();
        if !is_due && self.wanted_authority().is_none() {
            return Ok(self.next_check(&credentials, now, MIN_CHECK_INTERVAL));
        }
        let IssuedCertificate { manager, certificate, authorities } = self.request(&credentials, now).await?;
        let is_wanted = self.wanted_authority().is_some_and(|wanted| authorities.digests() == [wanted]);
        // A manager that lags has other ones. The certificate goes with those from before as well.
        let roots = if is_wanted { authorities } else { roots };
        let (store, live, expired) = (self.store.clone(), Arc::clone(&self.live), self.expired.clone());
        let renewed = tokio::task::spawn_blocking(move || {
            // In use before it is stored: a disk that is full does not keep the node from its cluster.
            live.replace(&store.check(&roots, &certificate)?);
            expired.send_replace(false);
            store.complete(&roots, &certificate).map(|renewed| (renewed, roots))
        });
        let (renewed, roots) = renewed.await.expect("checking and writing a certificate does not panic")?;
        self.trust.replace(&roots, &[])?;
        tracing::info!(manager, "renewed the node's certificate");
        // With a clock that is ahead of that of the manager, it may be due again at once.
        let pause = (renewed.lifetime() / 12).clamp(MIN_CHECK_INTERVAL, CHECK_INTERVAL);
        Ok(self.next_check(&renewed, now, pause))
    }

    /// Asks one manager after the other, each once: with the certificate, or without it if it has expired by whichever
    /// clock. Managers refuse such a one, and bound the connections without a certificate.
    ///
    /// One alone would not do: the session dials the same managers in turn, so that this could always be one that is
    /// down.
    async fn request(
        &self,
        credentials: &Credentials,
        now: SystemTime,
    ) -> Result<IssuedCertificate, RenewalError> {
        let began = Instant::now();
        let mut is_shown = credentials.is_valid(now) && !*self.expired.borrow();
        let mut asked = 0;
        loop {
            let dialled = if is_shown { self.dial.dial().await } else { self.dial.dial_anonymously().await };
            if is_shown && dialled.as_ref().is_err_and(ManagerDialError::is_certificate_expired) {
                (is_shown, asked) = (false, 0);
                continue;
            }
            asked += 1;
            let issued = match dialled {
                Ok(connection) => request_certificate(connection, credentials.key()).await,
                Err(error) => Err(error.into()),
            };
            match issued {
                Err(error) if asked < self.dial.manager_count() && began.elapsed() < ROUND_DEADLINE => {
                    tracing::debug!(%error, "asking the next manager to renew the certificate");
                }
                issued => return issued,
            }
        }
    }

    /// The only authority that this node is to trust, if it trusts another one.
    fn wanted_authority(&self) -> Option<CaDigest> {
        let wanted = self.desired_state.borrow().settings.as_ref().and_then(|settings| settings.authority);
        wanted.filter(|wanted| self.trust.roots().digests() != [*wanted])
    }

    /// The delay until the next check, at least `least`.
    fn next_check(&self, credentials: &Credentials, now: SystemTime, least: Duration) -> Duration {
        if self.wanted_authority().is_some() {
            // The manager that answered trusts an earlier authority as well, for a moment.
            return MIN_CHECK_INTERVAL;
        }
        let left = credentials.renew_at(self.random).duration_since(now).unwrap_or_default();
        left.clamp(least, CHECK_INTERVAL)
    }

    async fn load(&self) -> Result<(Credentials, Roots), RenewalError> {
        let store = self.store.clone();
        let loaded = tokio::task::spawn_blocking(move || store.load()).await;
        match loaded.expect("reading three files does not panic")? {
            NodeMembership::Member { credentials, roots } => Ok((credentials, roots)),
            NodeMembership::Joining { why, .. } => Err(RenewalError::NotAMember(why.to_string())),
            NodeMembership::NotMember => Err(RenewalError::NotAMember("it is empty".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
