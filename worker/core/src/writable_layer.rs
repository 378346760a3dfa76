//! Which task ends because of its writable layer: one that has more than its limit, or the one that has most while the
//! disk of the layers is nearly full. And when a layer is measured again.

use std::time::Duration;

use warren_types::{Bytes, TaskId};

use crate::display::format_size;

/// Between two measurements of a layer.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// Between two of a layer that has more than half of its limit.
const NEAR_LIMIT_INTERVAL: Duration = Duration::from_secs(2);
/// Measuring looks at each file, so it takes at most this part of the time.
const MEASURE_SHARE: u32 = 20;
/// The disk is short: less than this percentage is free, and less than this. The node gets no new tasks from twice as
/// much on.
const RESERVE_PERCENT: u64 = 5;
const RESERVE: Bytes = Bytes(1 << 30);
/// The same for inodes.
const INODE_RESERVE: u64 = 10_000;
/// A layer with less than this part of the reserve does not fill the disk.
const SMALL_SHARE: u64 = 16;

/// What a writable layer was measured to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredLayer {
    /// The task of the layer.
    pub task: TaskId,
    /// Space on the disk.
    pub bytes: Bytes,
    /// Number of files and directories.
    pub inodes: u64,
}

/// The disk of the writable layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerDisk {
    /// Its size.
    pub total: Bytes,
    /// What is free for programs that are not root.
    pub free: Bytes,
    /// How many inodes it has; 0 if it has no fixed number.
    pub inodes: u64,
    /// How many of them are free.
    pub free_inodes: u64,
}

/// When a layer with a limit is measured again, after a measurement that took so long. `None`: it failed.
pub fn next_measurement(found: Option<Bytes>, limit: Bytes, took: Duration) -> Duration {
    let is_near = found.is_some_and(|bytes| bytes.0 > limit.0 / 2);
    (if is_near { NEAR_LIMIT_INTERVAL } else { MEASURE_INTERVAL }).max(took * MEASURE_SHARE)
}

/// When the layers are measured again while the disk is short, after a round that took so long. What was removed is
/// free by then.
pub fn next_round(took: Duration) -> Duration {
    MEASURE_INTERVAL.max(took * MEASURE_SHARE)
}

/// Why a task with this limit ends, if its layer has more.
pub fn limit_excess(found: Bytes, limit: Bytes) -> Option<String> {
    (found > limit).then(|| {
        let (found, limit) = (format_size(found), format_size(limit));
        format!("its writable layer has {found} of {limit} (--storage-limit)")
    })
}

impl LayerDisk {
    /// Whether a task must end, so that the node keeps room to work.
    pub fn is_short(&self) -> bool {
        self.lacks_space() || self.lacks_inodes()
    }

    fn reserve(&self) -> Bytes {
        Bytes(self.total.0 / 100 * RESERVE_PERCENT).min(RESERVE)
    }

    fn inode_reserve(&self) -> u64 {
        (self.inodes / 100 * RESERVE_PERCENT).min(INODE_RESERVE)
    }

    fn lacks_space(&self) -> bool {
        self.free < self.reserve()
    }

    fn lacks_inodes(&self) -> bool {
        self.free_inodes < self.inode_reserve()
    }

