//! Renews this node's certificate with its existing key, since the node's id follows from the key.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::timeout;
use tonic::Status;
use warren_control::{BackgroundTasks, Clock, RunOutcome, RunnerSettings, WorkQueue};
use warren_proto::v1;
use warren_proto::v1::membership_client::MembershipClient;
use warren_security::{
    AuthorityError, CertificateRequest, Credentials, MembershipStore, NodeMembership, NodeMembershipError,
    ReloadableCertificate, Roots,
};

use crate::session::{ManagerDialError, SharedDialer};

/// Interval of checks whether renewal is due. A third of the lifetime is left then, so this is often enough,
/// also to notice a clock change.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Minimum interval until a certificate that is due sooner is checked again.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Deadline of the manager's answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(15);
const SETTINGS: RunnerSettings = RunnerSettings {
    concurrency: 1,
    // Longer than the deadlines of dialling and of the answer.
    deadline: Duration::from_secs(60),
    first_retry: Duration::from_secs(10),
    max_retry: Duration::from_secs(600),
};

/// The certificate was not renewed; it is retried.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error("cannot use the membership on disk")]
    Store(#[from] NodeMembershipError),
    #[error("the data directory has no membership: {0}; restore it, or join again")]
    NotAMember(String),
    #[error("the certificate of the node has expired; join again with a token and the same data directory")]
    Expired,
    #[error("cannot create a certificate request")]
    Request(#[from] AuthorityError),
    #[error("cannot reach a manager to renew the certificate")]
    Dial(#[from] ManagerDialError),
    #[error("manager {manager} did not renew the certificate: {}", .status.message())]
    Refused { manager: String, status: Status },
    #[error("manager {0} did not renew the certificate within {ANSWER_DEADLINE:?}")]
    Timeout(String),
}

/// Renews the certificate of this node.
pub(crate) struct CertificateRenewal {
    /// Store of the certificate.
    pub store: MembershipStore,
    /// Certificate resolver of connections.
    pub live: Arc<ReloadableCertificate>,
    /// Dialer of managers.
    pub dial: SharedDialer,
    /// Places the renewal within its window; constant while the agent runs.
    pub random: u64,
    pub clock: Arc<dyn Clock>,
}

impl CertificateRenewal {
    /// Checks now, and then whenever renewal may be due.
    pub fn start(self, background_tasks: &BackgroundTasks) {
        let (queue, renewal) = (WorkQueue::new(1), Arc::new(self));
        queue.handle().wake(()).expect("an empty queue has room for one key");
        background_tasks.spawn_queue("worker.certificate", queue, SETTINGS, move |()| {
            let renewal = Arc::clone(&renewal);
            async move {
                let now = UNIX_EPOCH + Duration::from_millis(renewal.clock.unix_millis());
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
        if !credentials.is_renewal_due(now, self.random) {
            return Ok(self.next_check(&credentials, now));
        }
        if now >= credentials.expires_at() {
            return Err(RenewalError::Expired);
        }
        let certificate_request = CertificateRequest::create(credentials.key())?;
        let connected = self.dial.dial().await?;
        let manager = connected.manager;
        let mut client = MembershipClient::new(connected.channel);
        let answer = timeout(ANSWER_DEADLINE, client.renew(v1::RenewRequest { certificate_request })).await;
        // A rejection here does not prove a removal, whatever its message: the manager may have read stale
        // state. The session gets a reliable answer.
        let refused = |status| RenewalError::Refused { manager: manager.clone(), status };
        let answer = answer.map_err(|_| RenewalError::Timeout(manager.clone()))?.map_err(refused)?;
        let store = self.store.clone();
        let renewed =
            tokio::task::spawn_blocking(move || store.complete(&roots, &answer.into_inner().certificate));
        let renewed = renewed.await.expect("checking and writing a certificate does not panic")?;
        self.live.replace(&renewed);
        tracing::info!(manager, "renewed the node's certificate");
        Ok(self.next_check(&renewed, now))
    }

    fn next_check(&self, credentials: &Credentials, now: SystemTime) -> Duration {
        let left = credentials.renew_at(self.random).duration_since(now).unwrap_or_default();
        left.clamp(MIN_CHECK_INTERVAL, CHECK_INTERVAL)
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
