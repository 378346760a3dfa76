//! Errors: a machine cannot be created, cannot continue, or cannot change its members.

use crate::ConfState;

/// The result of creating a machine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An invalid configuration, or invalid restored data.
///
/// Restored data passed the checksums of the disk, so these errors mean that a program wrote something wrong:
/// the member must not join the group with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid setting.
    #[error("invalid raft configuration: {0}")]
    InvalidConfig(String),
    /// The entries have a gap, or do not continue the snapshot.
    #[error("the restored log has a gap: expected entry {expected}, found {found}")]
    MissingEntry {
        /// The expected index.
        expected: u64,
        /// The index found.
        found: u64,
    },
    /// The log ends before the snapshot.
    #[error("the restored log ends at entry {last}, before the snapshot at entry {snapshot}")]
    LogEndsBeforeSnapshot {
        /// The last entry.
        last: u64,
        /// The snapshot's index.
        snapshot: u64,
    },
    /// Terms decrease along the log, or are higher than the member's own.
    #[error("the restored entry {index} has term {found}; expected {lowest} to {highest}")]
    InvalidTerm {
        /// The entry.
        index: u64,
        /// Its term.
        found: u64,
        /// The term of the previous entry.
        lowest: u64,
        /// The highest possible term.
        highest: u64,
    },
    /// The commit index is beyond the log.
    #[error("the restored state says that entry {commit} is committed; the log ends at {last}")]
    CommitBeyondLog {
        /// The commit index.
        commit: u64,
        /// The last entry.
        last: u64,
    },
    /// A member is listed twice, or has the id 0, or a joint phase has no voters.
    #[error("the restored members are invalid: {members:?}")]
    InvalidMembers {
        /// The members.
        members: ConfState,
    },
}

/// The reason for a permanent stop: the member's data contradicts the group's. The process must end; a
/// restart does not help.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum FatalError {
    /// This member acknowledged entries and has none: its disk was lost or replaced.
    #[error(
        "member {leader} leads and has a record that entry {commit} was written here, but the log is empty: \
         this member lost its data, and must be removed and joined again with a new id"
    )]
    LogLost {
        /// The leader.
        leader: u64,
        /// Up to where this member's log was written and committed, by the leader's record.
        commit: u64,
    },
    /// The leader's log differs in an entry that is committed here.
    #[error(
        "entry {index} is committed here with term {local_term}, and member {leader} leads with term \
         {leader_term} there: one of them has the data of another group or an outdated copy; this one must \
         be removed and joined again with a new id, or its own data must be restored"
    )]
    LogDiverged {
        /// The leader.
        leader: u64,
        /// The entry.
        index: u64,
        /// Its term in the local log.
        local_term: u64,
        /// Its term at the leader.
        leader_term: u64,
    },
    /// A membership change is committed that this program cannot parse.
    #[error("the membership change in entry {index} cannot be read: {error}")]
    UnreadableChange {
        /// The entry.
        index: u64,
        /// The parse error.
        error: ParseMembershipError,
    },
    /// A membership change is committed that this member's group cannot have made.
    #[error(
        "the membership change in entry {index} does not fit the members {members:?}: {reason}; \
         check that this member was started with the first members of the group"
    )]
    InapplicableChange {
        /// The entry.
        index: u64,
        /// The members before it.
        members: ConfState,
        /// The reason.
        reason: String,
    },
}

/// Invalid data of a [`crate::EntryKind::Membership`] entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ParseMembershipError {
    /// A later version wrote it.
    #[error("unsupported version {found}; this program supports {supported}; upgrade it")]
    UnsupportedVersion {
        /// The supported version.
        supported: u8,
        /// The version found.
        found: u8,
    },
    /// It is too short or too long.
    #[error("{len} bytes are not a whole number of steps")]
    InvalidLength {
        /// Its length in bytes.
        len: usize,
    },
    /// It has a code that this version does not define.
    #[error("unknown step code {code}")]
    UnknownCode {
        /// The code.
        code: u8,
    },
    /// A step has the member id 0.
    #[error("a step has the invalid member id 0")]
    ZeroId,
}

/// Why a membership change is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMemberChange {
    /// It has no steps.
    #[error("the change has no steps")]
    Empty,
    /// A step has the member id 0.
    #[error("the member id 0 is invalid")]
    ZeroId,
    /// Two steps have the same member.
    #[error("the change has two steps for member {id}")]
    DuplicateMember {
        /// The member.
        id: u64,
    },
    /// It is a voter already.
    #[error("member {id} is a voter already")]
    AlreadyVoter {
        /// The member.
        id: u64,
    },
    /// It is a learner already.
    #[error("member {id} is a learner already")]
    AlreadyLearner {
        /// The member.
        id: u64,
    },
    /// It is not a member.
    #[error("{id} is not a member of the group")]
    NotMember {
        /// The id.
        id: u64,
    },
    /// No voter would be left.
    #[error("no voter would be left")]
    NoVoters,
    /// It removes the leader's vote; the others might not learn in time that it left.
    #[error("member {id} is the leader: transfer the leadership, then send the change to the new leader")]
    RemovesLeader {
        /// The leader.
        id: u64,
    },
}
