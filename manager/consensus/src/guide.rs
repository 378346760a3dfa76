//! Which change of members comes next: from what people want, what the group is and who answers.
//!
//! One step at a time: [`next_change`] is asked again when its answer was carried out, when a wish changes, and now and
//! then, because it waits for members to catch up or to answer. It never proposes what [`MemberChange`] cannot be in
//! this group, takes nobody's vote whose absence would stop the group, and comes to rest.
//!
//! The number of voters is odd wherever it rests: a fourth voter would have to be asked and could not be missed. So a
//! second manager learns until a third does too, then both are promoted in one change.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ConfState, MemberChange, MemberStep, Peer};

/// A learner that lacks no more entries than this is near the end of the log: it has them within moments.
const NEAR: u64 = 500;

/// What people want of one member. Who is in the group and in no wish, leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wish {
    /// The member.
    pub id: u64,
    /// It votes, unless the number of voters would be even.
    pub votes: bool,
    /// It takes the place of this one, with a lower id, whose data is lost.
    pub replaces: Option<u64>,
    /// It leaves.
    pub removing: bool,
}

/// What the leader does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing: everybody is what is wanted.
    Settled,
    /// Propose this; then ask again.
    Change(MemberChange),
    /// Hand over to this voter, which goes on: the leader itself is to leave or to lose its vote.
    Transfer {
        /// Who is to lead.
        to: u64,
    },
    /// Nothing yet.
    Wait(Why),
}

/// What the next change waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Why {
    /// A change is not over.
    #[error("the change of members before this one is not over")]
    UnderWay,
    /// It will have a vote when it has caught up.
    #[error("manager {id} is {missing} entries behind and catches up")]
    Behind {
        /// The member.
        id: u64,
        /// How many entries it lacks.
        missing: u64,
    },
    /// It does not answer, so it gets no vote.
    #[error("manager {id} does not answer; it gets its vote when it does")]
    Unreachable {
        /// The member.
        id: u64,
    },
    /// A member at the same address is to be replaced, but is there.
    #[error("manager {new} replaces manager {old}, which still answers; stop that one or remove it")]
    StillThere {
        /// The member that answers.
        old: u64,
        /// The one that is to take its place.
        new: u64,
    },
    /// One more voter would make their number even.
    #[error("the number of voters stays odd: manager {id} gets a vote together with one more")]
    Odd {
        /// The member.
        id: u64,
    },
    /// Not enough voters would answer to go on.
    #[error("of the {voters} voters only {active} answer, and {} are needed", .voters / 2 + 1)]
    WouldLoseQuorum {
        /// How many voters there are or would be.
        voters: usize,
        /// How many of them answer.
        active: usize,
    },
    /// The leader is to go, and nobody can lead in its place.
    #[error("manager {id} leads, and no other manager can vote in its place")]
    NoSuccessor {
        /// The leader.
        id: u64,
    },
}

impl Why {
    /// Whom it is about, if it is about one member.
    pub fn member(&self) -> Option<u64> {
        match self {
            Self::Behind { id, .. }
            | Self::Unreachable { id }
            | Self::Odd { id }
            | Self::NoSuccessor { id }
            | Self::StillThere { new: id, .. } => Some(*id),
            Self::UnderWay | Self::WouldLoseQuorum { .. } => None,
        }
    }
}

/// What a leader does next about the members. `members` are those of the last change that was handed out, `peers` what
/// the leader knows of the others, and `applied` the last entry that it applied. Without any wish nothing is done: the
/// leader has not even said what it is itself.
pub fn next_change(wishes: &[Wish], members: &ConfState, leader: u64, peers: &[Peer], applied: u64) -> Next {
    let mut group = Group::new(wishes, members, leader, peers, applied);
    if wishes.is_empty() {
        return Next::Settled;
    }
    if !members.voters_outgoing.is_empty() || !group.votes(leader) {
        return Next::Wait(Why::UnderWay);
    }
    if let Some(change) = group.new_learner().or_else(|| group.leaving_learners()) {
        return group.unless_too_few_answer(&members.voters.iter().copied().collect(), change);
    }
    if !group.is_wanted(leader) {
        if let Some(to) = group.successor() {
            return Next::Transfer { to };
        }
        group.leader_stays = true;
    }
    let wanted = match group.wanted_voters() {
        Ok(wanted) => wanted,
        Err(why) => return Next::Wait(why),
    };
    let steps = group.steps_to(&wanted);
    if !steps.is_empty() {
        return group.unless_too_few_answer(&wanted, MemberChange::of(steps));
    }
    if group.leader_stays {
        return Next::Wait(Why::NoSuccessor { id: leader });
    }
    group.what_is_missing(&wanted).map_or(Next::Settled, Next::Wait)
}

