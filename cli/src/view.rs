//! Displayed objects: stable documents with camelCase fields, ids as text, times in RFC 3339, quantities with units.
//! Absent values are left out.

pub mod audit;
pub mod ca;
pub mod cluster;
pub mod context;
pub mod document;
pub mod event;
pub mod forecast;
pub mod image;
pub mod key;
pub mod manager;
pub mod network;
pub mod node;
pub mod process;
pub mod revision;
pub mod secret_object;
pub mod service;
pub mod spec_diff;
pub mod stack;
pub mod task;
pub mod token;
pub mod top;
mod usage;
pub mod user;
pub mod user_key;
pub mod verification;
pub mod volume;
pub mod why;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use warren_types::{Timestamp, Violations};

use crate::failure::CommandError;

/// A point in time in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeView(pub Timestamp);

impl TimeView {
    /// From milliseconds since the epoch.
    pub fn new(millis: u64) -> Self {
        Self(Timestamp(millis))
    }
}

impl Serialize for TimeView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = i64::try_from(self.0.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        // A time outside the calendar stays a number.
        match time {
            Some(time) => serializer.collect_str(&format_args!("{time:.3}")),
            None => serializer.serialize_u64(self.0.0),
        }
    }
}

/// The time of this machine.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Time since then, in at most two units: `8s`, `5m`, `3h12m`, `12d`.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.saturating_since(since).as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..600 if !seconds.is_multiple_of(60) => format!("{minutes}m{}s", seconds % 60),
        60..3600 => format!("{minutes}m"),
        3600..36_000 if !minutes.is_multiple_of(60) => format!("{hours}h{}m", minutes % 60),
        3600..172_800 => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

/// Time until then, formatted as [`age`] and rounded up to seconds.
pub fn until(end: Timestamp, now: Timestamp) -> String {
    age(now, Timestamp(end.0.saturating_add(999)))
}

/// Formats a duration: `10s`, `1m30s`.
pub fn duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

/// Rounded down, for tables: `512MiB`, `23.4GiB`.
pub fn rounded_bytes(bytes: u64) -> String {
    let unit =
        [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)].into_iter().find(|(_, bits)| bytes >> bits > 0);
    let Some((name, bits)) = unit else { return format!("{bytes}B") };
    let tenths = ((bytes % (1 << bits)) * 10) >> bits;
    if tenths == 0 { format!("{}{name}", bytes >> bits) } else { format!("{}.{tenths}{name}", bytes >> bits) }
}

/// The first ten characters of an id.
pub fn short_id(id: &str) -> String {
    id.chars().take(10).collect()
}

/// The first twelve hex digits of an image digest.
pub fn short_digest(digest: &str) -> String {
    digest.strip_prefix("sha256:").unwrap_or(digest).chars().take(12).collect()
}

/// The first names, or all: `web, api, db and 2 others`.
pub fn joined_names(names: &[String], all: bool) -> String {
    const FEW: usize = 3;
    let shown = names.iter().take(if all { names.len() } else { FEW }).map(String::as_str);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(FEW) {
        0 => shown,
        _ if all => shown,
        1 => format!("{shown} and 1 other"),
        more => format!("{shown} and {more} others"),
    }
}

/// `None` for an empty text.
fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Maps violations in a response to a failure.
pub fn invalid_response(what: &str) -> impl Fn(Violations) -> CommandError {
    let what = format!("{what} cannot be shown");
    move |why| CommandError::unreadable_answer(what.clone(), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let age = |seconds: u64| age(Timestamp(1000), Timestamp(1000 + seconds * 1000));
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (61, "1m1s"),
            (600, "10m"),
            (3600, "1h"),
            (3660, "1h1m"),
            (40_000, "11h"),
            (172_800, "2d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(age(seconds), expected);
        }
        assert_eq!(super::age(Timestamp(5), Timestamp(0)), "0s");
        assert_eq!(until(Timestamp(4001), Timestamp(1000)), "4s");
        assert_eq!(until(Timestamp(4000), Timestamp(1000)), "3s");
        assert_eq!(until(Timestamp(4000), Timestamp(9000)), "0s");
        assert_eq!(
            (short_digest("sha256:0123456789abcdef"), short_digest("")),
            ("0123456789ab".into(), String::new())
        );
    }

    #[test]
    fn amounts_are_rounded_down_to_what_fits_a_table() {
        let cases =
            [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (512 << 20, "512MiB"), (25_165_824_000, "23.4GiB")];
        for (bytes, expected) in cases {
            assert_eq!(rounded_bytes(bytes), expected);
        }
        assert_eq!(rounded_bytes(u64::MAX), "16777215.9TiB");
        assert_eq!(duration(Duration::from_millis(90_500)), "1m30s500ms");
    }

    #[test]
    fn long_name_list_is_shortened() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let output = |count: usize, all| joined_names(&names[..count], all);
        assert_eq!((output(0, false), output(3, false)), (String::new(), "a, b, c".to_owned()));
        assert_eq!((output(4, false).as_str(), output(5, false).as_str()), {
            ("a, b, c and 1 other", "a, b, c and 2 others")
        });
        assert_eq!(output(5, true), "a, b, c, d, e");
    }

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        let time = |millis| serde_json::to_string(&TimeView::new(millis)).unwrap();
        assert_eq!(time(1_795_184_280_120), "\"2026-11-20T14:18:00.120Z\"");
        assert_eq!(time(0), "\"1970-01-01T00:00:00.000Z\"");
        assert_eq!(time(u64::MAX), u64::MAX.to_string());
    }
}
