//! The members of the group and their changes.
//!
//! A change of one member takes effect when its entry is delivered to apply. A change of several goes through
//! a joint phase (Raft thesis, 4.3): its entry begins the phase, and the leader ends it with a second entry
//! of its own, [`MembershipEntry::LeaveJoint`].
//!
//! A crash may lose the latest commit index, although members act on changes that are committed. That is
//! safe: a leader creates a change only after it delivered the one before, and sends it with the commit index
//! that proves this. So a member with a change on its disk has the commit of the previous change too, and
//! restarts at most one change behind its log. Voters of consecutive memberships always overlap.

use std::collections::BTreeSet;

use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2};

use crate::{ConfState, InvalidMemberChange, ParseMembershipError};

/// The version of the encoding in [`crate::EntryKind::Membership`] entries.
const VERSION: u8 = 1;
const LEAVE_JOINT: u8 = 0;
const CHANGE: u8 = 1;
/// Bytes of the header (the version and the code), and of one step.
const HEADER: usize = 2;
const STEP: usize = 9;

/// The change of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemberStep {
    /// It becomes a voter: a new member, or a learner.
    Voter(u64),
    /// It becomes a learner: a new member, or a voter.
    Learner(u64),
    /// It leaves the group. Its id must never be reused.
    Remove(u64),
}

impl MemberStep {
    /// The member that changes.
    pub fn id(self) -> u64 {
        match self {
            Self::Voter(id) | Self::Learner(id) | Self::Remove(id) => id,
        }
    }
}

/// Steps that take effect together: no leader can be elected, and nothing committed, by a majority that has
/// only some of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MemberChange(Vec<MemberStep>);

impl MemberChange {
    /// A change of these steps, each of another member.
    pub fn new(steps: impl Into<Vec<MemberStep>>) -> Self {
        Self(steps.into())
    }

    /// Adds a member as a learner.
    pub fn add_learner(id: u64) -> Self {
        Self::new([MemberStep::Learner(id)])
    }

    /// Makes learners voters, all in one change.
    pub fn promote(ids: impl IntoIterator<Item = u64>) -> Self {
        Self(ids.into_iter().map(MemberStep::Voter).collect())
    }

    /// Removes a member.
    pub fn remove(id: u64) -> Self {
        Self::new([MemberStep::Remove(id)])
    }

    /// Makes `new`, a learner or a new member, a voter instead of `old`. For a member that lost its disk: it
    /// must return under a new id.
    pub fn replace(old: u64, new: u64) -> Self {
        Self::new([MemberStep::Remove(old), MemberStep::Voter(new)])
    }

    /// The steps.
    pub fn steps(&self) -> &[MemberStep] {
        &self.0
    }

    /// Whether `leader` can propose it in a group of these members that is not in a joint phase.
    pub(crate) fn verify(&self, members: &ConfState, leader: u64) -> Result<(), InvalidMemberChange> {
        let mut voters: BTreeSet<_> = members.voters.iter().copied().collect();
        let learners: BTreeSet<_> = members.learners.iter().copied().collect();
        let mut seen = BTreeSet::new();
        if self.0.is_empty() {
            return Err(InvalidMemberChange::Empty);
        }
        for step in &self.0 {
            let id = step.id();
            if id == 0 {
                return Err(InvalidMemberChange::ZeroId);
            }
            if !seen.insert(id) {
                return Err(InvalidMemberChange::DuplicateMember { id });
            }
            match step {
                MemberStep::Voter(_) if voters.contains(&id) => {
                    return Err(InvalidMemberChange::AlreadyVoter { id });
                }
                MemberStep::Learner(_) if learners.contains(&id) => {
                    return Err(InvalidMemberChange::AlreadyLearner { id });
                }
                MemberStep::Remove(_) if !voters.contains(&id) && !learners.contains(&id) => {
                    return Err(InvalidMemberChange::NotMember { id });
                }
                MemberStep::Voter(_) => voters.insert(id),
                MemberStep::Learner(_) | MemberStep::Remove(_) => voters.remove(&id),
            };
        }
        if voters.is_empty() {
            return Err(InvalidMemberChange::NoVoters);
        }
        if !voters.contains(&leader) {
            return Err(InvalidMemberChange::RemovesLeader { id: leader });
        }
        Ok(())
    }
}