/// Whether the group could not go on when this member leaves or loses its vote: too few of the others would answer.
/// Asked before such a wish is accepted; answers with what would be.
pub fn loses_quorum(
    wishes: &[Wish],
    members: &ConfState,
    leader: u64,
    peers: &[Peer],
    applied: u64,
    id: u64,
) -> Option<Why> {
    if !members.voters.contains(&id) {
        return None;
    }
    let others: Vec<Wish> = wishes.iter().copied().filter(|wish| wish.id != id).collect();
    let group = Group::new(&others, members, leader, peers, applied);
    let left = group.candidates(false);
    if left.is_empty() {
        return Some(Why::NoSuccessor { id });
    }
    group.too_few_answer(&left)
}

/// A group, and what is wanted of it.
struct Group<'a> {
    wishes: BTreeMap<u64, &'a Wish>,
    members: &'a ConfState,
    leader: u64,
    peers: &'a [Peer],
    applied: u64,
    /// The leader is to go, but keeps its vote until another one can lead.
    leader_stays: bool,
}

impl<'a> Group<'a> {
    fn new(wishes: &'a [Wish], members: &'a ConfState, leader: u64, peers: &'a [Peer], applied: u64) -> Self {
        let wishes = wishes.iter().map(|wish| (wish.id, wish)).collect();
        Self { wishes, members, leader, peers, applied, leader_stays: false }
    }

    fn votes(&self, id: u64) -> bool {
        self.members.voters.contains(&id)
    }

    fn learns(&self, id: u64) -> bool {
        self.members.learners.contains(&id)
    }

    fn peer(&self, id: u64) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    fn is_active(&self, id: u64) -> bool {
        id == self.leader || self.peer(id).is_some_and(|peer| peer.active)
    }

    fn is_silent(&self, id: u64) -> bool {
        self.peer(id).is_some_and(|peer| peer.silent)
    }

    /// It has taken entries from this leader, and lacks few. Who has just been added passes for active before it ever
    /// answered.
    fn is_near(&self, id: u64) -> bool {
        let near = |peer: &Peer| peer.matched > 0 && peer.matched + NEAR >= self.applied;
        self.is_active(id) && self.peer(id).is_some_and(near)
    }

    /// What a member that stays is to be; `None` for one that goes.
    fn wish(&self, id: u64) -> Option<&Wish> {
        let stays = |wish: &&&Wish| !wish.removing || (self.leader_stays && id == self.leader);
        self.wishes.get(&id).filter(stays).copied()
    }

    /// Who takes the place of a member that nobody removed, the newest of them.
    fn replacement(&self, old: u64) -> Option<u64> {
        self.wish(old)?;
        let newer = self.wishes.range(old + 1..).rev();
        newer
            .map(|(_, wish)| wish)
            .find(|wish| !wish.removing && wish.replaces == Some(old))
            .map(|wish| wish.id)
    }

    /// Whose place a member takes, as long as that one is in the group.
    fn replaced_by(&self, new: u64) -> Option<u64> {
        let old = self.wish(new)?.replaces?;
        let is_there = self.votes(old) || self.learns(old);
        Some(old).filter(|old| is_there && self.replacement(*old) == Some(new))
    }

    /// What a replacement waits for; nothing once the old one's place can be taken. `or_behind` says that it will have
    /// caught up.
    fn not_ripe(&self, old: u64, new: u64, or_behind: bool) -> Option<Why> {
        let votes = self.wish(new).is_some_and(|wish| wish.votes);
        let is_there = self.votes(new) || self.learns(new);
        if old == self.leader || self.is_active(old) {
            return Some(Why::StillThere { old, new });
        }
        if votes && !self.votes(new) && !(self.is_near(new) || or_behind && self.is_active(new)) {
            return Some(self.not_near(new));
        }
        // A new leader has yet to hear who answers.
        (!is_there || !self.is_silent(old)).then_some(Why::UnderWay)
    }

    fn not_near(&self, id: u64) -> Why {
        match self.peer(id).filter(|peer| peer.active) {
            Some(peer) => Why::Behind { id, missing: self.applied.saturating_sub(peer.matched) },
            None => Why::Unreachable { id },
        }
    }

    /// It is to leave the group now.
    fn goes(&self, id: u64, or_behind: bool) -> bool {
        let replaced = |new| self.not_ripe(id, new, or_behind).is_none();
        self.wish(id).is_none() || self.replacement(id).is_some_and(replaced)
    }

    /// It is to vote, now or later.
    fn is_wanted(&self, id: u64) -> bool {
        let kept = self.leader_stays && id == self.leader;
        kept || (self.wish(id).is_some_and(|wish| wish.votes) && !self.goes(id, false))
    }

    /// A member that is new to the group.
    fn new_learner(&self) -> Option<MemberChange> {
        let is_new = |id: &u64| {
            let is_there = self.votes(*id) || self.learns(*id);
            self.wish(*id).is_some() && !is_there && self.replacement(*id).is_none()
        };
        self.wishes.keys().copied().find(is_new).map(MemberChange::add_learner)
    }

    fn leaving_learners(&self) -> Option<MemberChange> {
        let learners = self.members.learners.iter().copied();
        let steps: Vec<MemberStep> =
            learners.filter(|id| self.goes(*id, false)).map(MemberStep::Remove).collect();
        (!steps.is_empty()).then(|| MemberChange::of(steps))
    }

