//! What is wrong with the node: in words for people, and by kind for the scheduler. Sent with every heartbeat.
//!
//! What is measured comes at one bound and goes at a better one, so that a condition does not come and go with every
//! look: each change of it is a write of the cluster.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_types::{Bytes, NodeCondition};

use crate::node::usage::{Disk, Memory, Stall};

/// Less free disk than a tenth, and than this, is low.
const LOW_DISK: Bytes = Bytes(2 << 30);
/// Less available memory than a twentieth, and than this, is pressure. The share alone would call 3 GiB of 64 GiB
/// nothing; the amount alone would never let a machine with 512 MiB be well.
const LOW_MEMORY: Bytes = Bytes(256 << 20);
/// A condition is over when there is this much more, in percent of what made it one.
const ENOUGH: u64 = 125;
/// Memory is also short where everything stood still for want of it during a tenth of the last minute: a machine that
/// fetches its programs from the disk again and again has memory available. Over at half of that.
const STALLED: f64 = 10.0;
/// How far a clock may be off, in milliseconds, before it is a condition, and how far once it is one.
const CLOCK_OFF: u64 = 2_000;
const CLOCK_FINE: u64 = 1_000;

/// What is wrong now. Each kind has one sentence at a time.
#[derive(Debug, Default)]
pub(crate) struct Health {
    wrong: Mutex<BTreeMap<NodeCondition, String>>,
}

