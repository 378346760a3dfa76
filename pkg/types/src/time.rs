//! Points in time as data. Nothing here reads a clock: the leader sets timestamps, all others receive them.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// How long after `earlier` this is; zero when it is not after.
    pub fn saturating_since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    /// UTC to the second, as RFC 3339 writes it: `2026-11-20T14:30:05Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        f.pad(&format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
    }
}

/// Year, month and day of the Gregorian calendar, `days` after 1 January 1970. Counts in years that begin in
/// March, so that the leap day is the last one (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let since_march_0 = days + 719_468;
    let (era, day) = (since_march_0 / DAYS_OF_400_YEARS, since_march_0 % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let january_or_february = month >= 10;
    let month = if january_or_february { month - 9 } else { month + 3 };
    (era * 400 + year + u64::from(january_or_february), month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_shown_as_dates() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399_999, "2000-02-28T23:59:59Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_795_185_005_000, "2026-11-20T14:30:05Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ];
        for (milliseconds, text) in cases {
            assert_eq!(Timestamp(milliseconds).to_string(), text);
        }
        assert!(!Timestamp(u64::MAX).to_string().is_empty());
    }
}