    /// The voter that is to lead next: of those that stay, the one whose log reaches furthest.
    fn successor(&self) -> Option<u64> {
        let others = self.peers.iter().filter(|peer| peer.active && self.votes(peer.id));
        let stay = others.filter(|peer| peer.id != self.leader && self.is_wanted(peer.id));
        stay.max_by_key(|peer| (peer.matched, u64::MAX - peer.id)).map(|peer| peer.id)
    }

    /// Everybody who can vote: voters that stay, and learners that are near and do not wait for the place of another.
    /// `or_behind` says that those who answer will have caught up.
    fn candidates(&self, or_behind: bool) -> BTreeSet<u64> {
        let can_vote = |id: &u64| {
            if self.leader_stays && *id == self.leader {
                return true;
            }
            let wanted = self.wish(*id).is_some_and(|wish| wish.votes) && !self.goes(*id, or_behind);
            let near = self.is_near(*id) || or_behind && self.is_active(*id);
            let ripe = |old| self.not_ripe(old, *id, or_behind).is_none();
            wanted && (self.votes(*id) || self.learns(*id) && near && self.replaced_by(*id).is_none_or(ripe))
        };
        self.members.voters.iter().chain(&self.members.learners).copied().filter(can_vote).collect()
    }

    /// The voters to come to now.
    ///
    /// # Errors
    /// What is waited for.
    fn wanted_voters(&self) -> Result<BTreeSet<u64>, Why> {
        let now = self.odd(self.candidates(false));
        let soon = self.odd(self.candidates(true));
        // Fewer voters only as long as no other is about to come.
        let behind = soon.iter().copied().find(|id| !self.votes(*id) && !self.is_near(*id));
        if let Some(id) = behind.filter(|_| now.len() < self.members.voters.len() && now.len() < soon.len()) {
            return Err(self.not_near(id));
        }
        if now.is_empty() {
            return Err(Why::NoSuccessor { id: self.leader });
        }
        Ok(now)
    }

    /// As many of them as make an odd number. The order in which they are kept: the leader, those who vote or take a
    /// voter's place and answer, those who vote and do not, the others; each by their ids.
    fn odd(&self, candidates: BTreeSet<u64>) -> BTreeSet<u64> {
        let takes_a_place = |id: u64| self.replaced_by(id).is_some_and(|old| self.votes(old));
        let mut order: Vec<u64> = candidates.into_iter().collect();
        if order.is_empty() {
            return BTreeSet::new();
        }
        order.sort_by_key(|id| {
            let holds_a_place = self.votes(*id) || takes_a_place(*id);
            (*id != self.leader, !holds_a_place, self.is_silent(*id), *id)
        });
        // Two of which one leads and is to go: the other one must come first.
        let hands_over = self.leader_stays && order.len() == 2;
        if order.len().is_multiple_of(2) && !hands_over {
            let last = order.iter().rposition(|id| !takes_a_place(*id) && *id != self.leader);
            order.remove(last.unwrap_or(order.len() - 1));
        }
        order.into_iter().collect()
    }

    /// What makes these the voters.
    fn steps_to(&self, wanted: &BTreeSet<u64>) -> Vec<MemberStep> {
        let lost = self.members.voters.iter().filter(|id| !wanted.contains(id));
        let lost = lost.map(|id| match self.goes(*id, false) {
            true => MemberStep::Remove(*id),
            false => MemberStep::Learner(*id),
        });
        let won = wanted.iter().filter(|id| !self.votes(**id)).copied().map(MemberStep::Voter);
        lost.chain(won).collect()
    }

    /// The change, if those who vote before it and those who vote after it can decide.
    fn unless_too_few_answer(&self, after: &BTreeSet<u64>, change: MemberChange) -> Next {
        let before = self.members.voters.iter().copied().collect();
        let few = self.too_few_answer(&before).or_else(|| self.too_few_answer(after));
        few.map_or(Next::Change(change), Next::Wait)
    }

    fn too_few_answer(&self, voters: &BTreeSet<u64>) -> Option<Why> {
        let active = voters.iter().filter(|id| self.is_active(**id)).count();
        let voters = voters.len();
        (active * 2 <= voters).then_some(Why::WouldLoseQuorum { voters, active })
    }

    /// Why somebody is not what is wanted, although there is nothing to do.
    fn what_is_missing(&self, wanted: &BTreeSet<u64>) -> Option<Why> {
        // Whoever is out of the group by now was replaced.
        let is_there = |id: &u64| self.votes(*id) || self.learns(*id);
        let mut stay = self.wishes.keys().copied().filter(|id| self.wish(*id).is_some() && is_there(id));
        let replacing = stay.clone().find_map(|new| self.not_ripe(self.replaced_by(new)?, new, false));
        let without = |id: &u64| self.is_wanted(*id) && !wanted.contains(id);
        let late = |id: &u64| without(id) && !self.votes(*id) && !self.is_near(*id);
        let late = || stay.clone().find(late).map(|id| self.not_near(id));
        replacing.or_else(late).or_else(|| stay.find(without).map(|id| Why::Odd { id }))
    }
}

#[cfg(test)]
mod tests;
