//! Conditions of the node: sentences for people, kinds for the scheduler. Sent with every heartbeat.
//!
//! A condition has a hysteresis, so that it does not flap: each change is a write of the cluster.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use warren_types::{Bytes, NodeCondition};

use crate::node::meter::{DiskUsage, MemoryStall, MemoryUsage};

/// Low disk space: less than this percentage free, and less than this.
const LOW_DISK_PERCENT: u64 = 10;
const LOW_DISK: Bytes = Bytes(2 << 30);
/// The disk condition stays for this time after the last low measurement: longer than a heartbeat, so that managers see
/// every short fill, and each fill is at most two writes.
const DISK_HOLD: Duration = Duration::from_secs(15);
/// Memory pressure: less than a twentieth available, and less than this. The share alone would ignore 3 GiB
/// of 64 GiB; the amount alone would never clear on a machine with 512 MiB.
const LOW_MEMORY: Bytes = Bytes(256 << 20);
/// A condition clears at this percentage of its threshold.
const RECOVERY_PERCENT: u64 = 125;
/// Memory pressure also: all tasks stalled on memory during this percentage of the last minute: a machine
/// that reads its programs from disk again and again has memory available. Clears at half of it.
const STALL_PERCENT: f64 = 10.0;
/// Clock offset in milliseconds at which the condition is set, and at which it clears.
const CLOCK_SKEW_SET_MS: u64 = 2_000;
const CLOCK_SKEW_CLEAR_MS: u64 = 1_000;

/// Active conditions, one sentence per kind.
#[derive(Debug, Default)]
pub(crate) struct NodeConditions {
    active: Mutex<BTreeMap<NodeCondition, String>>,
    /// When the disk was low last.
    low_disk_at: Mutex<Option<Instant>>,
}

impl NodeConditions {
    fn active(&self) -> MutexGuard<'_, BTreeMap<NodeCondition, String>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a condition, or clears it with `None`. Returns whether that is a change.
    pub fn set(&self, condition: NodeCondition, sentence: Option<String>) -> bool {
        let mut wrong = self.active();
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
                    tracing::info!(?condition, "node condition ended");
                }
                before.is_some()
            }
        }
    }

    /// Whether the condition is active.
    pub fn is_active(&self, condition: NodeCondition) -> bool {
        self.active().contains_key(&condition)
    }

    /// The sentence of an active condition.
    pub fn message(&self, condition: NodeCondition) -> Option<String> {
        self.active().get(&condition).cloned()
    }

    /// The sentences of all active conditions.
    pub fn messages(&self) -> Vec<String> {
        self.active().values().cloned().collect()
    }

    /// The kinds of all active conditions.
    pub fn conditions(&self) -> Vec<NodeCondition> {
        self.active().keys().copied().collect()
    }

    /// Updates the disk condition. An unreadable disk is not low.
    pub fn observe_disk(&self, disk: Option<DiskUsage>, now: Instant) {
        let was = self.is_active(NodeCondition::DiskPressure);
        let message = disk.and_then(|disk| disk_message(disk, was));
        let mut low_at = self.low_disk_at.lock().unwrap_or_else(PoisonError::into_inner);
        if message.is_some() {
            *low_at = Some(now);
        } else if was && low_at.is_some_and(|at| now.saturating_duration_since(at) < DISK_HOLD) {
            return;
        }
        drop(low_at);
        self.set(NodeCondition::DiskPressure, message);
    }

    /// Updates the memory condition. Without a measurement there is no pressure.
    pub fn observe_memory(&self, memory: Option<MemoryUsage>, stall: Option<MemoryStall>) {
        let was = self.is_active(NodeCondition::MemoryPressure);
        let short = memory.and_then(|memory| memory_message(memory, was));
        self.set(
            NodeCondition::MemoryPressure,
            short.or_else(|| stall.and_then(|stall| stall_message(stall, was))),
        );
    }

    /// Updates the clock condition: by how many milliseconds this machine's clock is ahead of its manager's;
    /// negative is behind.
    pub fn observe_clock(&self, offset: i64) {
        let was = self.is_active(NodeCondition::ClockSkew);
        self.set(NodeCondition::ClockSkew, clock_skew_message(offset, was));
    }
}

/// Whether the rest is low: below `share` percent of the total, and below `amount`. An active condition
/// clears a quarter above that.
fn is_low(left: Bytes, total: Bytes, share: u64, amount: Bytes, was: bool) -> bool {
    let scale = |bound: u128| if was { bound * u128::from(RECOVERY_PERCENT) / 100 } else { bound };
    let bound = scale(u128::from(total.0) * u128::from(share) / 100).min(scale(u128::from(amount.0)));
    u128::from(left.0) < bound
}

/// How much must be freed until the disk is not low any more.
pub(crate) fn disk_shortage(disk: DiskUsage) -> Bytes {
    let free = Bytes(disk.total.0.saturating_sub(disk.used.0));
    if !is_low(free, disk.total, LOW_DISK_PERCENT, LOW_DISK, false) {
        return Bytes(0);
    }
    let bound = (disk.total.0 / 100 * LOW_DISK_PERCENT).min(LOW_DISK.0);
    Bytes((bound / 100 * RECOVERY_PERCENT).saturating_sub(free.0))
}

/// In whole mebibytes, so that the sentence does not change with every byte.
pub(crate) fn mebibytes(bytes: Bytes) -> Bytes {
    Bytes(bytes.0 >> 20 << 20)
}

pub(crate) fn disk_message(disk: DiskUsage, was: bool) -> Option<String> {
    let free = Bytes(disk.total.0.saturating_sub(disk.used.0));
    is_low(free, disk.total, LOW_DISK_PERCENT, LOW_DISK, was).then(|| {
        let (free, total) = (mebibytes(free), mebibytes(disk.total));
        format!("the disk of the data directory has {free} free of {total}; remove images or files")
    })
}

