//! When images were used last, which decides what goes when the disk fills.
//!
//! It is written as a label on containerd's record, so that an agent that starts again knows it, and seldom:
//! a start must not wait for the disk because of it.

use std::collections::HashMap;
use std::time::Duration;

use warren_types::Timestamp;

use super::Images;
use super::record::Record;
use crate::error::Error;
use crate::reference::Reference;

/// So often at most the last use of one image is written. The label may be late by this.
pub const TOUCH_EVERY: Duration = Duration::from_secs(3600);
/// Milliseconds since the Unix epoch, in decimal.
const LABEL: &str = "warren.last-used";
/// Names kept in memory; when there are more, all are forgotten, and read from the store again.
const REMEMBERED: usize = 1024;

/// What this process knows of the last use of an image.
#[derive(Clone, Debug)]
pub(super) struct Touched {
    /// The name of the record it is about.
    pub record: String,
    /// What the label says.
    written: Timestamp,
    pub used: Timestamp,
}

impl Images {
    /// Notes that an image is used now, and writes it down if that was not done within [`TOUCH_EVERY`]. Says
    /// whether it was written: not for an image that is not here either.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn touch(&self, reference: &Reference, now: Timestamp) -> Result<bool, Error> {
        let key = reference.record();
        if let Some(touched) = self.touched.lock().expect("no holder panics").get_mut(&key)
            && is_recent(touched.written, now)
        {
            touched.used = touched.used.max(now);
            return Ok(false);
        }
        let Some(record) = self.find(reference).await? else { return Ok(false) };
        let before = written(&record);
        let is_news = !before.is_some_and(|before| is_recent(before, now));
        if is_news {
            let labels = HashMap::from([(LABEL.to_owned(), now.0.to_string())]);
            if !self.update(&record.name, &record.target, labels, &format!("labels.{LABEL}")).await? {
                return Ok(false);
            }
        }
        let written = before.filter(|_| !is_news).unwrap_or(now);
        let mut all = self.touched.lock().expect("no holder panics");
        if all.len() >= REMEMBERED {
            all.clear();
        }
        all.insert(key, Touched { record: record.name, written, used: now });
        Ok(is_news)
    }

    /// When an image was used last: as its label says, as this process knows, or else when it came.
    pub(super) fn last_used(&self, record: &Record) -> Timestamp {
        let touched = self.touched.lock().expect("no holder panics");
        let known = touched.values().filter(|touched| touched.record == record.name);
        let stored = written(record).unwrap_or(record.created);
        known.map(|touched| touched.used).fold(stored, Timestamp::max)
    }
}

fn written(record: &Record) -> Option<Timestamp> {
    record.labels.get(LABEL)?.parse().ok().map(Timestamp)
}

/// A time that has not come yet was written by a clock that was wrong, and is corrected.
fn is_recent(written: Timestamp, now: Timestamp) -> bool {
    written <= now && now.since(written) < TOUCH_EVERY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_come_is_not_recent() {
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
