//! All of a log but its entries: one record, rewritten by every write, that says what must be there.

use warren_types::raft::{Acknowledged, ConfState, HardState, SnapshotMeta};

use crate::{Batch, extent::Extent};

/// The one record beside the entries. Because it tells how many entries there are and what their
/// checksums add up to, an engine cannot hand out a lost, old or foreign entry unnoticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// Number of the write that made it; the one that creates the log is 0.
    pub number: u64,
    /// The entries there are.
    pub extent: Extent,
    /// The wrapping sum of their checksums.
    pub sum: u64,
    /// The hard state.
    pub hard_state: HardState,
    /// The members at the snapshot, or at the founding.
    pub conf_state: ConfState,
    /// The latest snapshot.
    pub snapshot: Option<SnapshotMeta>,
    /// What members are known to have acknowledged.
    pub acknowledged: Vec<Acknowledged>,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            number: 0,
            extent: Extent::empty(0),
            sum: 0,
            hard_state: HardState::default(),
            conf_state: ConfState::default(),
            snapshot: None,
            acknowledged: Vec::new(),
        }
    }
}

impl Head {
    /// The head of the next write, which leaves the entries `extent` with the sum `sum`.
    pub fn next(&self, extent: Extent, sum: u64) -> Self {
        Self { number: self.number + 1, extent, sum, ..self.clone() }
    }

    /// Takes over a snapshot and its members.
    pub fn set_snapshot(&mut self, snapshot: &SnapshotMeta) {
        self.conf_state.clone_from(&snapshot.conf_state);
        self.snapshot = Some(snapshot.clone());
    }

    /// Takes over what a batch says besides its entries.
    pub fn set(&mut self, batch: &Batch) {
        if let Some(snapshot) = &batch.snapshot {
            self.set_snapshot(snapshot);
        }
        if let Some(hard_state) = batch.hard_state {
            self.hard_state = hard_state;
        }
        if let Some(conf_state) = &batch.conf_state {
            self.conf_state.clone_from(conf_state);
        }
        if let Some(acknowledged) = &batch.acknowledged {
            self.acknowledged.clone_from(acknowledged);
        }
    }
}
