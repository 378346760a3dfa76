//! Which messages may reach the raft crate.
//!
//! The raft crate trusts its peers: it panics on contradictory numbers. A message that no member can have
//! sent is rejected here. Checks that depend on the receiver's log are in `machine/receive.rs`.

use crate::{AcknowledgedEntry, EntryKind, Message, MessageKind, RaftEntry, members};

/// No counter of a group reaches this; below it, no sum of the raft crate overflows.
const MAX_COUNTER: u64 = 1 << 62;
/// More members than any group has.
pub(crate) const MAX_MEMBERS: usize = 256;
/// How far a term may be ahead of the local one: more than all elections of a group while one member is away.
/// A message from further ahead would use up most of the terms that are left, and a few of them all.
const MAX_TERM_AHEAD: u64 = 1 << 32;

/// Whether a member in term `own` follows one in `term`. A member that has seen no term yet follows any.
pub(crate) fn is_term_reachable(term: u64, own: u64) -> bool {
    own == 0 || term <= own.saturating_add(MAX_TERM_AHEAD)
}

/// Whether a member can have sent this to another.
pub(crate) fn is_well_formed(message: &Message) -> bool {
    let Message { term, log_term, index, commit, commit_term, reject_hint, .. } = *message;
    let possible = [term, log_term, index, commit, commit_term, reject_hint].iter().all(|n| *n < MAX_COUNTER);
    // Members have equal priorities, and install a snapshot when the leader sends one.
    let asks_nothing_strange = message.priority == 0 && message.request_snapshot == 0;
    let known_sender = message.from != 0 && message.from != message.to;
    known_sender
        && possible
        && asks_nothing_strange
        && has_valid_acknowledgements(message)
        // A read request belongs to no term.
        && (term == 0) == (message.kind == MessageKind::ReadIndex)
        && match message.kind {
            MessageKind::Append => has_consistent_entries(message),
            MessageKind::Snapshot => has_valid_snapshot(message),
            MessageKind::ReadIndex | MessageKind::ReadIndexResponse => message.entries.len() == 1,
            _ => true,
        }
}

/// Its acknowledgements: each member once, and no entry of a later term.
fn has_valid_acknowledgements(message: &Message) -> bool {
    let possible =
        |it: &AcknowledgedEntry| it.member != 0 && 0 < it.index && it.index < MAX_COUNTER && 0 < it.term;
    let in_order = message.acknowledged.windows(2).all(|pair| pair[0].member < pair[1].member);
    message.acknowledged.len() <= MAX_MEMBERS && in_order && message.acknowledged.iter().all(possible)
}

/// The entries continue the entry that the message names, and were created by leaders up to this one.
fn has_consistent_entries(message: &Message) -> bool {
    let mut lowest = message.log_term.max(1);
    let mut last = message.index;
    (message.index == 0) == (message.log_term == 0)
        && message.log_term <= message.term
        && message.entries.iter().all(|entry| {
            let RaftEntry { index, term, kind, ref data } = *entry;
            last += 1;
            let fits = index == last && term >= lowest && term <= message.term;
            lowest = term;
            fits && data.is_empty() == (kind == EntryKind::Noop)
        })
}

fn has_valid_snapshot(message: &Message) -> bool {
    message.snapshot.as_ref().is_some_and(|snapshot| {
        let possible = 0 < snapshot.index && snapshot.index < MAX_COUNTER;
        let created = 0 < snapshot.term && snapshot.term <= message.term;
        possible
            && created
            && members::is_valid_conf_state(&snapshot.conf_state)
            && members::contains_member(&snapshot.conf_state, message.to)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn term_far_ahead_is_rejected() {
        for (term, own, expected) in [
            (0, 7, true),
            (7, 7, true),
            (7 + MAX_TERM_AHEAD, 7, true),
            (8 + MAX_TERM_AHEAD, 7, false),
            (MAX_COUNTER - 1, 1, false),
            (MAX_COUNTER - 1, 0, true),
            (u64::MAX, u64::MAX - 1, true),
        ] {
            assert_eq!(is_term_reachable(term, own), expected, "{term} from {own}");
        }
    }
}
