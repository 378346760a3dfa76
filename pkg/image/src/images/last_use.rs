//! Last use of images, which decides the removal order when the disk is nearly full.
//!
//! It is stored as a label on containerd's record, so that it survives an agent restart. It is written
//! rarely: a container start must not wait for the disk because of it.

use std::collections::HashMap;
use std::time::Duration;

use warren_registry::Reference;
use warren_types::Timestamp;

use super::ImageStore;
use super::record::ImageRecord;
use crate::error::Error;

/// Minimum interval between writes of the last use of one image. The label may lag by this.
pub const LAST_USE_INTERVAL: Duration = Duration::from_secs(3600);
/// Milliseconds since the Unix epoch, in decimal.
const LAST_USE_LABEL: &str = "warren.last-used";
/// Limit of cached names; at the limit the cache is cleared and filled from the store again.
const MAX_CACHED_USES: usize = 1024;

/// Cached last use of an image.
#[derive(Clone, Debug)]
pub(super) struct LastUse {
    /// Name of the image record.
    pub record: String,
    /// The time in the label.
    written: Timestamp,
    pub used: Timestamp,
}

impl ImageStore {
    /// Records that an image is in use now, and writes the label if that was not done within
    /// [`LAST_USE_INTERVAL`]. Returns whether it was written; `false` also when the image does not exist.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn mark_used(&self, reference: &Reference, now: Timestamp) -> Result<bool, Error> {
        let key = reference.record_name();
        if let Some(touched) = self.last_uses.lock().expect("no holder panics").get_mut(&key)
            && is_recent(touched.written, now)
        {
            touched.used = touched.used.max(now);
            return Ok(false);
        }
        let Some(record) = self.find(reference).await? else { return Ok(false) };
        let before = parse_last_use(&record);
        let is_news = !before.is_some_and(|before| is_recent(before, now));
        if is_news {
            let labels = HashMap::from([(LAST_USE_LABEL.to_owned(), now.0.to_string())]);
            if !self.update(&record.name, &record.target, labels, &format!("labels.{LAST_USE_LABEL}")).await?
            {
                return Ok(false);
            }
        }
        let written = before.filter(|_| !is_news).unwrap_or(now);
        let mut all = self.last_uses.lock().expect("no holder panics");
        if all.len() >= MAX_CACHED_USES {
            all.clear();
        }
        all.insert(key, LastUse { record: record.name, written, used: now });
        Ok(is_news)
    }

    /// Last use: from the label, from this process, or else the creation time.
    pub(super) fn last_used(&self, record: &ImageRecord) -> Timestamp {
        let touched = self.last_uses.lock().expect("no holder panics");
        let known = touched.values().filter(|touched| touched.record == record.name);
        let stored = parse_last_use(record).unwrap_or(record.created);
        known.map(|touched| touched.used).fold(stored, Timestamp::max)
    }
}

fn parse_last_use(record: &ImageRecord) -> Option<Timestamp> {
    record.labels.get(LAST_USE_LABEL)?.parse().ok().map(Timestamp)
}

/// A time in the future was written by a wrong clock and is corrected.
fn is_recent(written: Timestamp, now: Timestamp) -> bool {
    written <= now && now.saturating_since(written) < LAST_USE_INTERVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn future_time_is_not_recent() {
        let now = Timestamp(10_000_000);
        for (written, recent) in [
            (now.0, true),
            (now.0 + 1, false),
            (now.0 - 3_599_999, true),
            (now.0 - 3_600_000, false),
            (0, false),
        ] {
            assert_eq!(is_recent(Timestamp(written), now), recent, "{written}");
        }
    }
}
