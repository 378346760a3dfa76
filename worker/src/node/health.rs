//! What is wrong with the node, in words: shown by `warren node ls` and sent with every heartbeat.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_types::Bytes;

use crate::node::usage::Disk;

/// Less free disk than a tenth, and than this, is low.
const LOW_DISK: Bytes = Bytes(2 << 30);

/// What can be wrong. Each has one sentence at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    /// containerd does not answer.
    Runtime,
    /// The node's part of the network cannot be made.
    Network,
    /// The disk with the data directory is nearly full.
    Disk,
}

/// What is wrong now.
#[derive(Debug, Default)]
pub(crate) struct Health {
    wrong: Mutex<BTreeMap<Condition, String>>,
}

impl Health {
    fn wrong(&self) -> MutexGuard<'_, BTreeMap<Condition, String>> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something is wrong, or with `None` that it is not any more. Says whether it is new.
    pub fn note(&self, condition: Condition, sentence: Option<String>) -> bool {
        let mut wrong = self.wrong();
        match sentence {
            Some(sentence) => {
                let before = wrong.insert(condition, sentence.clone());
                if before.is_none() {
                    tracing::warn!(?condition, sentence, "node condition");
                }
                before.is_none()
            }
            None => {
                let before = wrong.remove(&condition);
                if before.is_some() {
                    tracing::info!(?condition, "node condition is over");
                }
                before.is_some()
            }
        }
    }

    /// Whether this is wrong.
    pub fn has(&self, condition: Condition) -> bool {
        self.wrong().contains_key(&condition)
    }

    /// Everything that is wrong, one sentence each.
    pub fn sentences(&self) -> Vec<String> {
        self.wrong().values().cloned().collect()
    }

    /// Notes whether the disk is low.
    pub fn note_disk(&self, disk: Option<Disk>) {
        self.note(Condition::Disk, disk.and_then(low_disk));
    }
}

fn low_disk(disk: Disk) -> Option<String> {
    let free = disk.total.0.saturating_sub(disk.used.0);
    let low = free < disk.total.0 / 10 && free < LOW_DISK.0;
    low.then(|| {
        let (free, total) = (Bytes(free >> 20 << 20), Bytes(disk.total.0 >> 20 << 20));
        format!("the disk of the data directory has {free} free of {total}; remove images or files")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_come_and_go() {
        let health = Health::default();
        assert!(health.note(Condition::Runtime, Some("containerd does not answer".into())));
        assert!(!health.note(Condition::Runtime, Some("containerd still does not answer".into())));
        assert!(health.has(Condition::Runtime));
        assert_eq!(health.sentences(), ["containerd still does not answer"]);
        assert!(health.note(Condition::Runtime, None) && !health.note(Condition::Runtime, None));
        assert!(health.sentences().is_empty());
    }

    #[test]
    fn a_disk_is_low_by_share_and_by_size() {
        let disk = |free: u64, total: u64| Disk { total: Bytes(total), used: Bytes(total - free) };
        let health = Health::default();
        for (free, total, low) in
            [(1 << 30, 100 << 30, true), (5 << 30, 100 << 30, false), (1 << 30, 4 << 30, false)]
        {
            health.note_disk(Some(disk(free, total)));
            assert_eq!(health.has(Condition::Disk), low, "{free} of {total}");
        }
        health.note_disk(Some(disk(1 << 30, 100 << 30)));
        let said = "the disk of the data directory has 1GiB free of 100GiB; remove images or files";
        assert_eq!(health.sentences(), [said]);
        health.note_disk(None);
        assert!(health.sentences().is_empty());
    }
}
