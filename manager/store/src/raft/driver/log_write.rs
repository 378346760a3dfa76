//! One write to the log.

use warren_log::{Error, LogStore, SnapshotMeta, WriteBatch};

/// One atomic write to the log. Idempotent.
#[derive(Debug, Clone)]
pub enum LogWrite {
    /// A write of the raft machine.
    Append {
        /// The machine's number of the write.
        number: u64,
        /// The content.
        batch: WriteBatch,
    },
    /// Records a snapshot of this member's own state and removes entries before it.
    Compact {
        /// The snapshot.
        snapshot: SnapshotMeta,
        /// The last entry to remove; 0: none.
        up_to: u64,
    },
}

impl LogWrite {
    /// Writes it to `store`.
    pub(super) fn execute(&self, store: &mut dyn LogStore) -> Result<(), Error> {
        match self {
            LogWrite::Append { batch, .. } => store.append(batch),
            LogWrite::Compact { snapshot, up_to } => {
                store.set_snapshot(snapshot)?;
                if *up_to > 0 { store.compact(*up_to) } else { Ok(()) }
            }
        }
    }
}
