//! Tables of groups, and every group of three with chance for the larger ones.

use super::*;
use crate::InvalidChange;

const APPLIED: u64 = 10_000;

fn wish(id: u64) -> Wish {
    Wish { id, votes: true, replaces: None, removing: false }
}

fn learner(id: u64) -> Wish {
    Wish { votes: false, ..wish(id) }
}

fn removing(id: u64) -> Wish {
    Wish { removing: true, ..wish(id) }
}

fn replacing(id: u64, old: u64) -> Wish {
    Wish { replaces: Some(old), ..wish(id) }
}

fn near(id: u64) -> Peer {
    Peer { id, matched: APPLIED, active: true, silent: false }
}

fn behind(id: u64) -> Peer {
    Peer { matched: APPLIED - NEAR - 1, ..near(id) }
}

fn silent(id: u64) -> Peer {
    Peer { active: false, silent: true, ..near(id) }
}

/// Not heard by a leader that is new.
fn unknown(id: u64) -> Peer {
    Peer { active: false, ..near(id) }
}

fn group(voters: &[u64], learners: &[u64]) -> ConfState {
    ConfState { voters: voters.into(), learners: learners.into(), ..ConfState::default() }
}

/// Asks with member 1 as the leader.
#[track_caller]
fn check(wishes: &[Wish], voters: &[u64], learners: &[u64], peers: &[Peer], expected: Next) {
    let found = next_change(wishes, &group(voters, learners), 1, peers, APPLIED);
    assert_eq!(found, expected, "{wishes:?} of {voters:?} and {learners:?} with {peers:?}");
}

fn change(steps: impl Into<Vec<MemberStep>>) -> Next {
    Next::Change(MemberChange::of(steps))
}

use MemberStep::{Learner, Remove, Voter};

#[test]
fn a_group_grows_by_learners_and_pairs() {
    let two = [wish(1), wish(2)];
    check(&[wish(1)], &[1], &[], &[], Next::Settled);
    check(&two, &[1], &[], &[], change([Learner(2)]));
    check(&two, &[1], &[2], &[near(2)], Next::Wait(Why::Odd { id: 2 }));
    let three = [wish(1), wish(2), wish(3)];
    check(&three, &[1], &[2], &[near(2)], change([Learner(3)]));
    check(&three, &[1], &[2, 3], &[near(2), near(3)], change([Voter(2), Voter(3)]));
    let late = Why::Behind { id: 3, missing: NEAR + 1 };
    check(&three, &[1], &[2, 3], &[near(2), behind(3)], Next::Wait(late));
    check(&three, &[1], &[2, 3], &[near(2), silent(3)], Next::Wait(Why::Unreachable { id: 3 }));
    check(&three, &[1], &[2, 3], &[near(2)], Next::Wait(Why::Unreachable { id: 3 }));
    check(&three, &[1, 2, 3], &[], &[near(2), near(3)], Next::Settled);
    let five: Vec<Wish> = (1..=5).map(wish).collect();
    let peers = [near(2), near(3), near(4), near(5)];
    check(&five[..4], &[1, 2, 3], &[4], &peers[..3], Next::Wait(Why::Odd { id: 4 }));
    check(&five, &[1, 2, 3], &[4, 5], &peers, change([Voter(4), Voter(5)]));
    let six: Vec<Wish> = (1..=6).map(wish).collect();
    let one_is_late = [near(2), near(3), behind(4), near(5), near(6)];
    check(&six, &[1, 2, 3], &[4, 5, 6], &one_is_late, change([Voter(5), Voter(6)]));
}

/// Who was just added passes for active before it ever answered, and in a young group everybody is near.
#[test]
fn nobody_votes_before_it_ever_answered() {
    let three = [wish(1), wish(2), wish(3)];
    let added = Peer { matched: 0, ..near(3) };
    let found = next_change(&three, &group(&[1], &[2, 3]), 1, &[near(2), added], 20);
    assert_eq!(found, Next::Wait(Why::Behind { id: 3, missing: 20 }));
}

