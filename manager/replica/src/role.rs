//! The raft role of a manager, and whether it has contact with a leader.

use std::sync::Arc;
use std::time::Duration;

use warren_consensus::{ConfState, Message, MessageKind};
use warren_types::MemberId;

use crate::{ProposeError, TransferError, WriteStall};

/// Time without contact to a leader after which a manager redirects workers and fails its callers: another manager
/// may have contact.
pub const LEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// The raft role of a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaRole {
    /// Whether this manager leads in `term`.
    pub is_leader: bool,
    /// The leader of `term` if known; this manager's own id if it leads.
    pub leader_id: Option<MemberId>,
    /// Newest term seen.
    pub term: u64,
    /// Leads and has applied an entry of its own term; planning requires it.
    pub can_plan: bool,
}

/// How a linearizable read begins.
#[derive(Debug)]
pub enum ReadRoute {
    /// The published state is the newest one.
    Now,
    /// A read index round must find the index to wait for.
    Round,
    /// Raft makes no progress here.
    Fail(ProposeError),
}

impl ReplicaRole {
    /// The role after raft changed it.
    pub fn changed(self, term: u64, is_leader: bool, leader_id: Option<MemberId>) -> Self {
        let can_plan = is_leader && self.can_plan && self.term == term;
        Self { is_leader, leader_id, term, can_plan }
    }

    /// Records that an entry of `term` was applied. Returns whether this manager may plan since then.
    pub fn record_applied(&mut self, term: u64) -> bool {
        let begins = self.is_leader && term == self.term && !self.can_plan;
        self.can_plan |= begins;
        begins
    }

    /// Whether `own` leads and is the only voter of `members`: then no other member can have committed anything.
    pub fn is_sole_leader(&self, members: &ConfState, own: MemberId) -> bool {
        self.can_plan && members.voters == [own] && members.voters_outgoing.is_empty()
    }

    /// Whether this manager leads, or had contact `since` that long ago with a leader other than `other`.
    pub fn has_leader_besides(&self, other: MemberId, since: Duration) -> bool {
        let is_other = self.leader_id.is_some_and(|leader| leader != other);
        self.is_leader || (is_other && !is_leader_lost(since))
    }

    /// Whether a caller may be told of its removal: a leader is known, with contact `since` that long ago.
    pub fn may_report_removal(&self, since: Duration) -> bool {
        self.leader_id.is_some() && !is_leader_lost(since)
    }

    /// Checks that this manager, `own`, can transfer its leadership to `to`; `None`: to any voter.
    ///
    /// # Errors
    /// [`TransferError`]; nothing changes.
    pub fn check_transfer(
        &self,
        members: &ConfState,
        own: MemberId,
        to: Option<MemberId>,
    ) -> Result<(), TransferError> {
        let mut others = members.voters.iter().filter(|id| **id != own);
        match to {
            _ if !self.is_leader => Err(TransferError::NotLeader),
            Some(to) if !others.any(|id| *id == to) => Err(TransferError::NotVoter(to)),
            None if others.next().is_none() => Err(TransferError::NoOtherVoter),
            _ => Ok(()),
        }
    }

    /// How a linearizable read of `own` begins, while its log write may be stalled.
    pub fn read_route(
        &self,
        members: &ConfState,
        own: MemberId,
        stall: Option<&Arc<WriteStall>>,
    ) -> ReadRoute {
        match stall {
            _ if self.is_sole_leader(members, own) => ReadRoute::Now,
            Some(stall) => ReadRoute::Fail(ProposeError::Stale(stall.clone())),
            None => ReadRoute::Round,
        }
    }

    /// Whether the message proves that there is a leader now.
    pub fn is_led_by(&self, message: &Message) -> bool {
        match message.kind {
            MessageKind::Append | MessageKind::Heartbeat => message.term >= self.term,
            MessageKind::Snapshot => true,
            _ => false,
        }
    }
}

/// Whether the leader counts as lost, `since` that long without contact.
pub fn is_leader_lost(since: Duration) -> bool {
    since > LEADER_TIMEOUT
}
