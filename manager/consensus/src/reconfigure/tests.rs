//! Tables of groups: every group of three, and random larger ones.

use super::*;
use crate::InvalidMemberChange;

const APPLIED: u64 = 10_000;

fn voter(id: u64) -> DesiredMember {
    DesiredMember { id, is_voter: true, replaces: None, removing: false }
}

fn learner(id: u64) -> DesiredMember {
    DesiredMember { is_voter: false, ..voter(id) }
}

fn removing(id: u64) -> DesiredMember {
    DesiredMember { removing: true, ..voter(id) }
}

fn replacing(id: u64, old: u64) -> DesiredMember {
    DesiredMember { replaces: Some(old), ..voter(id) }
}

fn near(id: u64) -> PeerProgress {
    PeerProgress { id, matched: APPLIED, active: true, silent: false }
}

fn behind(id: u64) -> PeerProgress {
    PeerProgress { matched: APPLIED - CAUGHT_UP_WITHIN - 1, ..near(id) }
}

fn silent(id: u64) -> PeerProgress {
    PeerProgress { active: false, silent: true, ..near(id) }
}

/// A member without a response, for a new leader.
fn unknown(id: u64) -> PeerProgress {
    PeerProgress { active: false, ..near(id) }
}

fn group(voters: &[u64], learners: &[u64]) -> ConfState {
    ConfState { voters: voters.into(), learners: learners.into(), ..ConfState::default() }
}

/// Checks with member 1 as the leader.
#[track_caller]
fn check(
    desired: &[DesiredMember],
    voters: &[u64],
    learners: &[u64],
    peers: &[PeerProgress],
    expected: MembershipAction,
) {
    let found = next_action(desired, &group(voters, learners), 1, peers, APPLIED);
    assert_eq!(found, expected, "{desired:?} of {voters:?} and {learners:?} with {peers:?}");
}

fn change(steps: impl Into<Vec<MemberStep>>) -> MembershipAction {
    MembershipAction::Change(MemberChange::new(steps))
}

use MemberStep::{Learner, Remove, Voter};

#[test]
fn group_grows_by_learners_then_pairs() {
    let two = [voter(1), voter(2)];
    check(&[voter(1)], &[1], &[], &[], MembershipAction::Settled);
    check(&two, &[1], &[], &[], change([Learner(2)]));
    check(&two, &[1], &[2], &[near(2)], MembershipAction::Wait(WaitReason::EvenVoterCount { id: 2 }));
    let three = [voter(1), voter(2), voter(3)];
    check(&three, &[1], &[2], &[near(2)], change([Learner(3)]));
    check(&three, &[1], &[2, 3], &[near(2), near(3)], change([Voter(2), Voter(3)]));
    let late = WaitReason::CatchingUp { id: 3, missing_entries: CAUGHT_UP_WITHIN + 1 };
    check(&three, &[1], &[2, 3], &[near(2), behind(3)], MembershipAction::Wait(late));
    check(
        &three,
        &[1],
        &[2, 3],
        &[near(2), silent(3)],
        MembershipAction::Wait(WaitReason::Unreachable { id: 3 }),
    );
    check(&three, &[1], &[2, 3], &[near(2)], MembershipAction::Wait(WaitReason::Unreachable { id: 3 }));
    check(&three, &[1, 2, 3], &[], &[near(2), near(3)], MembershipAction::Settled);
    let five: Vec<DesiredMember> = (1..=5).map(voter).collect();
    let peers = [near(2), near(3), near(4), near(5)];
    check(
        &five[..4],
        &[1, 2, 3],
        &[4],
        &peers[..3],
        MembershipAction::Wait(WaitReason::EvenVoterCount { id: 4 }),
    );
    check(&five, &[1, 2, 3], &[4, 5], &peers, change([Voter(4), Voter(5)]));
    let six: Vec<DesiredMember> = (1..=6).map(voter).collect();
    let one_is_late = [near(2), near(3), behind(4), near(5), near(6)];
    check(&six, &[1, 2, 3], &[4, 5, 6], &one_is_late, change([Voter(5), Voter(6)]));
}

/// A member that was just added counts as active before its first response, and in a young group every member
/// is caught up.
#[test]
fn silent_member_is_not_promoted() {
    let three = [voter(1), voter(2), voter(3)];
    let added = PeerProgress { matched: 0, ..near(3) };
    let found = next_action(&three, &group(&[1], &[2, 3]), 1, &[near(2), added], 20);
    assert_eq!(found, MembershipAction::Wait(WaitReason::CatchingUp { id: 3, missing_entries: 20 }));
}

