//! Which membership change comes next, given the desired members, the current members and their activity.
//!
//! One step at a time: [`next_action`] is called again after each change, when the desired state changes, and
//! periodically, because it waits for members to catch up or to respond. It never proposes an invalid
//! [`MemberChange`], never removes a vote if that would stop the group, and it settles.
//!
//! The number of voters is odd when it settles: a fourth voter would raise the quorum and tolerate no further
//! failure. So a second manager stays a learner until a third one is ready too, then both are promoted in one
//! change.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ConfState, MemberChange, MemberStep, PeerProgress};

/// A learner that lacks at most this many entries is caught up: it has them within moments.
const CAUGHT_UP_WITHIN: u64 = 500;

/// The desired state of one member. A member without one leaves the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DesiredMember {
    /// The member.
    pub id: u64,
    /// It votes, unless the number of voters would be even.
    pub is_voter: bool,
    /// It replaces this member, with a lower id, whose data is lost.
    pub replaces: Option<u64>,
    /// It leaves.
    pub removing: bool,
}

/// What the leader does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipAction {
    /// Nothing: all members are in the desired state.
    Settled,
    /// Propose this; then call again.
    Change(MemberChange),
    /// Transfer the leadership to this voter, which stays: the leader itself is to leave or to lose its vote.
    TransferLeadership {
        /// The next leader.
        to: u64,
    },
    /// Nothing yet.
    Wait(WaitReason),
}

/// What the next change waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum WaitReason {
    /// A change is in progress.
    #[error("an earlier membership change is in progress")]
    ChangeInProgress,
    /// It becomes a voter when it has caught up.
    #[error("manager {id} is catching up: {missing_entries} entries behind")]
    CatchingUp {
        /// The member.
        id: u64,
        /// How many entries it lacks.
        missing_entries: u64,
    },
    /// It is unreachable, so it is not promoted.
    #[error("manager {id} is unreachable; it is promoted once it is reachable")]
    Unreachable {
        /// The member.
        id: u64,
    },
    /// A member at the same address is to be replaced, but is still active.
    #[error("manager {new} replaces manager {old}, which is still active; stop or remove manager {old}")]
    ReplacedMemberActive {
        /// The active member.
        old: u64,
        /// Its replacement.
        new: u64,
    },
    /// One more voter would make their number even.
    #[error("manager {id} waits for a second learner: the number of voters must be odd")]
    EvenVoterCount {
        /// The member.
        id: u64,
    },
    /// Too few voters would be reachable.
    #[error("only {active} of {voters} voters are reachable; quorum is {}", .voters / 2 + 1)]
    WouldLoseQuorum {
        /// How many voters there are or would be.
        voters: usize,
        /// How many of them are reachable.
        active: usize,
    },
    /// The leader is to leave, and no member can replace it.
    #[error("manager {id} is the leader, and no other manager can become a voter to replace it")]
    NoSuccessor {
        /// The leader.
        id: u64,
    },
}

impl WaitReason {
    /// The member concerned, if it is one.
    pub fn member_id(&self) -> Option<u64> {
        match self {
            Self::CatchingUp { id, .. }
            | Self::Unreachable { id }
            | Self::EvenVoterCount { id }
            | Self::NoSuccessor { id }
            | Self::ReplacedMemberActive { new: id, .. } => Some(*id),
            Self::ChangeInProgress | Self::WouldLoseQuorum { .. } => None,
        }
    }
}

