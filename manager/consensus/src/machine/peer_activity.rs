//! Which members respond to a leader. Raft clears its own flags at the end of each election timeout, so that
//! a member that responded just before would look inactive until its next response; this module counts the
//! leader's ticks instead.

use std::collections::BTreeMap;

/// The responses to the leader of one term.
#[derive(Debug, Clone, Default)]
pub(super) struct PeerActivity {
    term: u64,
    ticks: usize,
    /// For each other member the tick of its last response.
    members: BTreeMap<u64, LastAnswer>,
}

#[derive(Debug, Clone, Copy)]
struct LastAnswer {
    /// The tick as of which raft knew of a response, or at which the member was first seen.
    tick: usize,
    has_answered: bool,
}

impl PeerActivity {
    /// Counts a tick of a leader, with each member's flag whether it responded recently.
    pub(super) fn tick(&mut self, term: u64, members: impl Iterator<Item = (u64, bool)>) {
        if self.term != term {
            *self = Self { term, ..Self::default() };
        }
        self.ticks += 1;
        let (ticks, before) = (self.ticks, std::mem::take(&mut self.members));
        let answered = |(id, now): (u64, bool)| {
            let first = LastAnswer { tick: ticks, has_answered: now };
            let known = before.get(&id).copied().filter(|_| !now);
            (id, known.unwrap_or(first))
        };
        self.members = members.map(answered).collect();
    }

    /// Whether the member responded within the current or the previous election timeout.
    pub(super) fn is_active(&self, term: u64, id: u64, timeout: usize) -> bool {
        self.get(term, id).is_some_and(|it| it.has_answered && self.ticks - it.tick < timeout)
    }

    /// Whether it did not respond for an election timeout, although this member led.
    pub(super) fn is_silent(&self, term: u64, id: u64, timeout: usize) -> bool {
        self.get(term, id).is_some_and(|it| self.ticks - it.tick >= timeout)
    }

    fn get(&self, term: u64, id: u64) -> Option<LastAnswer> {
        self.members.get(&id).copied().filter(|_| self.term == term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_is_active_for_one_timeout() {
        let mut activity = PeerActivity::default();
        let seen = |activity: &PeerActivity| {
            [2, 3].map(|id| (activity.is_active(1, id, 3), activity.is_silent(1, id, 3)))
        };
        assert_eq!(seen(&activity), [(false, false); 2], "before the first tick nobody knows");
        activity.tick(1, [(2, true), (3, false)].into_iter());
        assert_eq!(seen(&activity), [(true, false), (false, false)]);
        for _ in 0..2 {
            activity.tick(1, [(2, false), (3, false)].into_iter());
            assert_eq!(seen(&activity), [(true, false), (false, false)]);
        }
        activity.tick(1, [(2, false), (3, false)].into_iter());
        assert_eq!(seen(&activity), [(false, true), (false, true)]);
        activity.tick(1, [(2, false), (3, true)].into_iter());
        assert_eq!(seen(&activity), [(false, true), (true, false)]);
    }

    #[test]
    fn new_term_resets_activity() {
        let mut activity = PeerActivity::default();
        (0..9).for_each(|_| activity.tick(1, [(2, true), (3, false)].into_iter()));
        assert!(activity.is_silent(1, 3, 3));
        assert!(!activity.is_active(2, 2, 3), "that was another term");
        activity.tick(2, [(2, false), (3, false)].into_iter());
        assert!(!activity.is_silent(2, 3, 3));
        activity.tick(2, [(2, true)].into_iter());
        activity.tick(2, [(2, true), (3, false)].into_iter());
        assert!(!activity.is_silent(2, 3, 1), "it came again just now");
    }
}