#[test]
fn undesired_members_leave_and_voters_stay_odd() {
    let peers = [near(2), near(3)];
    check(&[voter(1), voter(2), removing(3)], &[1, 2, 3], &[], &peers, change([Learner(2), Remove(3)]));
    check(&[voter(1), voter(2)], &[1, 2, 3], &[], &peers, change([Learner(2), Remove(3)]));
    check(&[voter(1), voter(2), learner(3)], &[1, 2, 3], &[], &peers, change([Learner(2), Learner(3)]));
    check(&[voter(1), removing(2), removing(3)], &[1, 2, 3], &[], &peers, change([Remove(2), Remove(3)]));
    check(&[voter(1), removing(2)], &[1], &[2], &[near(2)], change([Remove(2)]));
    check(&[voter(1)], &[1], &[2, 3], &[], change([Remove(2), Remove(3)]));
    check(&[voter(1), learner(2), learner(3)], &[1], &[2, 3], &peers, MembershipAction::Settled);
    // Of the remaining members, one that is unreachable loses its vote first.
    let desired = [voter(1), voter(2), voter(3), voter(4), removing(5)];
    let peers = [silent(2), near(3), near(4), near(5)];
    check(&desired, &[1, 2, 3, 4, 5], &[], &peers, change([Learner(2), Remove(5)]));
    // A learner is promoted immediately.
    let desired = [voter(1), voter(2), removing(3), voter(4)];
    check(&desired, &[1, 2, 3], &[4], &[near(2), silent(3), near(4)], change([Remove(3), Voter(4)]));
    // A learner is catching up: no member loses its vote meanwhile. An unreachable one is not waited for.
    let late = WaitReason::CatchingUp { id: 4, missing_entries: CAUGHT_UP_WITHIN + 1 };
    check(&desired, &[1, 2, 3], &[4], &[near(2), silent(3), behind(4)], MembershipAction::Wait(late));
    let gone = [near(2), near(3), silent(4)];
    check(&desired, &[1, 2, 3], &[4], &gone, change([Learner(2), Remove(3)]));
}

#[test]
fn leaving_leader_transfers_first() {
    let peers = [PeerProgress { matched: APPLIED - 1, ..near(2) }, near(3)];
    for own in [removing(1), learner(1)] {
        check(
            &[own, voter(2), voter(3)],
            &[1, 2, 3],
            &[],
            &peers,
            MembershipAction::TransferLeadership { to: 3 },
        );
        let one_is_gone = [near(2), silent(3)];
        check(
            &[own, voter(2), voter(3)],
            &[1, 2, 3],
            &[],
            &one_is_gone,
            MembershipAction::TransferLeadership { to: 2 },
        );
        // The only voter first lets another member vote.
        check(&[own, voter(2)], &[1], &[2], &[near(2)], change([Voter(2)]));
        check(&[own, voter(2)], &[1, 2], &[], &[near(2)], MembershipAction::TransferLeadership { to: 2 });
        check(&[own, voter(2), voter(3)], &[1], &[2, 3], &[near(2), near(3)], change([Voter(2), Voter(3)]));
        check(
            &[own, learner(2)],
            &[1],
            &[2],
            &[near(2)],
            MembershipAction::Wait(WaitReason::NoSuccessor { id: 1 }),
        );
        check(
            &[own, voter(2)],
            &[1],
            &[2],
            &[behind(2)],
            MembershipAction::Wait(WaitReason::NoSuccessor { id: 1 }),
        );
        check(&[own], &[1], &[], &[], MembershipAction::Wait(WaitReason::NoSuccessor { id: 1 }));
    }
    check(
        &[voter(2), voter(3)],
        &[1, 2, 3],
        &[],
        &[near(2), near(3)],
        MembershipAction::TransferLeadership { to: 2 },
    );
}