#[test]
fn what_people_want_not_leaves_or_learns_and_the_rest_stays_odd() {
    let peers = [near(2), near(3)];
    check(&[wish(1), wish(2), removing(3)], &[1, 2, 3], &[], &peers, change([Learner(2), Remove(3)]));
    check(&[wish(1), wish(2)], &[1, 2, 3], &[], &peers, change([Learner(2), Remove(3)]));
    check(&[wish(1), wish(2), learner(3)], &[1, 2, 3], &[], &peers, change([Learner(2), Learner(3)]));
    check(&[wish(1), removing(2), removing(3)], &[1, 2, 3], &[], &peers, change([Remove(2), Remove(3)]));
    check(&[wish(1), removing(2)], &[1], &[2], &[near(2)], change([Remove(2)]));
    check(&[wish(1)], &[1], &[2, 3], &[], change([Remove(2), Remove(3)]));
    check(&[wish(1), learner(2), learner(3)], &[1], &[2, 3], &peers, Next::Settled);
    // Of those that are left, who does not answer loses its vote first.
    let wishes = [wish(1), wish(2), wish(3), wish(4), removing(5)];
    let peers = [silent(2), near(3), near(4), near(5)];
    check(&wishes, &[1, 2, 3, 4, 5], &[], &peers, change([Learner(2), Remove(5)]));
    // A learner takes the place at once.
    let wishes = [wish(1), wish(2), removing(3), wish(4)];
    check(&wishes, &[1, 2, 3], &[4], &[near(2), silent(3), near(4)], change([Remove(3), Voter(4)]));
    // Soon there will be one: nobody loses a vote meanwhile. One that is gone is not waited for.
    let late = Why::Behind { id: 4, missing: NEAR + 1 };
    check(&wishes, &[1, 2, 3], &[4], &[near(2), silent(3), behind(4)], Next::Wait(late));
    let gone = [near(2), near(3), silent(4)];
    check(&wishes, &[1, 2, 3], &[4], &gone, change([Learner(2), Remove(3)]));
}

#[test]
fn a_leader_hands_over_before_it_goes() {
    let peers = [Peer { matched: APPLIED - 1, ..near(2) }, near(3)];
    for own in [removing(1), learner(1)] {
        check(&[own, wish(2), wish(3)], &[1, 2, 3], &[], &peers, Next::Transfer { to: 3 });
        let one_is_gone = [near(2), silent(3)];
        check(&[own, wish(2), wish(3)], &[1, 2, 3], &[], &one_is_gone, Next::Transfer { to: 2 });
        // The only voter lets another one vote first.
        check(&[own, wish(2)], &[1], &[2], &[near(2)], change([Voter(2)]));
        check(&[own, wish(2)], &[1, 2], &[], &[near(2)], Next::Transfer { to: 2 });
        check(&[own, wish(2), wish(3)], &[1], &[2, 3], &[near(2), near(3)], change([Voter(2), Voter(3)]));
        check(&[own, learner(2)], &[1], &[2], &[near(2)], Next::Wait(Why::NoSuccessor { id: 1 }));
        check(&[own, wish(2)], &[1], &[2], &[behind(2)], Next::Wait(Why::NoSuccessor { id: 1 }));
        check(&[own], &[1], &[], &[], Next::Wait(Why::NoSuccessor { id: 1 }));
    }
    check(&[wish(2), wish(3)], &[1, 2, 3], &[], &[near(2), near(3)], Next::Transfer { to: 2 });
}

