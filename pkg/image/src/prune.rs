//! Which images go: those that nobody used for long, and when the disk is nearly full those that nobody uses
//! now. Pure: the caller looks, removes, and looks again.

use std::collections::HashMap;
use std::time::Duration;

use warren_types::Timestamp;

use crate::images::{Listed, Part};
use crate::reference::Reference;

/// When images go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrunePolicy {
    /// An image that was not used for so long goes; zero: every one that is not in use. `None` keeps images
    /// as long as there is room.
    pub max_age: Option<Duration>,
    /// An image that was pulled, imported or used within this stays, whatever the disk says.
    pub grace: Duration,
    /// Used percent of the disk from which on unused images go.
    pub pressure_high: u8,
    /// Used percent of the disk at which that ends.
    pub pressure_low: u8,
    /// The most names that go at once.
    pub cap: usize,
}

impl Default for PrunePolicy {
    fn default() -> Self {
        Self {
            max_age: Some(Duration::from_secs(14 * 86_400)),
            grace: Duration::from_secs(600),
            pressure_high: 85,
            pressure_low: 75,
            cap: 10,
        }
    }
}

/// The file system that holds the images, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What is used of it, by whatever.
    pub used: u64,
    /// Its size.
    pub total: u64,
}

/// Why an image goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneReason {
    /// Nobody used it for longer than images are kept.
    Unused,
    /// The disk is nearly full and nobody uses it now.
    Pressure,
}

/// An image that shall go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doomed<'a> {
    /// The image. Its name is for [`crate::Images::remove_listed`].
    pub image: &'a Listed,
    /// Why it goes.
    pub reason: PruneReason,
    /// Bytes that this should give back: its parts that no image has which stays or goes later.
    pub frees: u64,
}

/// Decides which images go now, the least recently used first. `in_use` is what tasks have, running or about
/// to. An image that several names share goes with the last of them.
pub fn plan_prune<'a>(
    images: &'a [Listed],
    in_use: &[Reference],
    now: Timestamp,
    disk: Disk,
    policy: &PrunePolicy,
) -> Vec<Doomed<'a>> {
    let mut users: HashMap<&Part, usize> = HashMap::new();
    for part in images.iter().flat_map(|image| image.parts.keys()) {
        *users.entry(part).or_default() += 1;
    }
    let is_free = |image: &&Listed| {
        now.since(image.changed.max(image.last_used)) >= policy.grace
            && !in_use.iter().any(|reference| image.is(reference))
    };
    let mut free: Vec<&Listed> = images.iter().filter(is_free).collect();
    free.sort_by_key(|image| (image.last_used, &image.reference));
    let has_pressure = is_above(disk.used, disk.total, policy.pressure_high);
    let mut used = disk.used;
    let mut doomed = Vec::new();
    for image in free {
        let is_old = policy.max_age.is_some_and(|most| now.since(image.last_used) >= most);
        let reason = match is_old {
            true => PruneReason::Unused,
            false if has_pressure && is_above(used, disk.total, policy.pressure_low) => PruneReason::Pressure,
            // Those that follow were used later still.
            false => break,
        };
        if doomed.len() == policy.cap {
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
        doomed.push(Doomed { image, reason, frees });
    }
    doomed
}

/// Whether at least `percent` of a disk are used. One without a size was not measured and is not full.
fn is_above(used: u64, total: u64, percent: u8) -> bool {
    total > 0 && u128::from(used) * 100 >= u128::from(total) * u128::from(percent)
}

#[cfg(test)]
mod tests;