#[test]
fn lost_member_is_replaced_in_one_change() {
    let desired = [voter(1), voter(2), voter(3), replacing(4, 3)];
    check(&desired, &[1, 2, 3], &[], &[near(2), silent(3)], change([Learner(4)]));
    check(&desired, &[1, 2, 3], &[4], &[near(2), silent(3), near(4)], change([Remove(3), Voter(4)]));
    let late = WaitReason::CatchingUp { id: 4, missing_entries: CAUGHT_UP_WITHIN + 1 };
    check(&desired, &[1, 2, 3], &[4], &[near(2), silent(3), behind(4)], MembershipAction::Wait(late));
    let there = WaitReason::ReplacedMemberActive { old: 3, new: 4 };
    check(&desired, &[1, 2, 3], &[4], &[near(2), near(3), near(4)], MembershipAction::Wait(there));
    check(
        &desired,
        &[1, 2, 3],
        &[4],
        &[near(2), unknown(3), near(4)],
        MembershipAction::Wait(WaitReason::ChangeInProgress),
    );
    check(&desired, &[1, 2, 4], &[], &[near(2), near(4)], MembershipAction::Settled);
    // The replaced member is a learner, or left the group.
    check(
        &desired[..2],
        &[1],
        &[2],
        &[near(2)],
        MembershipAction::Wait(WaitReason::EvenVoterCount { id: 2 }),
    );
    let desired = [voter(1), voter(2), replacing(3, 2)];
    check(&desired, &[1], &[2, 3], &[silent(2), near(3)], change([Remove(2)]));
    check(&desired, &[1], &[3], &[near(3)], MembershipAction::Wait(WaitReason::EvenVoterCount { id: 3 }));
    // With other changes: the replacement is kept, the newest waits.
    let desired = [voter(1), voter(2), voter(3), voter(4), replacing(5, 3)];
    let peers = [near(2), silent(3), near(4), near(5)];
    check(&desired, &[1, 2, 3], &[4, 5], &peers, change([Remove(3), Voter(5)]));
    // The leader is reachable.
    let desired = [voter(1), voter(2), voter(3), replacing(4, 1)];
    let there = WaitReason::ReplacedMemberActive { old: 1, new: 4 };
    check(&desired, &[1, 2, 3], &[4], &[near(2), near(3), near(4)], MembershipAction::Wait(there));
    // The replacement itself is removed: the old member stays what it was.
    let desired = [voter(1), voter(2), voter(3), DesiredMember { removing: true, ..replacing(4, 3) }];
    check(&desired, &[1, 2, 3], &[4], &[near(2), silent(3), near(4)], change([Remove(4)]));
    check(&desired, &[1, 2, 3], &[], &[near(2), silent(3)], MembershipAction::Settled);
}

#[test]
fn change_that_loses_quorum_is_delayed() {
    let few = |voters, active| MembershipAction::Wait(WaitReason::WouldLoseQuorum { voters, active });
    let three = [voter(1), voter(2), voter(3)];
    check(&[voter(1), voter(2), removing(3)], &[1, 2, 3], &[], &[silent(2), silent(3)], few(3, 1));
    check(&[three.as_slice(), &[voter(4)]].concat(), &[1, 2, 3], &[], &[silent(2), silent(3)], few(3, 1));
    let joint = ConfState { voters_outgoing: vec![1], ..group(&[1, 2, 3], &[]) };
    let found = next_action(&three, &joint, 1, &[near(2), near(3)], APPLIED);
    assert_eq!(found, MembershipAction::Wait(WaitReason::ChangeInProgress));
    check(&[], &[1, 2, 3], &[], &[near(2), near(3)], MembershipAction::Settled);
}

#[test]
fn quorum_loss_is_predicted() {
    let ask = |voters: &[u64], learners: &[u64], peers: &[PeerProgress], id| {
        let all = voters.iter().chain(learners).copied().map(voter);
        let desired: Vec<DesiredMember> = all.collect();
        check_quorum_without(&desired, &group(voters, learners), 1, peers, APPLIED, id)
    };
    let few = |voters, active| Some(WaitReason::WouldLoseQuorum { voters, active });
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), near(3)], 3), None);
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), near(3)], 1), None);
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), silent(3)], 3), None, "it is not there anyway");
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), silent(3)], 2), few(2, 1));
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), silent(3)], 1), few(2, 1));
    assert_eq!(ask(&[1, 2, 3], &[4], &[near(2), silent(3), near(4)], 2), None, "another one votes instead");
    assert_eq!(ask(&[1, 2, 3], &[4], &[near(2), silent(3), near(4)], 4), None, "it does not vote");
    assert_eq!(ask(&[1], &[], &[], 1), Some(WaitReason::NoSuccessor { id: 1 }));
    let peers = [near(2), near(3), silent(4), silent(5)];
    assert_eq!(ask(&[1, 2, 3, 4, 5], &[], &peers, 3), few(4, 2));
    assert_eq!(ask(&[1, 2, 3, 4, 5], &[], &peers, 4), None);
}

