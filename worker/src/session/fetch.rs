//! Gets secrets, configs and credentials from the manager of the session: sealed for one call, and opened here.

use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};
use warren_proto::convert::content_kind;
use warren_proto::v1;
use warren_proto::v1::fetch_request::Need as WireNeed;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_security::delivery::{Delivery, Requester};
use warren_types::NodeId;
use warren_types::content::MAX_CONTENT;
use warren_types::spec::MAX_CONTENTS;

use crate::handlers::contents::courier::{Courier, Delivered, FetchError, Need};

/// The way to the manager of the session, while there is one.
pub(crate) type Line = watch::Receiver<Option<SessionsClient<Channel>>>;

/// How long a session is waited for. An agent that has just started, or whose manager went, has one within a second;
/// a failure would be told to managers and be wrong a moment later.
const SESSION_WITHIN: Duration = Duration::from_secs(3);
/// For one call.
const DEADLINE: Duration = Duration::from_secs(30);
/// Calls at once. Each holds what a task has of contents in memory, and is one of the streams of the connection.
const AT_ONCE: usize = 8;
/// Answers to one call: secrets and configs.
const MAX_DELIVERIES: usize = 2 * MAX_CONTENTS;
/// Bytes of one answer: a content, sealed, with its name and ids.
const MAX_DELIVERY: usize = MAX_CONTENT + (4 << 10);

/// Asks managers for what this node needs.
pub(crate) struct Fetcher {
    node: NodeId,
    line: Line,
    at_once: Semaphore,
}

impl Fetcher {
    /// Asks as `node` over `line`.
    pub fn new(node: NodeId, line: Line) -> Self {
        Self { node, line, at_once: Semaphore::new(AT_ONCE) }
    }

    async fn manager(&self) -> Result<SessionsClient<Channel>, FetchError> {
        let mut line = self.line.clone();
        let found = timeout(SESSION_WITHIN, line.wait_for(Option::is_some)).await;
        let found = found.ok().and_then(|found| found.ok()?.clone());
        found.ok_or_else(|| FetchError::Away("there is no session with one".into()))
    }
}

#[tonic::async_trait]
impl Courier for Fetcher {
    async fn fetch(&self, need: Need) -> Result<Vec<Delivered>, FetchError> {
        // First, so that nobody waits for those who wait for a manager.
        let manager = self.manager().await?;
        let _place = self.at_once.acquire().await.expect("it is never closed");
        let late = |_| FetchError::Away(format!("the manager did not deliver within {DEADLINE:?}"));
        timeout(DEADLINE, deliver(manager, self.node, need)).await.map_err(late)?
    }
}

async fn deliver(
    manager: SessionsClient<Channel>,
    node: NodeId,
    need: Need,
) -> Result<Vec<Delivered>, FetchError> {
    let mut requester = Requester::new(node)?;
    let key = requester.public_key().to_vec().into();
    let request = v1::FetchRequest { key, need: Some(wire(need)) };
    let mut manager = manager.max_decoding_message_size(MAX_DELIVERY);
    let mut answers = manager.fetch(request).await.map_err(refused)?.into_inner();
    let mut delivered = Vec::new();
    while let Some(answer) = answers.message().await.map_err(refused)? {
        if delivered.len() == MAX_DELIVERIES {
            return Err(FetchError::Unreadable(format!("it has more than {MAX_DELIVERIES} contents")));
        }
        delivered.push(open(&mut requester, &answer)?);
    }
    Ok(delivered)
}

fn wire(need: Need) -> WireNeed {
    match need {
        Need::Contents(task) => WireNeed::TaskContents(task.to_string()),
        Need::Credential(task) => WireNeed::TaskCredential(task.to_string()),
        Need::StreamCredential(stream) => WireNeed::StreamCredential(stream),
    }
}

fn open(requester: &mut Requester, answer: &v1::SealedDelivery) -> Result<Delivered, FetchError> {
    let v1::SealedDelivery { key, kind, name, id, number, sealed } = answer;
    let unreadable = |error: &dyn std::error::Error| FetchError::Unreadable(error.to_string());
    let kind = content_kind(*kind).map_err(|error| unreadable(&error))?;
    let name = name.parse().map_err(|error| unreadable(&error))?;
    let id = id.parse().map_err(|error| unreadable(&error))?;
    let bytes = requester.open(&Delivery { key, id, number: *number, sealed })?;
    if bytes.len() > MAX_CONTENT {
        return Err(FetchError::Unreadable(format!("a content has more than {MAX_CONTENT} bytes")));
    }
    Ok(Delivered { kind, name, number: *number, bytes })
}

fn refused(status: Status) -> FetchError {
    let said = status.message().to_owned();
    match status.code() {
        Code::FailedPrecondition => FetchError::Gone(said),
        // The connection broke, or the manager stops or leads no more: another one is dialled.
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Aborted | Code::Unknown => {
            FetchError::Away(format!("the manager left: {said}"))
        }
        _ => FetchError::Refused(said),
    }
}

#[cfg(test)]
mod tests;