/// The leader's next action. `members` are those of the last delivered change, `peers` the leader's view of
/// the others, and `applied` the last entry that it applied. Without any desired member nothing is done: the
/// leader has not even registered itself.
pub fn next_action(
    desired: &[DesiredMember],
    members: &ConfState,
    leader: u64,
    peers: &[PeerProgress],
    applied: u64,
) -> MembershipAction {
    let mut group = Group::new(desired, members, leader, peers, applied);
    if desired.is_empty() {
        return MembershipAction::Settled;
    }
    if !members.voters_outgoing.is_empty() || !group.is_voter(leader) {
        return MembershipAction::Wait(WaitReason::ChangeInProgress);
    }
    if let Some(change) = group.add_learner().or_else(|| group.remove_learners()) {
        return group.change_if_quorum(&members.voters.iter().copied().collect(), change);
    }
    if !group.is_desired_voter(leader) {
        if let Some(to) = group.successor() {
            return MembershipAction::TransferLeadership { to };
        }
        group.is_leader_kept = true;
    }
    let expected = match group.target_voters() {
        Ok(expected) => expected,
        Err(why) => return MembershipAction::Wait(why),
    };
    let steps = group.steps_to(&expected);
    if !steps.is_empty() {
        return group.change_if_quorum(&expected, MemberChange::new(steps));
    }
    if group.is_leader_kept {
        return MembershipAction::Wait(WaitReason::NoSuccessor { id: leader });
    }
    group.wait_reason(&expected).map_or(MembershipAction::Settled, MembershipAction::Wait)
}

/// Whether the group would lose its quorum when this member leaves or loses its vote. Checked before that is
/// accepted; the error has the resulting numbers.
pub fn check_quorum_without(
    desired: &[DesiredMember],
    members: &ConfState,
    leader: u64,
    peers: &[PeerProgress],
    applied: u64,
    id: u64,
) -> Option<WaitReason> {
    if !members.voters.contains(&id) {
        return None;
    }
    let others: Vec<DesiredMember> = desired.iter().copied().filter(|request| request.id != id).collect();
    let group = Group::new(&others, members, leader, peers, applied);
    let left = group.voter_candidates(false);
    if left.is_empty() {
        return Some(WaitReason::NoSuccessor { id });
    }
    group.quorum_blocker(&left)
}

/// A group and its desired members.
struct Group<'a> {
    desired: BTreeMap<u64, &'a DesiredMember>,
    members: &'a ConfState,
    leader: u64,
    peers: &'a [PeerProgress],
    applied: u64,
    /// The leader is to leave, but keeps its vote until another one can lead.
    is_leader_kept: bool,
}

impl<'a> Group<'a> {
    fn new(
        desired: &'a [DesiredMember],
        members: &'a ConfState,
        leader: u64,
        peers: &'a [PeerProgress],
        applied: u64,
    ) -> Self {
        let desired = desired.iter().map(|request| (request.id, request)).collect();
        Self { desired, members, leader, peers, applied, is_leader_kept: false }
    }

    fn is_voter(&self, id: u64) -> bool {
        self.members.voters.contains(&id)
    }

    fn is_learner(&self, id: u64) -> bool {
        self.members.learners.contains(&id)
    }

    fn peer(&self, id: u64) -> Option<&PeerProgress> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    fn is_active(&self, id: u64) -> bool {
        id == self.leader || self.peer(id).is_some_and(|peer| peer.active)
    }

    fn is_silent(&self, id: u64) -> bool {
        self.peer(id).is_some_and(|peer| peer.silent)
    }

    /// It has accepted entries from this leader, and lacks few. A member that was just added counts as active
    /// before its first response.
    fn is_caught_up(&self, id: u64) -> bool {
        let near = |peer: &PeerProgress| peer.matched > 0 && peer.matched + CAUGHT_UP_WITHIN >= self.applied;
        self.is_active(id) && self.peer(id).is_some_and(near)
    }

    /// The desired state of a member that stays; `None` for one that leaves.
    fn desired_member(&self, id: u64) -> Option<&DesiredMember> {
        let stays =
            |request: &&&DesiredMember| !request.removing || (self.is_leader_kept && id == self.leader);
        self.desired.get(&id).filter(stays).copied()
    }

    /// The newest replacement of a member that the user did not remove.
    fn replacement(&self, old: u64) -> Option<u64> {
        self.desired_member(old)?;
        let newer = self.desired.range(old + 1..).rev();
        newer
            .map(|(_, request)| request)
            .find(|options| !options.removing && options.replaces == Some(old))
            .map(|member| member.id)
    }

