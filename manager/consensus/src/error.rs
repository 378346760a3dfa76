//! Why a machine could not be made, cannot go on, or does not change its members.

use crate::ConfState;

/// The result of making a machine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with a configuration or with restored data.
///
/// Restored data passed the checksums of the disk, so these errors mean that a program wrote
/// something wrong: the member must not take part in the group with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that raft cannot run with.
    #[error("the raft settings do not work: {0}")]
    Config(String),
    /// The entries have a hole, or do not continue the snapshot.
    #[error("the restored log is not continuous: entry {expected} is missing, found {found}")]
    Gap {
        /// The index that must be there.
        expected: u64,
        /// The index that is there.
        found: u64,
    },
    /// The log ends before the snapshot does.
    #[error("the restored log ends at entry {last}, before the snapshot at entry {snapshot}")]
    BehindSnapshot {
        /// The last entry.
        last: u64,
        /// The snapshot's index.
        snapshot: u64,
    },
    /// Terms go down along the log, or are higher than the member's own.
    #[error("the restored entry {index} has term {found}, where it can be {lowest} to {highest}")]
    Term {
        /// The entry.
        index: u64,
        /// Its term.
        found: u64,
        /// The term of what comes before it.
        lowest: u64,
        /// The highest term it can have.
        highest: u64,
    },
    /// More is committed than there is.
    #[error("the restored state says that entry {commit} is committed; the log ends at {last}")]
    CommitAhead {
        /// The commit index.
        commit: u64,
        /// The last entry.
        last: u64,
    },
    /// A member is listed twice, or has the id 0, or there is a joint phase without its voters.
    #[error("no group can have the restored members: {members:?}")]
    Members {
        /// The members.
        members: ConfState,
    },
}

/// Why a machine stopped for good: what it has and what the group has cannot both be true. The
/// process must end; starting again does not help.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fatal {
    /// This member acknowledged entries, and has none at all: its disk was lost or replaced.
    #[error(
        "member {leader} leads and knows that entry {commit} was written here, but the log is empty: \
         this member lost its data, and must join again as a new one"
    )]
    LostLog {
        /// Who leads.
        leader: u64,
        /// Up to where the leader knows this member's log to be written and committed.
        commit: u64,
    },
    /// The leader's log differs in an entry that is committed here.
    #[error(
        "entry {index} is committed here with term {ours}, and member {leader} leads with term \
         {theirs} there: one of them has the data of another group or of another time; this one must \
         join again as a new one, or get its own data back"
    )]
    Diverged {
        /// Who leads.
        leader: u64,
        /// The entry.
        index: u64,
        /// Its term here.
        ours: u64,
        /// Its term there.
        theirs: u64,
    },
    /// A change of members is committed that this program cannot read.
    #[error("the change of members in entry {index} cannot be read: {error}")]
    UnknownChange {
        /// The entry.
        index: u64,
        /// What is wrong with it.
        error: MembershipError,
    },
    /// A change of members is committed that this member's group cannot have made.
    #[error(
        "the change of members in entry {index} does not fit the members {members:?}: {reason}; \
         was this member started with the members that the group began with?"
    )]
    ImpossibleChange {
        /// The entry.
        index: u64,
        /// The members before it.
        members: ConfState,
        /// What does not fit.
        reason: String,
    },
}

/// What is wrong with the data of a [`crate::EntryKind::Membership`] entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// A later version wrote it.
    #[error("it has version {found}, this program knows {supported}; upgrade it")]
    Version {
        /// The version that can be read.
        supported: u8,
        /// The version it has.
        found: u8,
    },
    /// It is too short or too long.
    #[error("{len} bytes hold no whole number of steps")]
    Length {
        /// Its length in bytes.
        len: usize,
    },
    /// It contains something that does not exist in this version.
    #[error("there is no step with the code {code}")]
    Code {
        /// The code.
        code: u8,
    },
    /// A step is about nobody.
    #[error("a step is about member 0, which cannot exist")]
    NoId,
}

/// Why a group's members cannot be changed as proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidChange {
    /// It has no steps.
    #[error("the change has no steps")]
    Empty,
    /// A step is about nobody.
    #[error("member 0 cannot exist")]
    NoId,
    /// Two steps are about one member.
    #[error("the change has two steps for member {id}")]
    Repeated {
        /// The member.
        id: u64,
    },
    /// It votes already.
    #[error("member {id} is a voter already")]
    AlreadyVoter {
        /// The member.
        id: u64,
    },
    /// It learns already.
    #[error("member {id} is a learner already")]
    AlreadyLearner {
        /// The member.
        id: u64,
    },
    /// There is no such member.
    #[error("{id} is not a member of the group")]
    NotMember {
        /// The id.
        id: u64,
    },
    /// Nobody would vote any more.
    #[error("no voter would be left")]
    NoVoters,
    /// It takes the leader's vote; the others might not learn in time that it left.
    #[error("member {id} leads: transfer the leadership, then ask the new leader")]
    Leader {
        /// The leader.
        id: u64,
    },
}
