//! Linearizable reads, which contain every write acknowledged before by any manager, and writes. A manager
//! without a known leader fails early, since another manager may know one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use warren_core::{Command, CommandResponse};
use warren_proto::Problem;
use warren_proto::status::MANAGER_BEHIND;
use warren_session::leader::LEADER_TIMEOUT;
use warren_store::problem::{status_of, unexpected_answer};
use warren_store::{IndeterminateReason, ProposeError, PublishedState};
use warren_types::Violation;

use super::Api;

/// How long a watcher waits for a lagging manager before it is redirected to another one.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// Metadata `true` requests a read of the local, possibly old state. It is served without a leader as well.
pub const STALE_METADATA: &str = "warren-allow-stale";

impl Api {
    /// The state for a read, stale if the caller allows it.
    ///
    /// # Errors
    /// `Unavailable`, reason `NO_LEADER`: a linearizable read is not possible; `DISK_FULL` or `DISK_FAILED`:
    /// not on this manager ([`super::proxy`] tries another one). Stale reads set [`STALE_METADATA`].
    pub(super) async fn read<T>(&self, request: &Request<T>) -> Result<Arc<PublishedState>, Status> {
        if allows_stale(request.metadata())? { Ok(self.store.read()) } else { self.read_latest().await }
    }

    /// The newest state, from which writes are prepared.
    ///
    /// # Errors
    /// As [`Api::read`].
    pub(super) async fn read_latest(&self) -> Result<Arc<PublishedState>, Status> {
        tokio::select! {
            biased;
            newest = self.store.read_linearizable() => newest.map_err(status_of),
            () = self.leader.clone().wait_lost() => Err(status_of(ProposeError::NoLeader(LEADER_TIMEOUT))),
        }
    }

    /// Proposes a write and returns the object as its own entry left it, or as it was before if the entry
    /// deleted it. A response built from the newest state instead could contain later writes of others.
    ///
    /// # Errors
    /// As [`Api::propose`].
    pub(super) async fn write<T>(&self, command: Command) -> Result<Arc<T>, Status>
    where
        Arc<T>: TryFrom<CommandResponse, Error = CommandResponse>,
    {
        let answer = self.propose(command).await.map_err(status_of)?;
        answer.try_into().map_err(|other| unexpected_answer(&other))
    }

    /// As [`Api::write`], for a deletion of `found`: returns `found` if there was nothing left to delete.
    ///
    /// # Errors
    /// As [`Api::propose`].
    pub(super) async fn delete<T>(&self, command: Command, found: &Arc<T>) -> Result<Arc<T>, Status>
    where
        Arc<T>: TryFrom<CommandResponse, Error = CommandResponse>,
    {
        match self.propose(command).await.map_err(status_of)? {
            CommandResponse::Done => Ok(found.clone()),
            answer => answer.try_into().map_err(|other| unexpected_answer(&other)),
        }
    }

    /// The state to resume a watch from whose watcher has seen the entry `index`: a state with that entry, or
    /// the newest one if no committed entry has that index.
    ///
    /// # Errors
    /// As [`Api::read`], and `Unavailable`, reason `BEHIND`, if this manager does not catch up in time.
    pub(super) async fn read_from_index(&self, index: u64) -> Result<Arc<PublishedState>, Status> {
        let reached = || Some(self.store.read()).filter(|published| published.index >= index);
        match reached() {
            Some(published) => Ok(published),
            None => match timeout(CATCH_UP_TIMEOUT, self.read_latest()).await {
                Ok(newest) => newest,
                Err(_) => reached().ok_or_else(|| {
                    let message = format!(
                        "index {index}, which the watcher has seen, was not applied here within \
                         {CATCH_UP_TIMEOUT:?} (applied index: {}); ask another manager",
                        self.store.read().index
                    );
                    Problem::new(Code::Unavailable, MANAGER_BEHIND, message).into()
                }),
            },
        }
    }

    /// As [`warren_store::Store::propose`], for callers that can use another manager.
    ///
    /// # Errors
    /// As [`warren_store::Store::propose`], and as soon as the leader is lost.
    pub(super) async fn propose(&self, command: Command) -> Result<CommandResponse, ProposeError> {
        // While the log cannot be written no leader is known either, but the stall is the reason to report.
        if self.leader.is_lost() && self.store.read().write_stall.is_none() {
            return Err(ProposeError::NoLeader(LEADER_TIMEOUT));
        }
        tokio::select! {
            biased;
            answer = self.store.propose(command) => answer,
            // The proposal may have been sent to a leader before.
            () = self.leader.clone().wait_lost() => {
                let why = "the leader was lost";
                Err(ProposeError::Indeterminate(IndeterminateReason::LeaderUnanswered(why.into())))
            }
        }
    }
}

pub(super) fn allows_stale(metadata: &MetadataMap) -> Result<bool, Status> {
    match metadata.get(STALE_METADATA).map(|value| value.as_bytes()) {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err(status_of(Violation::new(STALE_METADATA, "is neither true nor false; leave it out"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_read_requires_metadata() {
        let output = |value: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert(STALE_METADATA, value.parse().unwrap());
            allows_stale(&metadata)
        };
        assert!(!allows_stale(&MetadataMap::new()).unwrap());
        assert!(output("true").unwrap() && !output("false").unwrap());
        assert_eq!(output("1").unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