    /// The member that this one replaces, as long as that one is in the group.
    fn replaces(&self, new: u64) -> Option<u64> {
        let old = self.desired_member(new)?.replaces?;
        let is_there = self.is_voter(old) || self.is_learner(old);
        Some(old).filter(|old| is_there && self.replacement(*old) == Some(new))
    }

    /// What a replacement waits for; `None` once the old member can be replaced. `or_behind` assumes that it
    /// has caught up.
    fn replacement_blocker(&self, old: u64, new: u64, or_behind: bool) -> Option<WaitReason> {
        let votes = self.desired_member(new).is_some_and(|request| request.is_voter);
        let is_there = self.is_voter(new) || self.is_learner(new);
        if old == self.leader || self.is_active(old) {
            return Some(WaitReason::ReplacedMemberActive { old, new });
        }
        if votes && !self.is_voter(new) && !(self.is_caught_up(new) || or_behind && self.is_active(new)) {
            return Some(self.catch_up_reason(new));
        }
        // A new leader does not know yet who responds.
        (!is_there || !self.is_silent(old)).then_some(WaitReason::ChangeInProgress)
    }

    fn catch_up_reason(&self, id: u64) -> WaitReason {
        match self.peer(id).filter(|peer| peer.active) {
            Some(peer) => {
                WaitReason::CatchingUp { id, missing_entries: self.applied.saturating_sub(peer.matched) }
            }
            None => WaitReason::Unreachable { id },
        }
    }

    /// It is to leave the group now.
    fn is_leaving(&self, id: u64, or_behind: bool) -> bool {
        let replaced = |new| self.replacement_blocker(id, new, or_behind).is_none();
        self.desired_member(id).is_none() || self.replacement(id).is_some_and(replaced)
    }

    /// It is to vote, now or later.
    fn is_desired_voter(&self, id: u64) -> bool {
        let kept = self.is_leader_kept && id == self.leader;
        kept || (self.desired_member(id).is_some_and(|request| request.is_voter)
            && !self.is_leaving(id, false))
    }

    /// Adds a member that is new to the group.
    fn add_learner(&self) -> Option<MemberChange> {
        let is_new = |id: &u64| {
            let is_there = self.is_voter(*id) || self.is_learner(*id);
            self.desired_member(*id).is_some() && !is_there && self.replacement(*id).is_none()
        };
        self.desired.keys().copied().find(is_new).map(MemberChange::add_learner)
    }

    fn remove_learners(&self) -> Option<MemberChange> {
        let learners = self.members.learners.iter().copied();
        let steps: Vec<MemberStep> =
            learners.filter(|id| self.is_leaving(*id, false)).map(MemberStep::Remove).collect();
        (!steps.is_empty()).then(|| MemberChange::new(steps))
    }

    /// The next leader: of the voters that stay, the one with the highest log index.
    fn successor(&self) -> Option<u64> {
        let others = self.peers.iter().filter(|peer| peer.active && self.is_voter(peer.id));
        let stay = others.filter(|peer| peer.id != self.leader && self.is_desired_voter(peer.id));
        stay.max_by_key(|peer| (peer.matched, u64::MAX - peer.id)).map(|peer| peer.id)
    }

    /// All members that can vote: voters that stay, and learners that are caught up and do not wait to
    /// replace another member. `or_behind` assumes that reachable learners have caught up.
    fn voter_candidates(&self, or_behind: bool) -> BTreeSet<u64> {
        let can_vote = |id: &u64| {
            if self.is_leader_kept && *id == self.leader {
                return true;
            }
            let expected = self.desired_member(*id).is_some_and(|request| request.is_voter)
                && !self.is_leaving(*id, or_behind);
            let near = self.is_caught_up(*id) || or_behind && self.is_active(*id);
            let ripe = |old| self.replacement_blocker(old, *id, or_behind).is_none();
            expected
                && (self.is_voter(*id) || self.is_learner(*id) && near && self.replaces(*id).is_none_or(ripe))
        };
        self.members.voters.iter().chain(&self.members.learners).copied().filter(can_vote).collect()
    }

