//! Renews the data key, and writes everything that an earlier key has sealed again.
//!
//! Entries and snapshots are sealed with the new key from the beginning on. Once everything before is applied, a
//! snapshot is written, and the log is compacted up to it; entries that are kept for slow members stay in memory. Then
//! the earlier keys are forgotten. An interruption is harmless: the keyring has both keys until then.

use tokio::sync::oneshot;
use warren_log::SnapshotMeta;

use super::compaction::Compaction;
use super::{DriverError, RaftDriver};
use crate::store::KeyRenewalError;

/// A renewal that is not complete.
pub struct KeyRenewal {
    /// The last entry that an earlier key has sealed.
    last: u64,
    /// The snapshot that was started last, with the new key.
    started: Option<SnapshotMeta>,
    /// The one that has made the entries up to `last` superfluous.
    written: Option<SnapshotMeta>,
    reply: oneshot::Sender<Result<(), KeyRenewalError>>,
}

impl KeyRenewal {
    /// A snapshot with the new key was started.
    pub fn record_start(&mut self, meta: &SnapshotMeta) {
        self.started = Some(meta.clone());
    }

    /// That snapshot is durable. Returns the compaction that follows.
    pub fn record_written(&mut self, index: u64) -> Option<Compaction> {
        let meta = self.started.take().filter(|meta| meta.index == index && index >= self.last)?;
        self.written = Some(meta.clone());
        Some(Compaction::new(meta, index))
    }

    /// The leader's snapshot, which an earlier key may have sealed, replaced the state.
    pub fn record_installed(&mut self) {
        (self.started, self.written) = (None, None);
    }

    /// The last entry to remove with that snapshot, instead of `up_to`.
    pub fn up_to(&self, snapshot: &SnapshotMeta, up_to: u64) -> u64 {
        let is_written = self.written.as_ref().is_some_and(|written| written.index <= snapshot.index);
        if is_written { snapshot.index } else { up_to }
    }
}

impl RaftDriver {
    /// Starts a renewal; it takes the place of one that is not complete.
    pub(super) fn begin_key_renewal(&mut self, reply: oneshot::Sender<Result<(), KeyRenewalError>>) {
        let renewed = match self.log_writer.stall() {
            // Its entries are sealed, but not in the log yet.
            Some(stall) => Err(KeyRenewalError::WriteStalled(stall.clone())),
            None => self.keyring.renew().map_err(KeyRenewalError::from),
        };
        match renewed {
            Ok(()) => {
                let last = self.log_writer.last_index();
                self.key_renewal = Some(KeyRenewal { last, started: None, written: None, reply });
            }
            Err(error) => {
                // The caller may have given up.
                let _ = reply.send(Err(error));
            }
        }
    }

    /// Does the next step of the renewal, if one is in progress.
    pub(super) fn continue_key_renewal(&mut self) -> Result<(), DriverError> {
        let Some(renewal) = &self.key_renewal else { return Ok(()) };
        let applied = self.replica.applied().index;
        let has_nothing = applied == 0 && renewal.last == 0;
        if renewal.written.is_none() && !has_nothing {
            let is_idle = !self.snapshotter.is_writing() && self.snapshot_retry.due().is_none();
            if is_idle && applied >= renewal.last {
                self.start_snapshot();
            }
            return Ok(());
        }
        let is_compacted = has_nothing || self.log_writer.first_index() > renewal.last;
        if self.compaction.is_some() || !is_compacted {
            return Ok(());
        }
        let oldest = renewal.written.as_ref().map_or(0, |written| written.index);
        let Some(forgotten) = self.snapshotter.forget_unused_keys(oldest) else { return Ok(()) };
        if let Some(KeyRenewal { reply, .. }) = self.key_renewal.take() {
            // The caller may have given up.
            let _ = reply.send(forgotten.map_err(KeyRenewalError::from).and_then(|left| match left {
                0 => Ok(()),
                _ => Err(KeyRenewalError::StillUsed),
            }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use warren_log::ConfState;

    use super::*;

    fn meta(index: u64) -> SnapshotMeta {
        SnapshotMeta { index, term: 1, conf_state: ConfState::of_voters(vec![1]) }
    }

    #[test]
    fn snapshot_from_before_the_renewal_or_an_installed_one_does_not_complete_it() {
        let reply = oneshot::channel().0;
        let mut renewal = KeyRenewal { last: 5, started: None, written: None, reply };
        renewal.record_start(&meta(4));
        assert!(renewal.record_written(4).is_none(), "entries with an earlier key come after it");
        assert!(renewal.record_written(7).is_none(), "it was not started since");
        renewal.record_start(&meta(7));
        renewal.record_installed();
        assert!(renewal.record_written(7).is_none(), "the installed one may be newer");
        assert_eq!(renewal.up_to(&meta(7), 2), 2);

        renewal.record_start(&meta(9));
        assert!(renewal.record_written(9).is_some());
        assert_eq!(renewal.up_to(&meta(9), 2), 9, "also what is kept for slow members");
        renewal.record_installed();
        assert_eq!((renewal.up_to(&meta(9), 2), renewal.written), (2, None));
    }
}