#[test]
fn a_member_that_lost_its_data_is_replaced_in_one_change() {
    let wishes = [wish(1), wish(2), wish(3), replacing(4, 3)];
    check(&wishes, &[1, 2, 3], &[], &[near(2), silent(3)], change([Learner(4)]));
    check(&wishes, &[1, 2, 3], &[4], &[near(2), silent(3), near(4)], change([Remove(3), Voter(4)]));
    let late = Why::Behind { id: 4, missing: NEAR + 1 };
    check(&wishes, &[1, 2, 3], &[4], &[near(2), silent(3), behind(4)], Next::Wait(late));
    let there = Why::StillThere { old: 3, new: 4 };
    check(&wishes, &[1, 2, 3], &[4], &[near(2), near(3), near(4)], Next::Wait(there));
    check(&wishes, &[1, 2, 3], &[4], &[near(2), unknown(3), near(4)], Next::Wait(Why::UnderWay));
    check(&wishes, &[1, 2, 4], &[], &[near(2), near(4)], Next::Settled);
    // A learner, and one that is gone from the group.
    check(&wishes[..2], &[1], &[2], &[near(2)], Next::Wait(Why::Odd { id: 2 }));
    let wishes = [wish(1), wish(2), replacing(3, 2)];
    check(&wishes, &[1], &[2, 3], &[silent(2), near(3)], change([Remove(2)]));
    check(&wishes, &[1], &[3], &[near(3)], Next::Wait(Why::Odd { id: 3 }));
    // Together with others: it keeps the place, the newest waits.
    let wishes = [wish(1), wish(2), wish(3), wish(4), replacing(5, 3)];
    let peers = [near(2), silent(3), near(4), near(5)];
    check(&wishes, &[1, 2, 3], &[4, 5], &peers, change([Remove(3), Voter(5)]));
    // Whoever leads is there.
    let wishes = [wish(1), wish(2), wish(3), replacing(4, 1)];
    let there = Why::StillThere { old: 1, new: 4 };
    check(&wishes, &[1, 2, 3], &[4], &[near(2), near(3), near(4)], Next::Wait(there));
    // The replacement is removed itself: the old one stays what it was.
    let wishes = [wish(1), wish(2), wish(3), Wish { removing: true, ..replacing(4, 3) }];
    check(&wishes, &[1, 2, 3], &[4], &[near(2), silent(3), near(4)], change([Remove(4)]));
    check(&wishes, &[1, 2, 3], &[], &[near(2), silent(3)], Next::Settled);
}

#[test]
fn nothing_happens_that_too_few_would_decide() {
    let few = |voters, active| Next::Wait(Why::WouldLoseQuorum { voters, active });
    let three = [wish(1), wish(2), wish(3)];
    check(&[wish(1), wish(2), removing(3)], &[1, 2, 3], &[], &[silent(2), silent(3)], few(3, 1));
    check(&[three.as_slice(), &[wish(4)]].concat(), &[1, 2, 3], &[], &[silent(2), silent(3)], few(3, 1));
    let joint = ConfState { voters_outgoing: vec![1], ..group(&[1, 2, 3], &[]) };
    let found = next_change(&three, &joint, 1, &[near(2), near(3)], APPLIED);
    assert_eq!(found, Next::Wait(Why::UnderWay));
    check(&[], &[1, 2, 3], &[], &[near(2), near(3)], Next::Settled);
}

#[test]
fn what_would_lose_the_quorum_is_known_before() {
    let ask = |voters: &[u64], learners: &[u64], peers: &[Peer], id| {
        let all = voters.iter().chain(learners).copied().map(wish);
        let wishes: Vec<Wish> = all.collect();
        loses_quorum(&wishes, &group(voters, learners), 1, peers, APPLIED, id)
    };
    let few = |voters, active| Some(Why::WouldLoseQuorum { voters, active });
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), near(3)], 3), None);
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), near(3)], 1), None);
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), silent(3)], 3), None, "it is not there anyway");
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), silent(3)], 2), few(2, 1));
    assert_eq!(ask(&[1, 2, 3], &[], &[near(2), silent(3)], 1), few(2, 1));
    assert_eq!(ask(&[1, 2, 3], &[4], &[near(2), silent(3), near(4)], 2), None, "another one votes instead");
    assert_eq!(ask(&[1, 2, 3], &[4], &[near(2), silent(3), near(4)], 4), None, "it does not vote");
    assert_eq!(ask(&[1], &[], &[], 1), Some(Why::NoSuccessor { id: 1 }));
    let peers = [near(2), near(3), silent(4), silent(5)];
    assert_eq!(ask(&[1, 2, 3, 4, 5], &[], &peers, 3), few(4, 2));
    assert_eq!(ask(&[1, 2, 3, 4, 5], &[], &peers, 4), None);
}