    /// The voters to reach now.
    ///
    /// # Errors
    /// What is waited for.
    fn target_voters(&self) -> Result<BTreeSet<u64>, WaitReason> {
        let now = self.keep_odd(self.voter_candidates(false));
        let soon = self.keep_odd(self.voter_candidates(true));
        // Fewer voters only as long as no other is about to become one.
        let behind = soon.iter().copied().find(|id| !self.is_voter(*id) && !self.is_caught_up(*id));
        if let Some(id) = behind.filter(|_| now.len() < self.members.voters.len() && now.len() < soon.len()) {
            return Err(self.catch_up_reason(id));
        }
        if now.is_empty() {
            return Err(WaitReason::NoSuccessor { id: self.leader });
        }
        Ok(now)
    }

    /// An odd number of them. The order in which they are kept: the leader, those who vote or replace a voter
    /// and respond, those who vote and do not respond, the others; each by id.
    fn keep_odd(&self, candidates: BTreeSet<u64>) -> BTreeSet<u64> {
        let takes_a_place = |id: u64| self.replaces(id).is_some_and(|old| self.is_voter(old));
        let mut order: Vec<u64> = candidates.into_iter().collect();
        if order.is_empty() {
            return BTreeSet::new();
        }
        order.sort_by_key(|id| {
            let holds_a_place = self.is_voter(*id) || takes_a_place(*id);
            (*id != self.leader, !holds_a_place, self.is_silent(*id), *id)
        });
        // Two voters, of which the leader is to leave: the other one must stay.
        let hands_over = self.is_leader_kept && order.len() == 2;
        if order.len().is_multiple_of(2) && !hands_over {
            let last = order.iter().rposition(|id| !takes_a_place(*id) && *id != self.leader);
            order.remove(last.unwrap_or(order.len() - 1));
        }
        order.into_iter().collect()
    }

    /// The steps to reach these voters.
    fn steps_to(&self, expected: &BTreeSet<u64>) -> Vec<MemberStep> {
        let lost = self.members.voters.iter().filter(|id| !expected.contains(id));
        let lost = lost.map(|id| match self.is_leaving(*id, false) {
            true => MemberStep::Remove(*id),
            false => MemberStep::Learner(*id),
        });
        let won = expected.iter().filter(|id| !self.is_voter(**id)).copied().map(MemberStep::Voter);
        lost.chain(won).collect()
    }

    /// The change, if the voters before it and the voters after it have a reachable quorum.
    fn change_if_quorum(&self, after: &BTreeSet<u64>, change: MemberChange) -> MembershipAction {
        let before = self.members.voters.iter().copied().collect();
        let few = self.quorum_blocker(&before).or_else(|| self.quorum_blocker(after));
        few.map_or(MembershipAction::Change(change), MembershipAction::Wait)
    }

    fn quorum_blocker(&self, voters: &BTreeSet<u64>) -> Option<WaitReason> {
        let active = voters.iter().filter(|id| self.is_active(**id)).count();
        let voters = voters.len();
        (active * 2 <= voters).then_some(WaitReason::WouldLoseQuorum { voters, active })
    }

    /// Why a member is not in its desired state, although there is nothing to do.
    fn wait_reason(&self, expected: &BTreeSet<u64>) -> Option<WaitReason> {
        // A member that is out of the group by now was replaced.
        let is_there = |id: &u64| self.is_voter(*id) || self.is_learner(*id);
        let mut stay =
            self.desired.keys().copied().filter(|id| self.desired_member(*id).is_some() && is_there(id));
        let replacing =
            stay.clone().find_map(|new| self.replacement_blocker(self.replaces(new)?, new, false));
        let without = |id: &u64| self.is_desired_voter(*id) && !expected.contains(id);
        let late = |id: &u64| without(id) && !self.is_voter(*id) && !self.is_caught_up(*id);
        let late = || stay.clone().find(late).map(|id| self.catch_up_reason(id));
        replacing.or_else(late).or_else(|| stay.find(without).map(|id| WaitReason::EvenVoterCount { id }))
    }
}

#[cfg(test)]
mod tests;
