//! Configuration and restored state of a machine.

use std::ops::Range;

use crate::{AcknowledgedEntry, ConfState, Error, HardState, RaftEntry, Result, SnapshotMeta, members};

/// The configuration of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftConfig {
    /// The member's id; never 0, never reused after the member left.
    pub id: u64,
    /// Ticks without a leader after which an election starts; drawn from this range each time.
    pub election_ticks: Range<usize>,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// Determines the election timeouts, and distinguishes the reads of this run from those of earlier runs.
    /// Every start of a member needs a different one.
    pub seed: u64,
    /// The most bytes of entries in one message (one entry is always sent).
    pub max_message_bytes: u64,
    /// The most messages with entries in flight to one member.
    pub max_messages_in_flight: usize,
    /// The most bytes of uncommitted proposals (one batch is always accepted).
    pub max_uncommitted_bytes: u64,
    /// Entries before a snapshot that are kept for members that are slightly behind.
    pub keep_entries: u64,
    /// The user accepts data loss: it votes and campaigns even if its log lacks what it acknowledged.
    pub accept_data_loss: bool,
}

impl RaftConfig {
    /// The configuration for ticks of 50 ms on a local network.
    pub fn new(id: u64, seed: u64) -> Self {
        Self {
            id,
            election_ticks: 6..12,
            heartbeat_ticks: 2,
            seed,
            max_message_bytes: 256 << 10,
            max_messages_in_flight: 64,
            max_uncommitted_bytes: 64 << 20,
            keep_entries: 1_000,
            accept_data_loss: false,
        }
    }

    /// The raft crate's configuration. `applied` is the last entry in the restored state.
    pub(crate) fn to_raft(&self, applied: u64) -> raft::Config {
        raft::Config {
            id: self.id,
            election_tick: self.election_ticks.start,
            min_election_tick: self.election_ticks.start,
            max_election_tick: self.election_ticks.end,
            heartbeat_tick: self.heartbeat_ticks,
            applied,
            max_size_per_msg: self.max_message_bytes,
            max_inflight_msgs: self.max_messages_in_flight,
            max_uncommitted_size: self.max_uncommitted_bytes,
            check_quorum: true,
            pre_vote: true,
            // Never: raft 0.7.0 then joins entries to an empty message with an older index in the same step,
            // and the receiver's log gets a gap.
            batch_append: false,
            read_only_option: raft::ReadOnlyOption::Safe,
            ..raft::Config::default()
        }
    }
}

/// What a member had on stable storage when it started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PersistentState {
    /// The hard state.
    pub hard_state: HardState,
    /// The initial members of the group; they count as long as there is no snapshot, which has its own.
    pub conf_state: ConfState,
    /// The metadata of the latest snapshot; the state has been loaded from it.
    pub snapshot: Option<SnapshotMeta>,
    /// The entries; they can reach back before the snapshot.
    pub entries: Vec<RaftEntry>,
    /// The known acknowledgements of members.
    pub acknowledged: Vec<AcknowledgedEntry>,
}

impl PersistentState {
    /// A member of a group with these initial voters. They must be on stable storage before the machine is
    /// created. A member that joins later starts like this as well, with the same voters although it is not
    /// one of them: it may be sent the log from the first entry on.
    pub fn bootstrap(voters: impl Into<Vec<u64>>) -> Self {
        let conf_state = ConfState::of_voters(voters.into());
        Self { conf_state, ..Self::default() }
    }

    /// The last entry in the loaded state.
    pub(crate) fn applied(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.index)
    }

    /// The members as of the last entry in the loaded state.
    pub(crate) fn members(&self) -> &ConfState {
        self.snapshot.as_ref().map_or(&self.conf_state, |snapshot| &snapshot.conf_state)
    }

    /// The hard state, with term and commit index raised to what the snapshot proves.
    pub(crate) fn effective_hard_state(&self) -> HardState {
        let HardState { mut term, mut vote, commit } = self.hard_state;
        if let Some(snapshot) = self.snapshot.as_ref().filter(|snapshot| snapshot.term > term) {
            (term, vote) = (snapshot.term, 0);
        }
        HardState { term, vote, commit: commit.max(self.applied()) }
    }

    /// Rejects data that no member can have written.
    pub(crate) fn verify(&self) -> Result<()> {
        self.verify_members()?;
        let snapshot = self.applied();
        let mut last = snapshot;
        if let [first, .., end] | [first @ end] = self.entries.as_slice() {
            if first.index > snapshot + 1 {
                return Err(Error::MissingEntry { expected: snapshot + 1, found: first.index });
            }
            last = end.index;
            if last < snapshot {
                return Err(Error::LogEndsBeforeSnapshot { last, snapshot });
            }
        }
        self.verify_terms()?;
        let commit = self.hard_state.commit;
        if commit > last {
            return Err(Error::CommitBeyondLog { commit, last });
        }
        Ok(())
    }

    /// Checks that entries are consecutive and their terms never decrease.
    fn verify_terms(&self) -> Result<()> {
        let (covered, covered_term) =
            self.snapshot.as_ref().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term));
        let first = self.entries.first().map_or(covered + 1, |entry| entry.index);
        let newest = self.effective_hard_state().term;
        let mut lowest = 1;
        for (expected, entry) in (first..).zip(&self.entries) {
            if entry.index != expected {
                return Err(Error::MissingEntry { expected, found: entry.index });
            }
            let highest = if entry.index <= covered { covered_term } else { newest };
            if entry.index >= covered {
                lowest = lowest.max(covered_term);
            }
            if entry.term < lowest || entry.term > highest {
                let (index, found) = (entry.index, entry.term);
                return Err(Error::InvalidTerm { index, found, lowest, highest });
            }
            lowest = entry.term;
        }
        Ok(())
    }

    fn verify_members(&self) -> Result<()> {
        let members = self.members();
        if !members::is_valid_conf_state(members) {
            return Err(Error::InvalidMembers { members: members.clone() });
        }
        Ok(())
    }
}
