//! Renews this node's certificate in time, with the key that it has: the node's id follows from the key.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::timeout;
use tonic::Status;
use warren_control::{Clock, Loops, Outcome, Queue, RunnerSettings};
use warren_proto::v1;
use warren_proto::v1::membership_client::MembershipClient;
use warren_security::{
    AuthorityError, CertificateRequest, Credentials, LiveCertificate, Membership, MembershipError,
    MembershipStore, Roots,
};

use crate::session::{Dial, DialError};

/// How often it is looked whether the certificate is due. Seldom is enough, since a third of its life is left
/// then, and often enough to notice a clock that was set.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// A certificate that is due sooner, by its own words, is looked at after this.
const SOONEST: Duration = Duration::from_secs(5);
/// For the manager's answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(15);
const SETTINGS: RunnerSettings = RunnerSettings {
    concurrency: 1,
    // Above the deadlines of dialling and of the answer.
    deadline: Duration::from_secs(60),
    first_retry: Duration::from_secs(10),
    longest_retry: Duration::from_secs(600),
};

/// Why the certificate was not renewed; it is tried again.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error("the membership on the disk cannot be used")]
    Store(#[from] MembershipError),
    #[error("the data directory holds no membership any more: {0}; restore it, or join again")]
    NoMember(String),
    #[error(
        "the node's certificate is not valid any more; join again with a token and the same data directory"
    )]
    Expired,
    #[error("no certificate request can be made")]
    Request(#[from] AuthorityError),
    #[error("no manager can be asked for a new certificate")]
    Dial(#[from] DialError),
    #[error("the manager {manager} gave no new certificate: {}", .status.message())]
    Refused { manager: String, status: Status },
    #[error("the manager {0} gave no new certificate within {ANSWER_DEADLINE:?}")]
    Late(String),
}

/// What renewing needs.
pub(crate) struct Renewal {
    /// Where the certificate lies.
    pub store: MembershipStore,
    /// What connections show.
    pub live: Arc<LiveCertificate>,
    /// The way to managers.
    pub dial: Dial,
    /// Places the renewal within its window; the same as long as the agent runs.
    pub chance: u64,
    pub clock: Arc<dyn Clock>,
}

impl Renewal {
    /// Looks now, and then whenever it may be time.
    pub fn start(self, loops: &Loops) {
        let (queue, renewal) = (Queue::new(1), Arc::new(self));
        queue.handle().wake(()).expect("an empty queue has room for one key");
        loops.spawn_queue("worker.certificate", queue, SETTINGS, move |()| {
            let renewal = Arc::clone(&renewal);
            async move {
                let now = UNIX_EPOCH + Duration::from_millis(renewal.clock.unix_millis());
                match renewal.ensure(now).await {
                    Ok(again) => Outcome::RecheckAfter(again),
                    Err(error) => Outcome::Failed(error.into()),
                }
            }
        });
    }

    /// Renews the certificate if that is due, and says when to look again.
    async fn ensure(&self, now: SystemTime) -> Result<Duration, RenewalError> {
        let (credentials, roots) = self.load().await?;
        if !credentials.due_for_renewal(now, self.chance) {
            return Ok(self.look_again(&credentials, now));
        }
        if now >= credentials.expires_at() {
            return Err(RenewalError::Expired);
        }
        let certificate_request = CertificateRequest::create(credentials.key())?;
        let connected = self.dial.dial().await?;
        let manager = connected.manager;
        let mut client = MembershipClient::new(connected.channel);
        let answer = timeout(ANSWER_DEADLINE, client.renew(v1::RenewRequest { certificate_request })).await;
        // A refusal says nothing about the node's place in the cluster, whatever its words: the manager may have read
        // them from a copy that is old. The session hears it for sure.
        let refused = |status| RenewalError::Refused { manager: manager.clone(), status };
        let answer = answer.map_err(|_| RenewalError::Late(manager.clone()))?.map_err(refused)?;
        let store = self.store.clone();
        let renewed =
            tokio::task::spawn_blocking(move || store.complete(&roots, &answer.into_inner().certificate));
        let renewed = renewed.await.expect("checking and writing a certificate does not panic")?;
        self.live.replace(&renewed);
        tracing::info!(manager, "renewed the node's certificate");
        Ok(self.look_again(&renewed, now))
    }

    fn look_again(&self, credentials: &Credentials, now: SystemTime) -> Duration {
        let left = credentials.renew_at(self.chance).duration_since(now).unwrap_or_default();
        left.clamp(SOONEST, LOOK_EVERY)
    }

    async fn load(&self) -> Result<(Credentials, Roots), RenewalError> {
        let store = self.store.clone();
        let loaded = tokio::task::spawn_blocking(move || store.load()).await;
        match loaded.expect("reading three files does not panic")? {
            Membership::Member { credentials, roots } => Ok((credentials, roots)),
            Membership::Begun { why, .. } => Err(RenewalError::NoMember(why.to_string())),
            Membership::None => Err(RenewalError::NoMember("it is empty".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