#[test]
fn it_says_what_it_waits_for() {
    let few = Why::WouldLoseQuorum { voters: 5, active: 2 };
    assert_eq!(few.to_string(), "of the 5 voters only 2 answer, and 3 are needed");
    assert_eq!(few.member(), None);
    let there = Why::StillThere { old: 3, new: 4 };
    assert_eq!(there.member(), Some(4));
    assert!(there.to_string().starts_with("manager 4 replaces manager 3"), "{there}");
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % bound
    }
}

/// A world that does what it is told.
#[derive(Debug, Clone)]
struct World {
    wishes: Vec<Wish>,
    voters: BTreeSet<u64>,
    learners: BTreeSet<u64>,
    leader: u64,
    peers: Vec<Peer>,
}

impl World {
    /// Member `id` in one of 60 ways: what it is, what is wanted of it, and how it does.
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
            0 => self.wishes.push(wish(id)),
            1 => self.wishes.push(learner(id)),
            2 => self.wishes.push(removing(id)),
            // Who takes the place of an unfinished replacement replaces the one that this one was to.
            3 if before > 0
                && self.wishes.iter().all(|wish| wish.replaces.is_none() || wish.id != before) =>
            {
                self.wishes.push(replacing(id, before));
            }
            _ => {}
        }
        if self.voters.contains(&id) || self.learners.contains(&id) {
            self.peers.push(peer);
        }
    }

    fn of(ways: &[u64], leader: u64) -> Option<Self> {
        let none = BTreeSet::new;
        let (wishes, peers) = (Vec::new(), Vec::new());
        let mut world = Self { wishes, voters: none(), learners: none(), leader, peers };
        (1..).zip(ways).for_each(|(id, way)| world.add(id, *way));
        world.peers.retain(|peer| peer.id != leader);
        world.voters.contains(&leader).then_some(world)
    }

    fn members(&self) -> ConfState {
        let list = |ids: &BTreeSet<u64>| ids.iter().copied().collect();
        ConfState { voters: list(&self.voters), learners: list(&self.learners), ..ConfState::default() }
    }

    fn active(&self, voters: &BTreeSet<u64>) -> usize {
        let answers = |id: &u64| self.peers.iter().any(|peer| peer.id == *id && peer.active);
        voters.iter().filter(|id| **id == self.leader || answers(id)).count()
    }

    fn ask(&self) -> Next {
        next_change(&self.wishes, &self.members(), self.leader, &self.peers, APPLIED)
    }

    /// Does it, and checks that it was good.
    fn carry_out(&mut self, next: &Next) {
        match next {
            Next::Change(change) => {
                let verified: Result<(), InvalidChange> = change.verify(&self.members(), self.leader);
                assert_eq!(verified, Ok(()), "{change:?} in {self:?}");
                let before = (self.voters.clone(), self.active(&self.voters));
                for step in change.steps() {
                    self.take_step(*step);
                }
                let active = self.active(&self.voters);
                assert!(active * 2 > self.voters.len(), "{change:?} lost the quorum: {self:?}");
                assert!(before.1 * 2 > before.0.len(), "{change:?} could not be decided: {self:?}");
            }
            Next::Transfer { to } => {
                assert!(self.voters.contains(to) && *to != self.leader, "{to} cannot lead: {self:?}");
                assert!(
                    self.peers.iter().any(|peer| peer.id == *to && peer.active),
                    "{to} is gone: {self:?}"
                );
                self.peers.retain(|peer| peer.id != *to);
                self.peers.push(near(self.leader));
                self.leader = *to;
            }
            Next::Settled | Next::Wait(_) => {}
        }
    }

    fn take_step(&mut self, step: MemberStep) {
        let id = step.id();
        self.voters.remove(&id);
        self.learners.remove(&id);
        match step {
            Voter(_) => {
                let promoted = self.peers.iter().find(|peer| peer.id == id).copied();
                let near = promoted.is_some_and(|peer| peer.active && peer.matched + NEAR >= APPLIED);
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

    /// Until it rests, which is within so many steps: each member is added, gets or loses its vote and leaves at most
    /// once, and the leadership is handed over at most once.
    fn run(&mut self) -> Next {
        for _ in 0..=2 * (self.wishes.len() + self.voters.len() + self.learners.len()) + 2 {
            let next = self.ask();
            if matches!(next, Next::Settled | Next::Wait(_)) {
                return next;
            }
            self.carry_out(&next);
        }
        panic!("it does not come to rest: {self:?}");
    }

    /// Everybody answers and has caught up, but those that were replaced.
    fn everybody_is_well(&mut self) {
        let lost: BTreeSet<u64> = self.wishes.iter().filter_map(|wish| wish.replaces).collect();
        for peer in &mut self.peers {
            *peer = if lost.contains(&peer.id) { silent(peer.id) } else { near(peer.id) };
        }
    }

    fn check_rest(&self, rest: Next) {
        let Self { wishes, voters, learners, .. } = self;
        match rest {
            Next::Wait(Why::NoSuccessor { .. } | Why::StillThere { .. } | Why::WouldLoseQuorum { .. }) => {
                return;
            }
            Next::Wait(Why::Odd { id }) => assert!(learners.contains(&id), "{self:?}"),
            Next::Settled if wishes.is_empty() => return,
            Next::Settled => {}
            rest => panic!("everybody is well, and yet {rest:?}: {self:?}"),
        }
        assert!(voters.len() % 2 == 1, "an even number rests: {self:?}");
        for id in voters.iter().chain(learners) {
            let stays = wishes.iter().any(|wish| wish.id == *id && !wish.removing);
            assert!(stays, "{id} is to go: {self:?}");
        }
        for wish in wishes.iter().filter(|wish| !wish.removing) {
            let Wish { id, votes, .. } = *wish;
            let replaced =
                wishes.iter().any(|other| other.replaces == Some(id) && !other.removing && other.id > id);
            let is_there = voters.contains(&id) || learners.contains(&id);
            assert!(is_there || replaced, "{id} was forgotten: {self:?}");
            assert!(votes || !voters.contains(&id), "{id} votes: {self:?}");
        }
        let want = |wish: &&Wish| {
            wish.votes && !wish.removing && (voters.contains(&wish.id) || learners.contains(&wish.id))
        };
        let wanted = wishes.iter().filter(want).count();
        assert_eq!(voters.len(), wanted - usize::from(wanted % 2 == 0), "{self:?}");
    }
}

fn holds(ways: &[u64], leader: u64) {
    let Some(mut world) = World::of(ways, leader) else { return };
    world.run();
    world.everybody_is_well();
    let rest = world.run();
    world.check_rest(rest);
}

/// Whatever the group is, what is wanted of it and how its members do: each step can be proposed, keeps the quorum and
/// promotes nobody early; and when everybody is well it rests with what is wanted.
#[test]
fn every_small_group_comes_to_rest() {
    for first in 0..60 {
        for second in 0..60 {
            for third in 0..60 {
                (1..=3).for_each(|leader| holds(&[first, second, third], leader));
            }
        }
    }
}

#[test]
fn larger_groups_come_to_rest() {
    let mut dice = Dice(7);
    for _ in 0..200_000 {
        let count = 4 + dice.below(4);
        let ways: Vec<u64> = (0..count).map(|_| dice.below(60)).collect();
        holds(&ways, 1 + dice.below(count));
    }
}