pub(crate) fn memory_message(memory: MemoryUsage, was: bool) -> Option<String> {
    let available = Bytes(memory.total.0.saturating_sub(memory.used.0));
    is_low(available, memory.total, 5, LOW_MEMORY, was).then(|| {
        let (available, total) = (mebibytes(available), mebibytes(memory.total));
        format!("memory is short: {available} of {total} are available; give tasks limits, or run fewer here")
    })
}

fn stall_message(MemoryStall(share): MemoryStall, was: bool) -> Option<String> {
    let bound = if was { STALL_PERCENT / 2.0 } else { STALL_PERCENT };
    (share >= bound).then(|| {
        format!("memory is short: all tasks stalled on it for {share:.0} % of the last minute; run fewer tasks here")
    })
}

fn clock_skew_message(offset: i64, was: bool) -> Option<String> {
    let bound = if was { CLOCK_SKEW_CLEAR_MS } else { CLOCK_SKEW_SET_MS };
    (offset.unsigned_abs() > bound).then(|| {
        let side = if offset > 0 { "ahead of" } else { "behind" };
        let seconds = offset.unsigned_abs() as f64 / 1000.0;
        format!("this machine's clock is {seconds:.1} s {side} its manager's; set it by NTP")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use NodeCondition::{ClockSkew, DiskPressure, MemoryPressure, RuntimeUnavailable};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn conditions_are_set_and_cleared_once() {
        let health = NodeConditions::default();
        assert!(health.set(RuntimeUnavailable, Some("containerd does not answer".into())));
        assert!(!health.set(RuntimeUnavailable, Some("containerd still does not answer".into())));
        assert!(health.is_active(RuntimeUnavailable));
        assert_eq!(health.messages(), ["containerd still does not answer"]);
        assert_eq!(health.conditions(), [RuntimeUnavailable]);
        assert!(health.set(RuntimeUnavailable, None) && !health.set(RuntimeUnavailable, None));
        assert!(health.messages().is_empty() && health.conditions().is_empty());
    }

    #[test]
    fn disk_pressure_has_share_size_and_hysteresis() {
        let health = NodeConditions::default();
        let now = std::cell::Cell::new(Instant::now());
        let look = |free: u64, total: u64| {
            now.set(now.get() + DISK_HOLD);
            let disk = DiskUsage { total: Bytes(total), used: Bytes(total - free) };
            health.observe_disk(Some(disk), now.get());
            health.is_active(DiskPressure)
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
        let output = "the disk of the data directory has 1GiB free of 100GiB; remove images or files";
        assert_eq!(health.messages(), [output]);
        health.observe_disk(None, now.get() + DISK_HOLD);
        assert!(health.messages().is_empty());
    }

    #[test]
    fn freed_shortage_ends_disk_pressure() {
        for (free, total) in [(GIB, 100 * GIB), (0, 4 * GIB), (400 * MIB, 4 * GIB), (2 * GIB, 100 * GIB)] {
            let (health, start) = (NodeConditions::default(), Instant::now());
            let disk = |free: u64| DiskUsage { total: Bytes(total), used: Bytes(total - free) };
            health.observe_disk(Some(disk(free)), start);
            let Bytes(shortage) = disk_shortage(disk(free));
            assert_eq!(shortage > 0, health.is_active(DiskPressure), "{free} of {total}");
            health.observe_disk(Some(disk(free + shortage + MIB)), start + DISK_HOLD);
            assert!(!health.is_active(DiskPressure), "{free} of {total}");
        }
    }

    #[test]
    fn short_fill_of_disk_stays_visible_for_heartbeats() {
        let (health, start) = (NodeConditions::default(), Instant::now());
        let look = |free: u64, millis: u64| {
            let disk = DiskUsage { total: Bytes(100 * GIB), used: Bytes(100 * GIB - free) };
            health.observe_disk(Some(disk), start + Duration::from_millis(millis));
            health.messages()
        };
        assert!(look(50 * GIB, 0).is_empty());
        let full = look(0, 500);
        assert_eq!(full, ["the disk of the data directory has 0B free of 100GiB; remove images or files"]);
        assert_eq!(look(50 * GIB, 1000), full);
        assert_eq!(look(50 * GIB, 15_499), full);
        assert!(look(50 * GIB, 15_500).is_empty());
    }

    #[test]
    fn memory_pressure_has_share_size_and_stall() {
        let health = NodeConditions::default();
        let look = |available: u64, total: u64, stall: f64| {
            let memory = MemoryUsage { total: Bytes(total), used: Bytes(total - available) };
            health.observe_memory(Some(memory), Some(MemoryStall(stall)));
            health.is_active(MemoryPressure)
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
        let output = "memory is short: 100MiB of 64GiB are available; give tasks limits, or run fewer here";
        assert_eq!(health.messages(), [output]);
        look(GIB, 64 * GIB, 42.4);
        let text =
            "memory is short: all tasks stalled on it for 42 % of the last minute; run fewer tasks here";
        assert_eq!(health.messages(), [text]);
        health.observe_memory(None, None);
        assert!(health.conditions().is_empty());
    }

    #[test]
    fn clock_skew_has_hysteresis() {
        let health = NodeConditions::default();
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
            health.observe_clock(offset);
            assert_eq!(health.is_active(ClockSkew), off, "{offset}");
        }
        health.observe_clock(-2_540);
        assert_eq!(health.messages(), ["this machine's clock is 2.5 s behind its manager's; set it by NTP"]);
        health.observe_clock(3_000);
        assert_eq!(
            health.messages(),
            ["this machine's clock is 3.0 s ahead of its manager's; set it by NTP"]
        );
    }
}
