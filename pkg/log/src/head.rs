//! The head record: everything in a log except its entries, rewritten by every write.

use warren_types::raft::{AcknowledgedEntry, ConfState, HardState, SnapshotMeta};

use crate::codec::{FieldDecoder, encode_conf_state, encode_hard_state, encode_snapshot};
use crate::{WriteBatch, extent::LogExtent};

/// The record next to the entries. It defines the range of entries and the sum of their checksums, so a
/// lost, old or foreign entry returned by an engine is detected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogHead {
    /// Number of the write; the one that creates the log is 0.
    pub number: u64,
    /// Range of the entries.
    pub extent: LogExtent,
    /// Wrapping sum of their checksums.
    pub sum: u64,
    /// The hard state.
    pub hard_state: HardState,
    /// The members at the snapshot or the bootstrap.
    pub conf_state: ConfState,
    /// The latest snapshot.
    pub snapshot: Option<SnapshotMeta>,
    /// Known acknowledgements of members.
    pub acknowledged: Vec<AcknowledgedEntry>,
}

impl Default for LogHead {
    fn default() -> Self {
        Self {
            number: 0,
            extent: LogExtent::empty(0),
            sum: 0,
            hard_state: HardState::default(),
            conf_state: ConfState::default(),
            snapshot: None,
            acknowledged: Vec::new(),
        }
    }
}

impl LogHead {
    /// The head of the next write, with the given range and sum of the entries.
    pub fn next(&self, extent: LogExtent, sum: u64) -> Self {
        Self { number: self.number + 1, extent, sum, ..self.clone() }
    }

    /// Sets a snapshot and its members.
    pub fn set_snapshot(&mut self, snapshot: &SnapshotMeta) {
        self.conf_state.clone_from(&snapshot.conf_state);
        self.snapshot = Some(snapshot.clone());
    }

    /// Encodes the body of the record.
    pub fn encode(&self) -> Vec<u8> {
        let Self { number, extent, sum, hard_state, conf_state, snapshot, acknowledged } = self;
        let mut body = [*number, extent.first, extent.last, *sum].map(u64::to_le_bytes).concat();
        body.extend(encode_hard_state(hard_state));
        body.extend(encode_conf_state(conf_state));
        body.push(snapshot.is_some().into());
        body.extend(snapshot.iter().flat_map(encode_snapshot));
        body.extend((acknowledged.len() as u32).to_le_bytes());
        let numbers = acknowledged.iter().flat_map(|it| [it.member, it.index, it.term]);
        body.extend(numbers.flat_map(u64::to_le_bytes));
        body
    }

    /// Decodes the body of the record.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = FieldDecoder(body);
        let (number, first, last, sum) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
        let hard_state = fields.hard_state()?;
        let conf_state = fields.conf_state()?;
        let snapshot = if fields.bool()? { Some(fields.snapshot()?) } else { None };
        let acknowledged = fields.acknowledged()?;
        let covered = snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        // The log must start at or before the entry after the snapshot; an empty log ends just before its
        // start.
        if first == 0 || first > covered + 1 || last + 1 < first {
            return None;
        }
        let extent = LogExtent { snapshot: covered, first, last };
        fields.finish(Self { number, extent, sum, hard_state, conf_state, snapshot, acknowledged })
    }

    /// Applies everything of a batch except its entries.
    pub fn apply_batch(&mut self, batch: &WriteBatch) {
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
