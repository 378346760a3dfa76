//! Which messages the raft crate may see.
//!
//! It trusts its peers: it panics on numbers that contradict each other. A message that no member
//! can have sent is turned away here. What depends on the receiver's log is judged in
//! `machine/receiving.rs`.

use crate::{Acknowledged, Entry, EntryKind, Message, MessageKind, members};

/// No group ever counts up to here; below it, no sum of the raft crate overflows.
const IMPOSSIBLE: u64 = 1 << 62;
/// More members than any group has.
pub(crate) const MOST_MEMBERS: usize = 256;
/// How far a term may lie ahead of the own one: more than all elections of a group while one member is away. A message
/// from further away would take most of the terms that are left, and a few of them all.
const FURTHEST_TERM: u64 = 1 << 32;

/// Whether a member that is in the term `own` goes along with one in `term`. One that has seen no term yet goes
/// wherever the group is.
pub(crate) fn within_reach(term: u64, own: u64) -> bool {
    own == 0 || term <= own.saturating_add(FURTHEST_TERM)
}

/// Whether a member can have sent this to another.
pub(crate) fn well_formed(message: &Message) -> bool {
    let Message { term, log_term, index, commit, commit_term, reject_hint, .. } = *message;
    let possible = [term, log_term, index, commit, commit_term, reject_hint].iter().all(|n| *n < IMPOSSIBLE);
    // Members have equal priorities, and take a snapshot when the leader sends one.
    let asks_nothing_strange = message.priority == 0 && message.request_snapshot == 0;
    let known_sender = message.from != 0 && message.from != message.to;
    known_sender
        && possible
        && asks_nothing_strange
        && knows_what_can_be(message)
        // A question about a read belongs to no term.
        && (term == 0) == (message.kind == MessageKind::ReadIndex)
        && match message.kind {
            MessageKind::Append => follows(message),
            MessageKind::Snapshot => announces_a_snapshot(message),
            MessageKind::ReadIndex | MessageKind::ReadIndexResponse => message.entries.len() == 1,
            _ => true,
        }
}

/// What it says of members: each once, and no entry of a term that is yet to come.
fn knows_what_can_be(message: &Message) -> bool {
    let possible = |it: &Acknowledged| it.member != 0 && 0 < it.index && it.index < IMPOSSIBLE && 0 < it.term;
    let in_order = message.acknowledged.windows(2).all(|pair| pair[0].member < pair[1].member);
    message.acknowledged.len() <= MOST_MEMBERS && in_order && message.acknowledged.iter().all(possible)
}

/// The entries follow what they claim to follow, and were created by leaders up to this one.
fn follows(message: &Message) -> bool {
    let mut lowest = message.log_term.max(1);
    let mut last = message.index;
    (message.index == 0) == (message.log_term == 0)
        && message.log_term <= message.term
        && message.entries.iter().all(|entry| {
            let Entry { index, term, kind, ref data } = *entry;
            last += 1;
            let fits = index == last && term >= lowest && term <= message.term;
            lowest = term;
            fits && data.is_empty() == (kind == EntryKind::Noop)
        })
}

fn announces_a_snapshot(message: &Message) -> bool {
    message.snapshot.as_ref().is_some_and(|snapshot| {
        let possible = 0 < snapshot.index && snapshot.index < IMPOSSIBLE;
        let created = 0 < snapshot.term && snapshot.term <= message.term;
        possible
            && created
            && members::are_possible(&snapshot.conf_state)
            && members::include(&snapshot.conf_state, message.to)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_far_ahead_is_out_of_reach_for_whoever_has_one() {
        for (term, own, wanted) in [
            (0, 7, true),
            (7, 7, true),
            (7 + FURTHEST_TERM, 7, true),
            (8 + FURTHEST_TERM, 7, false),
            (IMPOSSIBLE - 1, 1, false),
            (IMPOSSIBLE - 1, 0, true),
            (u64::MAX, u64::MAX - 1, true),
        ] {
            assert_eq!(within_reach(term, own), wanted, "{term} from {own}");
        }
    }
}
