//! Changes the raft membership stepwise to the desired one. [`next_action`] decides the next step.

use std::time::Duration;

use warren_consensus::{MembershipAction, next_action};
use warren_control::RunOutcome;
use warren_core::Command;
use warren_types::MemberId;

use crate::controller_status::MembershipWait;
use crate::raft::membership::{departed_members, desired_members};
use crate::store::{ChangeError, PublishedState, Store, TransferError};

/// Check interval: replication progress causes no wake-up.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after a step before its effect is checked.
const NEXT_STEP_DELAY: Duration = Duration::from_millis(50);

/// Changes the raft membership while this manager leads.
pub struct MembershipReconciler {
    store: Store,
    /// The member id of this manager.
    own_id: MemberId,
    wait: MembershipWait,
}

impl MembershipReconciler {
    /// Changes the membership in `store` as the member `own_id`, and reports in `wait` what it waits for.
    pub fn new(store: Store, own_id: MemberId, wait: MembershipWait) -> Self {
        Self { store, own_id, wait }
    }

    /// This manager does not lead, so it waits for nothing.
    pub fn clear_wait(&self) {
        self.wait.replace(None);
    }

    /// Executes the next step, if there is one. `published` is the leader's state.
    pub async fn reconcile(&self, published: &PublishedState) -> RunOutcome {
        let PublishedState { state, members: group, index, role, .. } = published;
        let next = next_action(&desired_members(state), group, self.own_id, &self.store.peers(), *index);
        let why = if let MembershipAction::Wait(why) = &next { Some(*why) } else { None };
        self.wait.replace(why);
        let stepped = match next {
            MembershipAction::Settled | MembershipAction::Wait(_) => false,
            MembershipAction::Change(change) => {
                tracing::info!(?change, "changing the raft membership");
                self.propose_change(change).await
            }
            MembershipAction::TransferLeadership { to } => self.transfer_leadership(to).await,
        };
        for member in departed_members(state, group) {
            let command = Command::DeleteMember { term: role.term, member };
            match self.store.propose_locally(command).await {
                Ok(_) => tracing::info!(member, "manager removed from the cluster"),
                // Retried at the next check.
                Err(error) => {
                    tracing::debug!(member, %error, "deleting the record of a removed manager failed; retrying")
                }
            }
        }
        RunOutcome::RequeueAfter(if stepped { NEXT_STEP_DELAY } else { CHECK_INTERVAL })
    }

    async fn propose_change(&self, change: warren_consensus::MemberChange) -> bool {
        match self.store.change_members(change).await {
            Ok(()) => true,
            // Retried when it is possible.
            Err(error @ (ChangeError::ChangeInProgress | ChangeError::NotLeader | ChangeError::Stopping)) => {
                tracing::debug!(%error, "membership change postponed");
                false
            }
            Err(error) => {
                tracing::warn!(%error, "membership change failed");
                false
            }
        }
    }

    async fn transfer_leadership(&self, to: MemberId) -> bool {
        tracing::info!(to, "transferring leadership before this manager is removed or demoted");
        match self.store.transfer_leadership(Some(to)).await {
            Ok(()) => self.wait.replace(None),
            Err(TransferError::NotLeader | TransferError::Stopping) => {}
            Err(error) => tracing::warn!(to, %error, "leadership transfer failed"),
        }
        false
    }
}
