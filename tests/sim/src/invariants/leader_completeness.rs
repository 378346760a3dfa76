//! A leader has every entry that was ever committed in a term before its own. (Raft paper, figure 3.)
//!
//! Where a member's disk went back, raft alone cannot promise that. What can be: no majority elects such a leader in
//! which anybody was told of the entry. If nobody in the majority could know, or people said that they accept the loss,
//! that is excused, and the history ends there.

use std::collections::BTreeMap;

use warren_log::{Loaded, LogStore};

use super::prefixes::Prefix;
use crate::world::World;

/// A vote, and what was true of the voter then.
#[derive(Debug, Clone, Copy)]
pub struct Vote {
    pub id: u64,
    /// Up to which index it knew what others had acknowledged.
    pub told: u64,
    /// Its disk went back and lacks something committed; what it had reached up to here, 0 if that is not so.
    pub had: u64,
    /// It was started so that it votes nevertheless.
    pub accepts_loss: bool,
    /// The newest term of the disk that went back; what it voted then is forgotten.
    pub forgot_term: u64,
}

/// Who voted for whom, by term and candidate, and whose votes came there, in this order.
#[derive(Debug, Default)]
pub struct Votes {
    granted: BTreeMap<(u64, u64), Vec<Vote>>,
    arrived: BTreeMap<(u64, u64), Vec<u64>>,
}

impl Votes {
    pub fn granted(&mut self, term: u64, candidate: u64, vote: Vote) {
        self.granted.entry((term, candidate)).or_default().push(vote);
    }

    pub fn arrived(&mut self, term: u64, candidate: u64, voter: u64) {
        let arrived = self.arrived.entry((term, candidate)).or_default();
        if !arrived.contains(&voter) {
            arrived.push(voter);
        }
    }

    /// The votes that came first, so many of them: nobody waits for more.
    fn counted(&self, term: u64, candidate: u64, most: usize) -> Vec<Vote> {
        let (granted, arrived) = (self.granted.get(&(term, candidate)), self.arrived.get(&(term, candidate)));
        let of = |id: &u64| granted?.iter().find(|vote| vote.id == *id).copied();
        arrived.into_iter().flatten().take(most).filter_map(of).collect()
    }
}

/// What becomes of an election.
pub enum Election {
    Sound,
    /// Something is lost, and nobody could know.
    Excused,
    /// Something is lost, and people accept that.
    Accepted,
}

impl World {
    /// A member was elected.
    ///
    /// # Errors
    /// It lacks a committed entry, or is the second one of its term.
    pub(super) fn election(&mut self, host: usize, term: u64) -> Result<Election, String> {
        let own = self.own_vote(host);
        let members = self.oracle.members();
        let most = if members.voters_outgoing.is_empty() { members.voters.len() / 2 } else { usize::MAX };
        let mut votes = self.oracle.votes.counted(term, own.id, most);
        votes.push(own);
        if let Err(what) = self.oracle.leaders.elected(term, own.id) {
            // A vote was forgotten, so who of the others voted in this term cannot matter.
            let forgotten = votes.iter().any(|vote| vote.forgot_term >= term);
            return if forgotten { Ok(Election::Excused) } else { Err(what) };
        }
        let Some(run) = self.life(host) else { return Ok(Election::Sound) };
        let loaded = run.log().load().map_err(|error| format!("the leader's log: {error}"))?;
        let Some(lacks) = self.oracle.first_missing(&loaded, term) else { return Ok(Election::Sound) };
        let regressed = votes.iter().any(|vote| vote.had >= lacks);
        let accepted = votes.iter().any(|vote| vote.accepts_loss);
        let knew = votes.iter().find(|vote| vote.told >= lacks);
        match (regressed, knew) {
            (true, _) if accepted => Ok(Election::Accepted),
            (true, None) => Ok(Election::Excused),
            (_, knew) => Err(format!(
                "acknowledged entries are kept: {} leads in term {term} without {lacks}, elected by {votes:?}, \
                 of whom {knew:?} knew",
                own.id
            )),
        }
    }
}

/// The first entry of a term below `term` that was applied somewhere and is not in a log.
pub fn first_missing(chosen: &Prefix, log: &Loaded, term: u64) -> Option<u64> {
    let covered = log.snapshot.as_ref().map_or(0, |meta| meta.index);
    let terms: BTreeMap<u64, u64> = log.entries.iter().map(|entry| (entry.index, entry.term)).collect();
    let lacks = |(index, term): &(u64, u64)| *index > covered && terms.get(index) != Some(term);
    chosen.places().filter(|(_, of)| *of < term).find(lacks).map(|(index, _)| index)
}
