//! Who answers a leader. Raft forgets all answers at the end of each election timeout, so that whoever answered just
//! before would seem gone until its next answer; the leader's ticks are counted here instead.

use std::collections::BTreeMap;

/// What the leader of one term remembers.
#[derive(Debug, Clone, Default)]
pub(super) struct Presence {
    term: u64,
    ticks: usize,
    /// Each other member: the tick at which it had answered last.
    members: BTreeMap<u64, Answered>,
}

#[derive(Debug, Clone, Copy)]
struct Answered {
    /// The tick as of which raft knew of an answer, or at which the member was first seen.
    tick: usize,
    ever: bool,
}

impl Presence {
    /// One more tick of a leader, which knows of these members whether they answered lately.
    pub(super) fn tick(&mut self, term: u64, members: impl Iterator<Item = (u64, bool)>) {
        if self.term != term {
            *self = Self { term, ..Self::default() };
        }
        self.ticks += 1;
        let (ticks, before) = (self.ticks, std::mem::take(&mut self.members));
        let answered = |(id, now): (u64, bool)| {
            let first = Answered { tick: ticks, ever: now };
            let known = before.get(&id).copied().filter(|_| !now);
            (id, known.unwrap_or(first))
        };
        self.members = members.map(answered).collect();
    }

    /// Whether the member answered within the last election timeout, or the one before.
    pub(super) fn is_active(&self, term: u64, id: u64, timeout: usize) -> bool {
        self.of(term, id).is_some_and(|it| it.ever && self.ticks - it.tick < timeout)
    }

    /// Whether it answered nothing for an election timeout, although this member led.
    pub(super) fn is_silent(&self, term: u64, id: u64, timeout: usize) -> bool {
        self.of(term, id).is_some_and(|it| self.ticks - it.tick >= timeout)
    }

    fn of(&self, term: u64, id: u64) -> Option<Answered> {
        self.members.get(&id).copied().filter(|_| self.term == term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_there_for_one_timeout_and_gone_after_it() {
        let mut presence = Presence::default();
        let seen = |presence: &Presence| {
            [2, 3].map(|id| (presence.is_active(1, id, 3), presence.is_silent(1, id, 3)))
        };
        assert_eq!(seen(&presence), [(false, false); 2], "before the first tick nobody knows");
        presence.tick(1, [(2, true), (3, false)].into_iter());
        assert_eq!(seen(&presence), [(true, false), (false, false)]);
        for _ in 0..2 {
            presence.tick(1, [(2, false), (3, false)].into_iter());
            assert_eq!(seen(&presence), [(true, false), (false, false)]);
        }
        presence.tick(1, [(2, false), (3, false)].into_iter());
        assert_eq!(seen(&presence), [(false, true), (false, true)]);
        presence.tick(1, [(2, false), (3, true)].into_iter());
        assert_eq!(seen(&presence), [(false, true), (true, false)]);
    }

    #[test]
    fn another_term_begins_anew_and_who_left_is_forgotten() {
        let mut presence = Presence::default();
        (0..9).for_each(|_| presence.tick(1, [(2, true), (3, false)].into_iter()));
        assert!(presence.is_silent(1, 3, 3));
        assert!(!presence.is_active(2, 2, 3), "that was another term");
        presence.tick(2, [(2, false), (3, false)].into_iter());
        assert!(!presence.is_silent(2, 3, 3));
        presence.tick(2, [(2, true)].into_iter());
        presence.tick(2, [(2, true), (3, false)].into_iter());
        assert!(!presence.is_silent(2, 3, 1), "it came again just now");
    }
}