/// The data of an [`crate::EntryKind::Membership`] entry.
///
/// Encoding: the version; 0 to leave the joint phase or 1 for a change; then for each step its kind (1 voter,
/// 2 learner, 3 remove) and the member's id as eight bytes, little-endian.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MembershipEntry {
    /// Members change.
    Change(MemberChange),
    /// The joint phase ends: only the new members count.
    LeaveJoint,
}

impl MembershipEntry {
    /// The bytes of the entry's data; never empty.
    pub fn encode(&self) -> Vec<u8> {
        let Self::Change(change) = self else { return vec![VERSION, LEAVE_JOINT] };
        let mut bytes = vec![VERSION, CHANGE];
        for step in change.steps() {
            bytes.push(match step {
                MemberStep::Voter(_) => 1,
                MemberStep::Learner(_) => 2,
                MemberStep::Remove(_) => 3,
            });
            bytes.extend(step.id().to_le_bytes());
        }
        bytes
    }

    /// Parses an entry's data.
    ///
    /// # Errors
    /// If it is of a later version, or not an output of [`MembershipEntry::encode`].
    pub fn parse(data: &[u8]) -> Result<Self, ParseMembershipError> {
        let (version, kind) = match data {
            [version, ..] if *version != VERSION => {
                return Err(ParseMembershipError::UnsupportedVersion { supported: VERSION, found: *version });
            }
            [version, kind, ..] => (*version, *kind),
            _ => return Err(ParseMembershipError::InvalidLength { len: data.len() }),
        };
        debug_assert_eq!(version, VERSION);
        let steps = &data[HEADER..];
        match kind {
            LEAVE_JOINT if steps.is_empty() => Ok(Self::LeaveJoint),
            CHANGE if !steps.is_empty() && steps.len().is_multiple_of(STEP) => {
                let steps: Result<Vec<_>, _> = steps.chunks_exact(STEP).map(parse_step).collect();
                Ok(Self::Change(MemberChange(steps?)))
            }
            LEAVE_JOINT | CHANGE => Err(ParseMembershipError::InvalidLength { len: data.len() }),
            code => Err(ParseMembershipError::UnknownCode { code }),
        }
    }

    /// For the raft crate: several steps make a joint phase that the leader ends by itself.
    pub(crate) fn to_raft(&self) -> ConfChangeV2 {
        let Self::Change(change) = self else { return ConfChangeV2::default() };
        let step = |step: &MemberStep| ConfChangeSingle {
            change_type: match step {
                MemberStep::Voter(_) => ConfChangeType::AddNode,
                MemberStep::Learner(_) => ConfChangeType::AddLearnerNode,
                MemberStep::Remove(_) => ConfChangeType::RemoveNode,
            },
            node_id: step.id(),
            ..ConfChangeSingle::default()
        };
        let changes: Vec<_> = change.steps().iter().map(step).collect();
        ConfChangeV2 { changes: changes.into(), ..ConfChangeV2::default() }
    }
}

fn parse_step(bytes: &[u8]) -> Result<MemberStep, ParseMembershipError> {
    let id = bytes.last_chunk().map(|id| u64::from_le_bytes(*id)).expect("a step ends with eight bytes");
    match bytes[0] {
        _ if id == 0 => Err(ParseMembershipError::ZeroId),
        1 => Ok(MemberStep::Voter(id)),
        2 => Ok(MemberStep::Learner(id)),
        3 => Ok(MemberStep::Remove(id)),
        code => Err(ParseMembershipError::UnknownCode { code }),
    }
}

