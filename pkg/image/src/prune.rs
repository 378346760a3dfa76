//! Selects images for removal: those unused for long and, when the disk is nearly full, those not in use.
//! Pure: the caller lists and removes.

use std::collections::HashMap;
use std::time::Duration;

use warren_registry::Reference;
use warren_types::Timestamp;

use crate::images::{ImagePart, ListedImage};

/// When images are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrunePolicy {
    /// An image unused for this long is removed; zero: every image not in use. `None` keeps images while
    /// there is space.
    pub max_age: Option<Duration>,
    /// An image that was pulled, imported or used within this time is kept, even under disk pressure.
    pub grace: Duration,
    /// Disk usage in percent at which removal of unused images starts.
    pub high_watermark: u8,
    /// Disk usage in percent at which removal stops.
    pub low_watermark: u8,
    /// Limit on names removed per run.
    pub max_removals: usize,
}

impl Default for PrunePolicy {
    fn default() -> Self {
        Self {
            max_age: Some(Duration::from_secs(14 * 86_400)),
            grace: Duration::from_secs(600),
            high_watermark: 85,
            low_watermark: 75,
            max_removals: 10,
        }
    }
}

/// Usage of the file system that holds the images, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Used bytes, by any process.
    pub used: u64,
    /// Size in bytes.
    pub total: u64,
}

/// Why an image is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneReason {
    /// Unused for longer than `max_age`.
    Unused,
    /// The disk is nearly full and the image is not in use.
    DiskPressure,
}

/// An image to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneCandidate<'a> {
    /// The image. Its name is for [`crate::ImageStore::remove_listed`].
    pub image: &'a ListedImage,
    /// Why it is removed.
    pub reason: PruneReason,
    /// Bytes that this should free: its parts that no kept or later removed image has.
    pub freed_bytes: u64,
}

/// Decides which images to remove now, the least recently used first. `in_use` lists the images of tasks,
/// running or about to run. An image with several names is removed with the last of them.
pub fn plan_prune<'a>(
    images: &'a [ListedImage],
    in_use: &[Reference],
    now: Timestamp,
    disk: FilesystemUsage,
    policy: &PrunePolicy,
) -> Vec<PruneCandidate<'a>> {
    let mut users: HashMap<&ImagePart, usize> = HashMap::new();
    for part in images.iter().flat_map(|image| image.parts.keys()) {
        *users.entry(part).or_default() += 1;
    }
    let is_free = |image: &&ListedImage| {
        now.saturating_since(image.updated.max(image.last_used)) >= policy.grace
            && !in_use.iter().any(|reference| image.matches(reference))
    };
    let mut free: Vec<&ListedImage> = images.iter().filter(is_free).collect();
    free.sort_by_key(|image| (image.last_used, &image.reference));
    let has_pressure = is_above(disk.used, disk.total, policy.high_watermark);
    let mut used = disk.used;
    let mut candidates = Vec::new();
    for image in free {
        let is_old = policy.max_age.is_some_and(|most| now.saturating_since(image.last_used) >= most);
        let reason = match is_old {
            true => PruneReason::Unused,
            false if has_pressure && is_above(used, disk.total, policy.low_watermark) => {
                PruneReason::DiskPressure
            }
            // The images are sorted by last use, so the rest was used more recently.
            false => break,
        };
        if candidates.len() == policy.max_removals {
            break;
        }
        let mut frees = 0u64;
        for (part, bytes) in &image.parts {
            let left = users.get_mut(part).expect("every part was counted");
            *left -= 1;
            if *left == 0 {
                frees = frees.saturating_add(*bytes);
            }
        }
        used = used.saturating_sub(frees);
        candidates.push(PruneCandidate { image, reason, freed_bytes: frees });
    }
    candidates
}

/// Whether at least `percent` of a disk is used. A disk of size 0 was not measured and is not full.
fn is_above(used: u64, total: u64, percent: u8) -> bool {
    total > 0 && u128::from(used) * 100 >= u128::from(total) * u128::from(percent)
}

#[cfg(test)]
mod tests;
