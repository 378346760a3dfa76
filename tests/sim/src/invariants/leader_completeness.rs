//! A leader has every entry that was committed in a term before its own. (Raft paper, figure 3.)
//!
//! Raft alone cannot promise this when a member's disk was restored from an older copy. What holds then: no
//! majority elects a leader without the entry if a member of that majority knows of the entry. If no member
//! could know, or an operator accepted the loss, the loss is excused and the history ends there.

use std::collections::BTreeMap;

use warren_log::{LogStore, StoredLog};

use super::state_machine_safety::AppliedLog;
use crate::simulation::ClusterSimulation;

/// A vote, and the state of the voter when it voted.
#[derive(Debug, Clone, Copy)]
pub struct RecordedVote {
    pub id: u64,
    /// The index up to which the voter knew the acknowledgements of others.
    pub informed_index: u64,
    /// The last index the voter had reached, if its disk was restored and lacks something committed;
    /// otherwise 0.
    pub had: u64,
    /// The voter was started with data loss accepted.
    pub accepts_loss: bool,
    /// The newest term on the disk before it was restored; votes of that term are forgotten.
    pub lost_term: u64,
}

/// Granted votes by term and candidate, and the votes that arrived, in order of arrival.
#[derive(Debug, Default)]
pub struct VoteLog {
    record: BTreeMap<(u64, u64), Vec<RecordedVote>>,
    arrived: BTreeMap<(u64, u64), Vec<u64>>,
}

impl VoteLog {
    pub fn granted(&mut self, term: u64, candidate: u64, vote: RecordedVote) {
        self.record.entry((term, candidate)).or_default().push(vote);
    }

    pub fn arrived(&mut self, term: u64, candidate: u64, voter: u64) {
        let arrived = self.arrived.entry((term, candidate)).or_default();
        if !arrived.contains(&voter) {
            arrived.push(voter);
        }
    }

    /// A run of a candidate counts no vote that arrived before it. With an older disk it may campaign again in a term
    /// in which an earlier run was elected.
    pub fn candidate_restarted(&mut self, candidate: u64) {
        self.arrived.retain(|(_, of), _| *of != candidate);
    }

    /// The first votes up to a quorum; a candidate does not wait for more.
    fn counted(&self, term: u64, candidate: u64, most: usize) -> Vec<RecordedVote> {
        let (granted, arrived) = (self.record.get(&(term, candidate)), self.arrived.get(&(term, candidate)));
        let of = |id: &u64| granted?.iter().rfind(|vote| vote.id == *id).copied();
        arrived.into_iter().flatten().take(most).filter_map(of).collect()
    }
}

/// The outcome of an election.
pub enum ElectionVerdict {
    Sound,
    /// An entry is lost, and no member could know of it.
    Excused,
    /// An entry is lost, and an operator accepted that.
    Accepted,
}

impl ClusterSimulation {
    /// A member was elected.
    ///
    /// # Errors
    /// The leader lacks a committed entry, or is the second one of its term.
    pub(super) fn election(&mut self, host: usize, term: u64) -> Result<ElectionVerdict, String> {
        let own = self.own_vote(host);
        let members = self.oracle.members();
        let most = if members.voters_outgoing.is_empty() { members.voters.len() / 2 } else { usize::MAX };
        let mut votes = self.oracle.votes.counted(term, own.id, most);
        votes.push(own);
        if let Err(what) = self.oracle.leaders.record(term, own.id) {
            // A vote was forgotten, so the other votes of this term prove nothing.
            let forgotten = votes.iter().any(|vote| vote.lost_term >= term);
            return if forgotten { Ok(ElectionVerdict::Excused) } else { Err(what) };
        }
        let Some(run) = self.process(host) else { return Ok(ElectionVerdict::Sound) };
        let loaded = run.log().load().map_err(|error| format!("the leader's log: {error}"))?;
        let Some(lacks) = self.oracle.first_missing(&loaded, term) else { return Ok(ElectionVerdict::Sound) };
        let regressed = votes.iter().any(|vote| vote.had >= lacks);
        let accepted = votes.iter().any(|vote| vote.accepts_loss);
        let knew = votes.iter().find(|vote| vote.informed_index >= lacks);
        match (regressed, knew) {
            (true, _) if accepted => Ok(ElectionVerdict::Accepted),
            (true, None) => Ok(ElectionVerdict::Excused),
            (_, knew) => Err(format!(
                "acknowledged entries are kept: {} leads in term {term} without {lacks}, elected by {votes:?}, \
                 of which {knew:?} knew of it",
                own.id
            )),
        }
    }
}

/// The first entry of a term below `term` that was applied by some manager and is not in a log.
pub fn first_missing(chosen: &AppliedLog, log: &StoredLog, term: u64) -> Option<u64> {
    let covered = log.snapshot.as_ref().map_or(0, |meta| meta.index);
    let terms: BTreeMap<u64, u64> = log.entries.iter().map(|entry| (entry.index, entry.term)).collect();
    let lacks = |(index, term): &(u64, u64)| *index > covered && terms.get(index) != Some(term);
    chosen.positions().filter(|(_, of)| *of < term).find(lacks).map(|(index, _)| index)
}
