//! Which task ends because of its writable layer: one that has more than its limit, or the one that has most while the
//! disk of the layers is nearly full. And when a layer is measured again.

use std::time::Duration;

use warren_types::{Bytes, TaskId};

use crate::display::format_size;

/// Between two measurements of a layer.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// Between two of a layer that has more than half of its limit.
const NEAR_LIMIT_INTERVAL: Duration = Duration::from_secs(2);
/// Measuring looks at each file, so it takes at most this part of the time of a node.
const MEASURE_SHARE: u32 = 20;
/// How long an ended task keeps others from being ended. Its process may hang in the kernel, and its layer may have
/// millions of files.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(300);
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
    /// It has more, in directories that are nested too deep to be measured.
    pub is_too_deep: bool,
    /// It has more, for which there was no time.
    pub is_cut_off: bool,
}

impl MeasuredLayer {
    fn is_incomplete(&self) -> bool {
        self.is_too_deep || self.is_cut_off
    }
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

/// When a layer with a limit is measured again. `None`: it could not be measured.
pub fn next_measurement(found: Option<Bytes>, limit: Bytes) -> Duration {
    let is_near = found.is_some_and(|bytes| bytes.0 > limit.0 / 2);
    if is_near { NEAR_LIMIT_INTERVAL } else { MEASURE_INTERVAL }
}

/// When the next layer of the node with a limit is measured at the earliest, after measurements that took so long.
pub fn next_pass(took: Duration) -> Duration {
    took * MEASURE_SHARE
}

/// When the layers are measured again while the disk is short, after a round that took so long. What was removed is
/// free by then.
pub fn next_round(took: Duration) -> Duration {
    MEASURE_INTERVAL.max(took * MEASURE_SHARE)
}

/// Whether no other task ends yet: some were ended so long ago and still have a process or their layer.
pub fn awaits_removal(ended_since: impl IntoIterator<Item = Duration>) -> bool {
    ended_since.into_iter().any(|since| since < REMOVAL_TIMEOUT)
}

/// Why a task with this limit ends, if its layer has more, or may have.
pub fn limit_excess(layer: &MeasuredLayer, limit: Bytes) -> Option<String> {
    let (found, allowed) = (format_size(layer.bytes), format_size(limit));
    if layer.bytes > limit {
        return Some(format!("its writable layer has {found} of {allowed} (--storage-limit)"));
    }
    layer.is_too_deep.then(|| {
        format!(
            "its writable layer has directories that are nested too deep to be measured, beside {found} of {allowed} \
             (--storage-limit)"
        )
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

    /// The task that ends because the disk is short, and why: the one whose layer has most of what is short. One that
    /// was not measured completely comes first, since what it has is not known. None if all layers together do not have
    /// what is missing: something else fills the disk.
    pub fn select_eviction(&self, layers: &[MeasuredLayer]) -> Option<(TaskId, String)> {
        let (lacks_space, lacks_inodes) = (self.lacks_space(), self.lacks_inodes());
        let (use_of, reserve, free): (fn(&MeasuredLayer) -> u64, u64, u64) = match (lacks_space, lacks_inodes)
        {
            (true, _) => (|layer: &MeasuredLayer| layer.bytes.0, self.reserve().0, self.free.0),
            (false, true) => (|layer: &MeasuredLayer| layer.inodes, self.inode_reserve(), self.free_inodes),
            (false, false) => return None,
        };
        let most = layers.iter().max_by_key(|layer| (layer.is_incomplete(), use_of(layer), layer.task))?;
        let all = layers.iter().map(use_of).fold(0, u64::saturating_add);
        let fills_disk = use_of(most) > reserve / SMALL_SHARE && all >= reserve.saturating_sub(free);
        if !fills_disk && !most.is_incomplete() {
            return None;
        }
        let (free, found) = match lacks_space {
            true => (format_size(self.free), format_size(most.bytes)),
            false => (format!("{} inodes", self.free_inodes), format!("{} files", most.inodes)),
        };
        let why = match most.is_incomplete() {
            true => format!("cannot be measured completely, and has at least {found}"),
            false => format!("is the largest with {found}"),
        };
        let reason = format!(
            "evicted: disk pressure: the disk of the containers has {free} free, and its writable layer {why}; limit \
             it with --storage-limit"
        );
        Some((most.task, reason))
    }
}

#[cfg(test)]
mod tests {
    use warren_types::{Id, ServiceId};

    use super::*;

    fn layer(number: u64, bytes: u64, inodes: u64) -> MeasuredLayer {
        let task = TaskId { service: ServiceId(Id(1)), number };
        MeasuredLayer { task, bytes: Bytes(bytes), inodes, is_too_deep: false, is_cut_off: false }
    }

    #[test]
    fn layer_above_its_limit_ends_its_task() {
        let limit = Bytes(2_000_000_000);
        let exact = layer(1, limit.0, 9);
        assert_eq!(limit_excess(&exact, limit), None);
        let reason = limit_excess(&layer(1, 2_300_000_000, 9), limit).unwrap();
        assert_eq!(reason, "its writable layer has 2.3 GB of 2 GB (--storage-limit)");
        // What was found before the time was over counts.
        assert_eq!(limit_excess(&MeasuredLayer { is_cut_off: true, ..exact }, limit), None);
        let deep = MeasuredLayer { is_too_deep: true, ..layer(1, 0, 9) };
        let expected = "its writable layer has directories that are nested too deep to be measured, beside 0 B of 2 GB \
                        (--storage-limit)";
        assert_eq!(limit_excess(&deep, limit).unwrap(), expected);
        let both = MeasuredLayer { is_too_deep: true, ..layer(1, 2_300_000_000, 9) };
        assert_eq!(limit_excess(&both, limit).unwrap(), reason);
    }

    #[test]
    fn layers_are_measured_sooner_near_their_limit_and_later_if_it_takes_long() {
        let seconds = Duration::from_secs;
        for (found, expected) in [(Some(0), 10), (Some(50), 10), (Some(51), 2), (None, 10)] {
            assert_eq!(next_measurement(found.map(Bytes), Bytes(100)), seconds(expected), "{found:?}");
        }
        assert_eq!((next_pass(seconds(0)), next_pass(seconds(20))), (seconds(0), seconds(400)));
        assert_eq!((next_round(seconds(0)), next_round(seconds(3))), (seconds(10), seconds(60)));
    }

    #[test]
    fn ended_task_keeps_others_for_some_minutes() {
        let seconds = Duration::from_secs;
        assert!(!awaits_removal([]) && awaits_removal([seconds(0)]) && awaits_removal([seconds(299)]));
        assert!(!awaits_removal([seconds(300)]) && !awaits_removal([seconds(300), seconds(900)]));
        assert!(awaits_removal([seconds(900), seconds(5)]), "the second one frees something");
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
        // Five megabytes are missing, and three are not.
        let all = [layer(1, 2_000_000, 1), layer(2, 1_000_000, 1)];
        assert_eq!(evicted(&full, &all), None);
        let nearly_full = LayerDisk { free: Bytes(2_000_000), ..full };
        assert_eq!(evicted(&nearly_full, &all).unwrap().0, 1);
        // What was not measured may be all of it.
        for hidden in [
            MeasuredLayer { is_too_deep: true, ..layer(4, 100, 7) },
            MeasuredLayer { is_cut_off: true, ..layer(4, 100, 7) },
        ] {
            let (number, reason) = evicted(&full, &[layers[1], hidden, layers[2]]).unwrap();
            assert_eq!(number, 4);
            assert!(
                reason.contains("its writable layer cannot be measured completely, and has at least 100 B;"),
                "{reason}"
            );
            assert_eq!(evicted(&full, &[layers[0], hidden]).unwrap().0, 4);
        }
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