impl Health {
    fn wrong(&self) -> MutexGuard<'_, BTreeMap<NodeCondition, String>> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something is wrong, or with `None` that it is not any more. Says whether that is new.
    pub fn note(&self, condition: NodeCondition, sentence: Option<String>) -> bool {
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
    pub fn has(&self, condition: NodeCondition) -> bool {
        self.wrong().contains_key(&condition)
    }

    /// Everything that is wrong, one sentence each.
    pub fn sentences(&self) -> Vec<String> {
        self.wrong().values().cloned().collect()
    }

    /// The same by kind.
    pub fn kinds(&self) -> Vec<NodeCondition> {
        self.wrong().keys().copied().collect()
    }

    /// Notes whether the disk is low. One that cannot be asked is not.
    pub fn note_disk(&self, disk: Option<Disk>) {
        let was = self.has(NodeCondition::DiskLow);
        self.note(NodeCondition::DiskLow, disk.and_then(|disk| low_disk(disk, was)));
    }

    /// Notes whether memory is short. Where nothing could be measured, it is not.
    pub fn note_memory(&self, memory: Option<Memory>, stall: Option<Stall>) {
        let was = self.has(NodeCondition::MemoryPressure);
        let short = memory.and_then(|memory| low_memory(memory, was));
        self.note(
            NodeCondition::MemoryPressure,
            short.or_else(|| stall.and_then(|stall| stalled(stall, was))),
        );
    }

    /// Notes by how many milliseconds this machine's clock is ahead of its manager's; negative is behind.
    pub fn note_clock(&self, offset: i64) {
        let was = self.has(NodeCondition::ClockOff);
        self.note(NodeCondition::ClockOff, clock_off(offset, was));
    }
}

/// Whether there is too little left: less than `share` of the total in percent, and than `amount`. What has been
/// too little needs a quarter more to be enough.
fn is_low(left: Bytes, total: Bytes, share: u64, amount: Bytes, was: bool) -> bool {
    let scale = |bound: u128| if was { bound * u128::from(ENOUGH) / 100 } else { bound };
    let bound = scale(u128::from(total.0) * u128::from(share) / 100).min(scale(u128::from(amount.0)));
    u128::from(left.0) < bound
}

/// In whole mebibytes, so that the sentence does not change with every byte.
fn mebibytes(bytes: Bytes) -> Bytes {
    Bytes(bytes.0 >> 20 << 20)
}

fn low_disk(disk: Disk, was: bool) -> Option<String> {
    let free = Bytes(disk.total.0.saturating_sub(disk.used.0));
    is_low(free, disk.total, 10, LOW_DISK, was).then(|| {
        let (free, total) = (mebibytes(free), mebibytes(disk.total));
        format!("the disk of the data directory has {free} free of {total}; remove images or files")
    })
}

fn low_memory(memory: Memory, was: bool) -> Option<String> {
    let available = Bytes(memory.total.0.saturating_sub(memory.used.0));
    is_low(available, memory.total, 5, LOW_MEMORY, was).then(|| {
        let (available, total) = (mebibytes(available), mebibytes(memory.total));
        format!("memory is short: {available} of {total} are available; give tasks limits, or run fewer here")
    })
}

fn stalled(Stall(share): Stall, was: bool) -> Option<String> {
    let bound = if was { STALLED / 2.0 } else { STALLED };
    (share >= bound).then(|| {
        format!("memory is short: for {share:.0} % of the last minute everything waited for it; run fewer tasks here")
    })
}

fn clock_off(offset: i64, was: bool) -> Option<String> {
    let bound = if was { CLOCK_FINE } else { CLOCK_OFF };
    (offset.unsigned_abs() > bound).then(|| {
        let side = if offset > 0 { "ahead of" } else { "behind" };
        let seconds = offset.unsigned_abs() as f64 / 1000.0;
        format!("this machine's clock is {seconds:.1} s {side} its manager's; set it by NTP")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use NodeCondition::{ClockOff, DiskLow, MemoryPressure, RuntimeDown};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn conditions_come_and_go() {
        let health = Health::default();
        assert!(health.note(RuntimeDown, Some("containerd does not answer".into())));
        assert!(!health.note(RuntimeDown, Some("containerd still does not answer".into())));
        assert!(health.has(RuntimeDown));
        assert_eq!(health.sentences(), ["containerd still does not answer"]);
        assert_eq!(health.kinds(), [RuntimeDown]);
        assert!(health.note(RuntimeDown, None) && !health.note(RuntimeDown, None));
        assert!(health.sentences().is_empty() && health.kinds().is_empty());
    }

    #[test]
    fn a_disk_is_low_by_share_and_by_size_and_fine_with_a_quarter_more() {
        let health = Health::default();
        let look = |free: u64, total: u64| {
            health.note_disk(Some(Disk { total: Bytes(total), used: Bytes(total - free) }));
            health.has(DiskLow)
        };
        for (free, total, low) in [
            (GIB, 100 * GIB, true),
            (5 * GIB / 2 - 1, 100 * GIB, true),
            (5 * GIB / 2, 100 * GIB, false),
            (5 * GIB / 2 - 1, 100 * GIB, false),
            (2 * GIB, 100 * GIB, false),
            (2 * GIB - 1, 100 * GIB, true),
            (GIB, 4 * GIB, false),
            (400 * MIB, 4 * GIB, true),
            (500 * MIB, 4 * GIB, true),
            (512 * MIB, 4 * GIB, false),
        ] {
            assert_eq!(look(free, total), low, "{free} of {total}");
        }
        look(GIB, 100 * GIB);
        let said = "the disk of the data directory has 1GiB free of 100GiB; remove images or files";
        assert_eq!(health.sentences(), [said]);
        health.note_disk(None);
        assert!(health.sentences().is_empty());
    }

    #[test]
    fn memory_is_short_by_share_and_by_size_or_when_everything_waits_for_it() {
        let health = Health::default();
        let look = |available: u64, total: u64, stall: f64| {
            let memory = Memory { total: Bytes(total), used: Bytes(total - available) };
            health.note_memory(Some(memory), Some(Stall(stall)));
            health.has(MemoryPressure)
        };
        for (available, total, stall, short) in [
            (255 * MIB, 64 * GIB, 0.0, true),
            (319 * MIB, 64 * GIB, 0.0, true),
            (320 * MIB, 64 * GIB, 0.0, false),
            (300 * MIB, 64 * GIB, 0.0, false),
            (GIB, 64 * GIB, 0.0, false),
            (50 * MIB, 512 * MIB, 0.0, false),
            (25 * MIB, 512 * MIB, 0.0, true),
            (33 * MIB, 512 * MIB, 0.0, false),
            (GIB, 64 * GIB, 9.9, false),
            (GIB, 64 * GIB, 10.0, true),
            (GIB, 64 * GIB, 5.0, true),
            (GIB, 64 * GIB, 4.9, false),
        ] {
            assert_eq!(look(available, total, stall), short, "{available} of {total}, {stall}");
        }
        look(100 * MIB, 64 * GIB, 0.0);
        let said = "memory is short: 100MiB of 64GiB are available; give tasks limits, or run fewer here";
        assert_eq!(health.sentences(), [said]);
        look(GIB, 64 * GIB, 42.4);
        let said =
            "memory is short: for 42 % of the last minute everything waited for it; run fewer tasks here";
        assert_eq!(health.sentences(), [said]);
        health.note_memory(None, None);
        assert!(health.kinds().is_empty());
    }

    #[test]
    fn a_clock_is_off_by_two_seconds_and_fine_within_one() {
        let health = Health::default();
        for (offset, off) in [
            (2_000, false),
            (2_001, true),
            (1_001, true),
            (-1_001, true),
            (1_000, false),
            (-1_500, false),
            (-2_500, true),
            (0, false),
            (i64::MIN, true),
        ] {
            health.note_clock(offset);
            assert_eq!(health.has(ClockOff), off, "{offset}");
        }
        health.note_clock(-2_540);
        assert_eq!(health.sentences(), ["this machine's clock is 2.5 s behind its manager's; set it by NTP"]);
        health.note_clock(3_000);
        assert_eq!(
            health.sentences(),
            ["this machine's clock is 3.0 s ahead of its manager's; set it by NTP"]
        );
    }
}