    /// The task that ends because the disk is short, and why: the one whose layer has most of what is short. None if
    /// the layers do not fill the disk.
    pub fn select_eviction(&self, layers: &[MeasuredLayer]) -> Option<(TaskId, String)> {
        let (lacks_space, lacks_inodes) = (self.lacks_space(), self.lacks_inodes());
        let (use_of, reserve): (fn(&MeasuredLayer) -> u64, u64) = match (lacks_space, lacks_inodes) {
            (true, _) => (|layer: &MeasuredLayer| layer.bytes.0, self.reserve().0),
            (false, true) => (|layer: &MeasuredLayer| layer.inodes, self.inode_reserve()),
            (false, false) => return None,
        };
        let most = layers.iter().max_by_key(|layer| (use_of(layer), layer.task))?;
        let (free, found) = match lacks_space {
            true => (format_size(self.free), format_size(most.bytes)),
            false => (format!("{} inodes", self.free_inodes), format!("{} files", most.inodes)),
        };
        (use_of(most) > reserve / SMALL_SHARE).then(|| {
            let reason = format!(
                "evicted: disk pressure: the disk of the containers has {free} free, and its writable layer is the \
                 largest with {found}; limit it with --storage-limit"
            );
            (most.task, reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use warren_types::{Id, ServiceId};

    use super::*;

    fn layer(number: u64, bytes: u64, inodes: u64) -> MeasuredLayer {
        let task = TaskId { service: ServiceId(Id(1)), number };
        MeasuredLayer { task, bytes: Bytes(bytes), inodes }
    }

    #[test]
    fn layer_above_its_limit_ends_its_task() {
        let limit = Bytes(2_000_000_000);
        assert_eq!(limit_excess(limit, limit), None);
        let reason = limit_excess(Bytes(2_300_000_000), limit).unwrap();
        assert_eq!(reason, "its writable layer has 2.3 GB of 2 GB (--storage-limit)");
    }

    #[test]
    fn layers_are_measured_sooner_near_their_limit_and_later_if_it_takes_long() {
        let seconds = Duration::from_secs;
        for (found, took, expected) in [
            (Some(0), seconds(0), 10),
            (Some(50), seconds(0), 10),
            (Some(51), seconds(0), 2),
            (Some(51), seconds(1), 20),
            (Some(0), seconds(30), 600),
            (None, seconds(0), 10),
            (None, seconds(30), 600),
        ] {
            let next = next_measurement(found.map(Bytes), Bytes(100), took);
            assert_eq!(next, seconds(expected), "{found:?} {took:?}");
        }
        assert_eq!((next_round(seconds(0)), next_round(seconds(3))), (seconds(10), seconds(60)));
    }

    #[test]
    fn disk_is_short_by_share_and_amount() {
        const GIB: u64 = 1 << 30;
        let short = |total: u64, free: u64, inodes: u64, free_inodes: u64| {
            LayerDisk { total: Bytes(total), free: Bytes(free), inodes, free_inodes }.is_short()
        };
        assert!(!short(100 * GIB, GIB, 0, 0), "a file system without a number of inodes");
        assert!(short(100 * GIB, GIB - 1, 0, 0));
        assert!(!short(10 * GIB, 6 * GIB / 10, 0, 0) && short(10 * GIB, 4 * GIB / 10, 0, 0));
        assert!(!short(GIB, GIB, 100_000, 5000) && short(GIB, GIB, 100_000, 4999));
        assert!(!short(GIB, GIB, 10_000_000, 10_000) && short(GIB, GIB, 10_000_000, 9999));
    }

    #[test]
    fn largest_layer_is_evicted_if_it_is_worth_it() {
        let full =
            LayerDisk { total: Bytes(100_000_000), free: Bytes(0), inodes: 100_000, free_inodes: 50_000 };
        let evicted = |disk: &LayerDisk, layers: &[MeasuredLayer]| {
            disk.select_eviction(layers).map(|(task, reason)| (task.number, reason))
        };
        let layers = [layer(1, 300_000, 900), layer(2, 20_000_000, 1), layer(3, 1_000_000, 10_000)];
        let (number, reason) = evicted(&full, &layers).unwrap();
        assert_eq!(number, 2);
        let expected = "evicted: disk pressure: the disk of the containers has 0 B free, and its writable layer is the \
                        largest with 20 MB; limit it with --storage-limit";
        assert_eq!(reason, expected);
        // Something else fills the disk.
        assert_eq!(evicted(&full, &layers[..1]), None);
        assert_eq!(evicted(&full, &[]), None);
        let without_inodes = LayerDisk { free: full.total, free_inodes: 7, ..full };
        let (number, reason) = evicted(&without_inodes, &layers).unwrap();
        assert!(
            number == 3 && reason.contains("7 inodes free") && reason.contains("10000 files"),
            "{reason}"
        );
        let roomy = LayerDisk { free: full.total, ..full };
        assert_eq!(evicted(&roomy, &layers), None);
    }
}
