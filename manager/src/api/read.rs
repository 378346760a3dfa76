//! What requests are answered from: everything that was acknowledged before, by whichever manager. And how writes are
//! made: a manager that hears of no leader says so soon, since another one may.

use std::sync::Arc;

use tonic::metadata::MetadataMap;
use tonic::{Request, Status};
use warren_core::{Answer, Command};
use warren_types::Violation;

use super::Api;
use super::problem::status_of;
use crate::session::leader::{LEADERLESS, is_lost};
use crate::store::{Doubt, ProposeError, Published};

/// Metadata of a caller that takes what this manager has, be it old: `true`. It is answered without a leader as well.
pub const STALE: &str = "warren-stale";

impl Api {
    /// What a question is answered from.
    ///
    /// # Errors
    /// `Unavailable`, reason `NO_LEADER`: nobody can say what is newest. Ask with [`STALE`].
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

    /// As [`Store::propose`], for somebody who can ask another manager.
    ///
    /// # Errors
    /// As [`Store::propose`], and as soon as no leader is heard of any more.
    ///
    /// [`Store::propose`]: crate::store::Store::propose
    pub(super) async fn propose(&self, command: Command) -> Result<Answer, ProposeError> {
        if is_lost(&self.store) {
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

fn takes_stale(metadata: &MetadataMap) -> Result<bool, Status> {
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
