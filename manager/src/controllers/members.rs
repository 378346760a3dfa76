//! Changes the raft membership stepwise to the desired one. [`plan_members`] decides the next step.

use warren_api::controller_status::MembershipWait;
use warren_consensus::MembershipAction;
use warren_control::RunOutcome;
use warren_core::Command;
use warren_replica::{plan_members, recheck_members_after};
use warren_store::{ChangeError, PublishedState, Store, TransferError};
use warren_types::MemberId;

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
        let PublishedState { state, members: group, role, .. } = published;
        let plan = plan_members(state, group, self.own_id, &self.store.peers());
        let why = if let MembershipAction::Wait(why) = &plan.action { Some(*why) } else { None };
        self.wait.replace(why);
        let stepped = match plan.action {
            MembershipAction::Settled | MembershipAction::Wait(_) => false,
            MembershipAction::Change(change) => {
                tracing::info!(?change, "changing the raft membership");
                self.propose_change(change).await
            }
            MembershipAction::TransferLeadership { to } => self.transfer_leadership(to).await,
        };
        for member in plan.departed {
            let command = Command::DeleteMember { term: role.term, member };
            match self.store.propose_locally(command).await {
                Ok(_) => tracing::info!(member, "manager removed from the cluster"),
                // Retried at the next check.
                Err(error) => {
                    tracing::debug!(member, %error, "deleting the record of a removed manager failed; retrying")
                }
            }
        }
        RunOutcome::RequeueAfter(recheck_members_after(stepped))
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
