//! What requests are answered from: everything that was acknowledged before, by whichever manager. And how writes are
//! made: a manager that hears of no leader says so soon, since another one may.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use warren_core::{Answer, Command};
use warren_proto::Problem;
use warren_proto::status::BEHIND;
use warren_types::Violation;

use super::Api;
use super::problem::{status_of, unexpected};
use crate::session::leader::{LEADERLESS, is_lost};
use crate::store::{Doubt, ProposeError, Published};

/// How long a watcher waits for a manager that lags before it is sent to another one.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Metadata of a caller that takes what this manager has, be it old: `true`. It is answered without a leader as well.
pub const STALE: &str = "warren-stale";

impl Api {
    /// What a question is answered from.
    ///
    /// # Errors
    /// `Unavailable`, reason `NO_LEADER`: nobody can say what is newest; `DISK_FULL` or `DISK_FAILS`: this manager
    /// cannot ([`super::proxy`] asks another one). Ask with [`STALE`].
    pub(super) async fn read<T>(&self, request: &Request<T>) -> Result<Arc<Published>, Status> {
        if takes_stale(request.metadata())? { Ok(self.store.read()) } else { self.newest().await }
    }

    /// What a write is made from.
    ///
    /// # Errors
    /// As [`Api::read`].
    pub(super) async fn newest(&self) -> Result<Arc<Published>, Status> {
        tokio::select! {
            biased;
            newest = self.store.read_now() => newest.map_err(status_of),
            () = self.leader.clone().lost() => Err(status_of(ProposeError::NoLeader(LEADERLESS))),
        }
    }

    /// Makes a write, and answers the object as the write's own entry left it, or as it was before, if the entry
    /// deleted it. Whoever builds an answer from the newest state instead tells callers of others' writes.
    ///
    /// # Errors
    /// As [`Api::propose`].
    pub(super) async fn write<T>(&self, command: Command) -> Result<Arc<T>, Status>
    where
        Arc<T>: TryFrom<Answer, Error = Answer>,
    {
        let answer = self.propose(command).await.map_err(status_of)?;
        answer.try_into().map_err(|other| unexpected(&other))
    }

    /// As [`Api::write`], for what deletes `found`: that is answered if there was nothing left to delete.
    ///
    /// # Errors
    /// As [`Api::propose`].
    pub(super) async fn delete<T>(&self, command: Command, found: &Arc<T>) -> Result<Arc<T>, Status>
    where
        Arc<T>: TryFrom<Answer, Error = Answer>,
    {
        match self.propose(command).await.map_err(status_of)? {
            Answer::Done => Ok(found.clone()),
            answer => answer.try_into().map_err(|other| unexpected(&other)),
        }
    }

    /// What a watch is resumed from whose watcher has seen the entry `index`: a state with that entry, or, where none
    /// that is committed has that index, the newest one.
    ///
    /// # Errors
    /// As [`Api::read`], and `Unavailable`, reason `BEHIND`, where this manager does not catch up soon.
    pub(super) async fn caught_up(&self, index: u64) -> Result<Arc<Published>, Status> {
        let reached = || Some(self.store.read()).filter(|published| published.index >= index);
        match reached() {
            Some(published) => Ok(published),
            None => match timeout(CATCH_UP, self.newest()).await {
                Ok(newest) => newest,
                Err(_) => reached().ok_or_else(|| {
                    let message = format!(
                        "entry {index}, which the watcher has seen, was not applied here within {CATCH_UP:?} (entry \
                         {} was); ask another manager",
                        self.store.read().index
                    );
                    Problem::new(Code::Unavailable, BEHIND, message).into()
                }),
            },
        }
    }

    /// As [`Store::propose`], for somebody who can ask another manager.
    ///
    /// # Errors
    /// As [`Store::propose`], and as soon as no leader is heard of any more.
    ///
    /// [`Store::propose`]: crate::store::Store::propose
    pub(super) async fn propose(&self, command: Command) -> Result<Answer, ProposeError> {
        // Where the log cannot be written, no leader is heard of either, and that is not why it is refused.
        if is_lost(&self.store) && self.store.read().held.is_none() {
            return Err(ProposeError::NoLeader(LEADERLESS));
        }
        tokio::select! {
            biased;
            answer = self.store.propose(command) => answer,
            // It may have been given to a leader before.
            () = self.leader.clone().lost() => {
                let why = "no leader is heard of any more";
                Err(ProposeError::Unconfirmed(Doubt::Unanswered(why.into())))
            }
        }
    }
}

pub(super) fn takes_stale(metadata: &MetadataMap) -> Result<bool, Status> {
    match metadata.get(STALE).map(|value| value.as_bytes()) {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err(status_of(Violation::new(STALE, "is neither true nor false; leave it out"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_says_so_takes_what_may_be_old() {
        let said = |value: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert(STALE, value.parse().unwrap());
            takes_stale(&metadata)
        };
        assert!(!takes_stale(&MetadataMap::new()).unwrap());
        assert!(said("true").unwrap() && !said("false").unwrap());
        assert_eq!(said("1").unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