#[test]
fn wait_reasons_are_reported() {
    let few = WaitReason::WouldLoseQuorum { voters: 5, active: 2 };
    assert_eq!(few.to_string(), "only 2 of 5 voters are reachable; quorum is 3");
    assert_eq!(few.member_id(), None);
    let there = WaitReason::ReplacedMemberActive { old: 3, new: 4 };
    assert_eq!(there.member_id(), Some(4));
    assert!(there.to_string().starts_with("manager 4 replaces manager 3"), "{there}");
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % bound
    }
}

/// A group that executes each action.
#[derive(Debug, Clone)]
struct GroupModel {
    desired: Vec<DesiredMember>,
    voters: BTreeSet<u64>,
    learners: BTreeSet<u64>,
    leader: u64,
    peers: Vec<PeerProgress>,
}

impl GroupModel {
    /// Member `id` in one of 60 ways: its role, its desired state, and its activity.
    fn add(&mut self, id: u64, way: u64) {
        let peer = match way % 4 {
            0 => near(id),
            1 => behind(id),
            2 => silent(id),
            _ => unknown(id),
        };
        match way / 4 % 3 {
            0 => drop(self.voters.insert(id)),
            1 => drop(self.learners.insert(id)),
            _ => {}
        }
        let before = id.saturating_sub(1);
        match way / 12 {
            0 => self.desired.push(voter(id)),
            1 => self.desired.push(learner(id)),
            2 => self.desired.push(removing(id)),
            // A member that replaces an unfinished replacement replaces the original member.
            3 if before > 0
                && self.desired.iter().all(|desired_member| {
                    desired_member.replaces.is_none() || desired_member.id != before
                }) =>
            {
                self.desired.push(replacing(id, before));
            }
            _ => {}
        }
        if self.voters.contains(&id) || self.learners.contains(&id) {
            self.peers.push(peer);
        }
    }

    fn of(ways: &[u64], leader: u64) -> Option<Self> {
        let none = BTreeSet::new;
        let (desired, peers) = (Vec::new(), Vec::new());
        let mut model = Self { desired, voters: none(), learners: none(), leader, peers };
        (1..).zip(ways).for_each(|(id, way)| model.add(id, *way));
        model.peers.retain(|peer| peer.id != leader);
        model.voters.contains(&leader).then_some(model)
    }

    fn members(&self) -> ConfState {
        let list = |ids: &BTreeSet<u64>| ids.iter().copied().collect();
        ConfState { voters: list(&self.voters), learners: list(&self.learners), ..ConfState::default() }
    }

    fn active(&self, voters: &BTreeSet<u64>) -> usize {
        let answers = |id: &u64| self.peers.iter().any(|peer| peer.id == *id && peer.active);
        voters.iter().filter(|id| **id == self.leader || answers(id)).count()
    }

    fn next_action(&self) -> MembershipAction {
        next_action(&self.desired, &self.members(), self.leader, &self.peers, APPLIED)
    }

    /// Executes the action, and checks that it was valid.
    fn execute(&mut self, next: &MembershipAction) {
        match next {
            MembershipAction::Change(change) => {
                let verified: Result<(), InvalidMemberChange> = change.verify(&self.members(), self.leader);
                assert_eq!(verified, Ok(()), "{change:?} in {self:?}");
                let before = (self.voters.clone(), self.active(&self.voters));
                for step in change.steps() {
                    self.apply_step(*step);
                }
                let active = self.active(&self.voters);
                assert!(active * 2 > self.voters.len(), "{change:?} lost the quorum: {self:?}");
                assert!(before.1 * 2 > before.0.len(), "{change:?} could not be decided: {self:?}");
            }
            MembershipAction::TransferLeadership { to } => {
                assert!(self.voters.contains(to) && *to != self.leader, "{to} cannot lead: {self:?}");
                assert!(
                    self.peers.iter().any(|peer| peer.id == *to && peer.active),
                    "{to} is gone: {self:?}"
                );
                self.peers.retain(|peer| peer.id != *to);
                self.peers.push(near(self.leader));
                self.leader = *to;
            }
            MembershipAction::Settled | MembershipAction::Wait(_) => {}
        }
    }

