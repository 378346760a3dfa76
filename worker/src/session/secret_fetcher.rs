//! Fetches secrets, configs and credentials from the manager of the session, sealed for one call, and opens
//! them.

use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};
use warren_proto::convert::secret_object_kind;
use warren_proto::status::NO_REGISTRY_ACCESS;
use warren_proto::v1::fetch_secret_objects_request::Purpose as WireNeed;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::{Problem, v1};
use warren_security::delivery::{DeliveryRequester, SealedDelivery};
use warren_types::NodeId;
use warren_types::secret_object::MAX_SECRET_OBJECT_SIZE;
use warren_types::spec::MAX_TASK_SECRET_OBJECTS;

use crate::handlers::secret_fetcher::{
    FetchPurpose, FetchedObject, ImagePuller, SecretFetchError, SecretFetcher,
};

/// The connection to the session's manager, while there is a session.
pub(crate) type ManagerChannelReceiver = watch::Receiver<Option<Channel>>;

/// Time to wait for a session. An agent that has just started, or lost its manager, has one within a second;
/// an error would be reported to managers and be obsolete a moment later.
const SESSION_TIMEOUT: Duration = Duration::from_secs(3);
/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(30);
/// Concurrent calls of either kind: for secret objects, each of which holds those of a task in memory, and for access
/// to registries, which managers may have to wait for.
const MAX_CONCURRENT_CALLS: usize = 8;
/// Maximum number of secret objects in an answer: secrets, configs and a seccomp profile.
const MAX_DELIVERIES: usize = 2 * MAX_TASK_SECRET_OBJECTS + 1;
/// Maximum size of one sealed secret object with its name and ids.
const MAX_DELIVERY: usize = MAX_SECRET_OBJECT_SIZE + (4 << 10);

/// Fetches from managers what this node needs.
pub(crate) struct ManagerSecretFetcher {
    node: NodeId,
    channel: ManagerChannelReceiver,
    secret_permits: Semaphore,
    registry_permits: Semaphore,
}

impl ManagerSecretFetcher {
    /// Fetches as `node` over `line`.
    pub fn new(node: NodeId, channel: ManagerChannelReceiver) -> Self {
        let permits = || Semaphore::new(MAX_CONCURRENT_CALLS);
        Self { node, channel, secret_permits: permits(), registry_permits: permits() }
    }

    async fn manager(&self) -> Result<SessionsClient<Channel>, SecretFetchError> {
        let mut channel = self.channel.clone();
        let found = timeout(SESSION_TIMEOUT, channel.wait_for(Option::is_some)).await;
        let found = found.ok().and_then(|found| found.ok()?.clone());
        found
            .map(SessionsClient::new)
            .ok_or_else(|| SecretFetchError::NoManager("not connected to a manager".into()))
    }
}

#[tonic::async_trait]
impl SecretFetcher for ManagerSecretFetcher {
    async fn fetch(&self, need: FetchPurpose) -> Result<Vec<FetchedObject>, SecretFetchError> {
        // Before the permit, so that calls do not wait for those that wait for a manager.
        let manager = self.manager().await?;
        let permits = match &need {
            FetchPurpose::TaskSecretObjects(_) => &self.secret_permits,
            FetchPurpose::RegistryAccess { .. } => &self.registry_permits,
        };
        let _place = permits.acquire().await.expect("it is never closed");
        let late = |_| SecretFetchError::NoManager(format!("no answer from the manager within {DEADLINE:?}"));
        timeout(DEADLINE, deliver(manager, self.node, need)).await.map_err(late)?
    }
}

async fn deliver(
    manager: SessionsClient<Channel>,
    node: NodeId,
    need: FetchPurpose,
) -> Result<Vec<FetchedObject>, SecretFetchError> {
    let mut requester = DeliveryRequester::new(node)?;
    let key = requester.public_key().to_vec().into();
    let (purpose, is_renewal) = purpose_to_wire(need);
    let request = v1::FetchSecretObjectsRequest { key, purpose: Some(purpose), is_renewal };
    let mut manager = manager.max_decoding_message_size(MAX_DELIVERY);
    let mut answers = manager.fetch_secret_objects(request).await.map_err(status_to_error)?.into_inner();
    let mut delivered = Vec::new();
    while let Some(answer) = answers.message().await.map_err(status_to_error)? {
        if delivered.len() == MAX_DELIVERIES {
            return Err(SecretFetchError::InvalidAnswer(format!(
                "more than {MAX_DELIVERIES} secret objects"
            )));
        }
        delivered.push(unseal(&mut requester, &answer)?);
    }
    Ok(delivered)
}

fn purpose_to_wire(need: FetchPurpose) -> (WireNeed, bool) {
    match need {
        FetchPurpose::TaskSecretObjects(task) => (WireNeed::TaskSecretObjects(task.to_string()), false),
        FetchPurpose::RegistryAccess { puller: ImagePuller::Task(task), is_renewal } => {
            (WireNeed::TaskCredential(task.to_string()), is_renewal)
        }
        FetchPurpose::RegistryAccess { puller: ImagePuller::Stream(stream), is_renewal } => {
            (WireNeed::StreamCredential(stream), is_renewal)
        }
    }
}

fn unseal(
    requester: &mut DeliveryRequester,
    answer: &v1::SealedSecretObject,
) -> Result<FetchedObject, SecretFetchError> {
    let v1::SealedSecretObject { key, kind, name, id, version_number: number, sealed } = answer;
    let unreadable = |error: &dyn std::error::Error| SecretFetchError::InvalidAnswer(error.to_string());
    let kind = secret_object_kind(*kind).map_err(|error| unreadable(&error))?;
    let name = name.parse().map_err(|error| unreadable(&error))?;
    let id = id.parse().map_err(|error| unreadable(&error))?;
    let bytes = requester.open(&SealedDelivery { key, id, number: *number, sealed })?;
    if bytes.len() > MAX_SECRET_OBJECT_SIZE {
        return Err(SecretFetchError::InvalidAnswer(format!(
            "a secret object has more than {MAX_SECRET_OBJECT_SIZE} bytes"
        )));
    }
    Ok(FetchedObject { kind, name, id, version: *number, bytes })
}

fn status_to_error(status: Status) -> SecretFetchError {
    let Problem { code, reason, message, .. } = Problem::from(&status);
    if reason == NO_REGISTRY_ACCESS {
        let is_transient = code == Code::Unavailable;
        return SecretFetchError::NoRegistryAccess { reason: message, is_transient };
    }
    match code {
        Code::FailedPrecondition => SecretFetchError::VersionGone(message),
        // The connection broke, or the manager stops or is no longer the leader: another one is dialled.
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Aborted | Code::Unknown => {
            SecretFetchError::NoManager(format!("lost connection to the manager: {message}"))
        }
        _ => SecretFetchError::Refused(message),
    }
}

#[cfg(test)]
mod tests;