/// Whether a group can have these members. An empty group is one that is not known yet.
pub(crate) fn is_valid_conf_state(members: &ConfState) -> bool {
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave } = members;
    let all = |ids: &[&Vec<u64>]| -> Option<BTreeSet<u64>> {
        let mut set = BTreeSet::new();
        ids.iter().flat_map(|ids| ids.iter()).all(|id| *id != 0 && set.insert(*id)).then_some(set)
    };
    let joint = !voters_outgoing.is_empty();
    let known = !voters.is_empty() || *members == ConfState::default();
    let outgoing = all(&[voters_outgoing, learners]);
    known
        && all(&[voters, learners, learners_next]).is_some()
        && outgoing.is_some_and(|ids| learners_next.iter().all(|id| ids.contains(id)))
        && (joint || (learners_next.is_empty() && !auto_leave))
}

/// Whether the member is in the group, in any role.
pub(crate) fn contains_member(members: &ConfState, id: u64) -> bool {
    let ConfState { voters, learners, voters_outgoing, .. } = members;
    [voters, learners, voters_outgoing].iter().any(|ids| ids.contains(&id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> MembershipEntry {
        let steps = [MemberStep::Voter(1), MemberStep::Learner(0x0102), MemberStep::Remove(u64::MAX)];
        MembershipEntry::Change(MemberChange::new(steps))
    }

    /// Stored entries must stay readable.
    #[test]
    fn version_1_encoding_is_stable() {
        let step = |kind, id: [u8; 8]| [&[kind], id.as_slice()].concat();
        let expected = [
            vec![1, 1],
            step(1, [1, 0, 0, 0, 0, 0, 0, 0]),
            step(2, [2, 1, 0, 0, 0, 0, 0, 0]),
            step(3, [0xff; 8]),
        ];
        assert_eq!(every_kind().encode(), expected.concat());
        assert_eq!(MembershipEntry::LeaveJoint.encode(), [1, 0]);
        for membership in [every_kind(), MembershipEntry::LeaveJoint] {
            assert_eq!(MembershipEntry::parse(&membership.encode()), Ok(membership));
        }
    }

    #[test]
    fn malformed_entry_is_refused() {
        let bytes = every_kind().encode();
        for len in 0..bytes.len() {
            let whole_steps = len > HEADER && (len - HEADER).is_multiple_of(STEP);
            let parsed = MembershipEntry::parse(&bytes[..len]);
            assert_eq!(parsed.is_ok(), whole_steps, "the first {len} bytes: {parsed:?}");
        }
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            MembershipEntry::parse(&bytes)
        };
        assert_eq!(with(0, 2), Err(ParseMembershipError::UnsupportedVersion { supported: 1, found: 2 }));
        assert_eq!(with(0, 0), Err(ParseMembershipError::UnsupportedVersion { supported: 1, found: 0 }));
        assert_eq!(with(1, 2), Err(ParseMembershipError::UnknownCode { code: 2 }));
        assert_eq!(with(1, 0), Err(ParseMembershipError::InvalidLength { len: 29 }), "leaving has no steps");
        assert_eq!(with(2, 0), Err(ParseMembershipError::UnknownCode { code: 0 }));
        assert_eq!(with(11, 4), Err(ParseMembershipError::UnknownCode { code: 4 }));
        assert_eq!(with(3, 0), Err(ParseMembershipError::ZeroId));
        assert_eq!(MembershipEntry::parse(&[1, 1]), Err(ParseMembershipError::InvalidLength { len: 2 }));
    }

    /// Every parsed entry has exactly one encoding.
    #[test]
    fn parsed_entry_encodes_to_same_bytes() {
        let mut value = 1_u64;
        let mut read = 0;
        for _ in 0..20_000 {
            value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let len = [2, 11, 20, 21][(value >> 62) as usize];
            let mut bytes: Vec<u8> = (0..len).map(|at| (value >> (at % 8 * 8)) as u8 % 5).collect();
            bytes[0] = 1;
            bytes[1] %= 2;
            if let Ok(membership) = MembershipEntry::parse(&bytes) {
                read += 1;
                assert_eq!(membership.encode(), bytes);
            }
        }
        assert!(read > 1_000, "{read}");
    }
}