    fn apply_step(&mut self, step: MemberStep) {
        let id = step.id();
        self.voters.remove(&id);
        self.learners.remove(&id);
        match step {
            Voter(_) => {
                let promoted = self.peers.iter().find(|peer| peer.id == id).copied();
                let near =
                    promoted.is_some_and(|peer| peer.active && peer.matched + CAUGHT_UP_WITHIN >= APPLIED);
                assert!(near, "{id} gets a vote before it has caught up: {self:?}");
                self.voters.insert(id);
            }
            Learner(_) => {
                self.learners.insert(id);
                if !self.peers.iter().any(|peer| peer.id == id) {
                    self.peers.push(near(id));
                }
            }
            Remove(_) => self.peers.retain(|peer| peer.id != id),
        }
    }

    /// Runs until it settles, within a bounded number of steps: each member is added, promoted, demoted and
    /// removed at most once, and the leadership is transferred at most once.
    fn run(&mut self) -> MembershipAction {
        for _ in 0..=2 * (self.desired.len() + self.voters.len() + self.learners.len()) + 2 {
            let next = self.next_action();
            if matches!(next, MembershipAction::Settled | MembershipAction::Wait(_)) {
                return next;
            }
            self.execute(&next);
        }
        panic!("it does not come to rest: {self:?}");
    }

    /// All members respond and have caught up, except replaced ones.
    fn heal_all(&mut self) {
        let lost: BTreeSet<u64> =
            self.desired.iter().filter_map(|desired_member| desired_member.replaces).collect();
        for peer in &mut self.peers {
            *peer = if lost.contains(&peer.id) { silent(peer.id) } else { near(peer.id) };
        }
    }

    fn check_settled(&self, rest: MembershipAction) {
        let Self { desired, voters, learners, .. } = self;
        match rest {
            MembershipAction::Wait(
                WaitReason::NoSuccessor { .. }
                | WaitReason::ReplacedMemberActive { .. }
                | WaitReason::WouldLoseQuorum { .. },
            ) => {
                return;
            }
            MembershipAction::Wait(WaitReason::EvenVoterCount { id }) => {
                assert!(learners.contains(&id), "{self:?}")
            }
            MembershipAction::Settled if desired.is_empty() => return,
            MembershipAction::Settled => {}
            rest => panic!("everybody is well, and yet {rest:?}: {self:?}"),
        }
        assert!(voters.len() % 2 == 1, "an even number rests: {self:?}");
        for id in voters.iter().chain(learners) {
            let stays =
                desired.iter().any(|desired_member| desired_member.id == *id && !desired_member.removing);
            assert!(stays, "{id} is to go: {self:?}");
        }
        for desired_member in desired.iter().filter(|desired_member| !desired_member.removing) {
            let DesiredMember { id, is_voter: votes, .. } = *desired_member;
            let replaced =
                desired.iter().any(|other| other.replaces == Some(id) && !other.removing && other.id > id);
            let is_there = voters.contains(&id) || learners.contains(&id);
            assert!(is_there || replaced, "{id} was forgotten: {self:?}");
            assert!(votes || !voters.contains(&id), "{id} votes: {self:?}");
        }
        let want = |desired_member: &&DesiredMember| {
            desired_member.is_voter
                && !desired_member.removing
                && (voters.contains(&desired_member.id) || learners.contains(&desired_member.id))
        };
        let expected = desired.iter().filter(want).count();
        assert_eq!(voters.len(), expected - usize::from(expected % 2 == 0), "{self:?}");
    }
}

fn holds(ways: &[u64], leader: u64) {
    let Some(mut model) = GroupModel::of(ways, leader) else { return };
    model.run();
    model.heal_all();
    let rest = model.run();
    model.check_settled(rest);
}

/// For every group, desired state and activity: each step can be proposed, keeps the quorum and promotes only
/// caught-up members; once all members are healthy, the group settles in its desired state.
#[test]
fn small_groups_converge() {
    for first in 0..60 {
        for second in 0..60 {
            for third in 0..60 {
                (1..=3).for_each(|leader| holds(&[first, second, third], leader));
            }
        }
    }
}

#[test]
fn large_groups_converge() {
    let mut rng = Rng(7);
    for _ in 0..200_000 {
        let count = 4 + rng.below(4);
        let ways: Vec<u64> = (0..count).map(|_| rng.below(60)).collect();
        holds(&ways, 1 + rng.below(count));
    }
}
