//! Points in time and how far back, as people write them.

use std::time::Duration;

use warren_types::Timestamp;

use super::duration;
use crate::view;

/// A time as RFC 3339 writes it, or how long ago.
pub fn since(text: &str) -> Result<Timestamp, String> {
    since_at(text, view::now())
}

fn since_at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        return Ok(Timestamp(now.0.saturating_sub(ago)));
    }
    let wrong = || "give how long ago, like 10m, or a time like 2026-11-20T14:30:00Z".to_owned();
    let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    u64::try_from(time.as_millisecond()).map(Timestamp).map_err(|_| wrong())
}

/// How many of the last lines; `None` is all. A type of its own, since clap takes an `Option` for a flag that
/// need not be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail(pub Option<u64>);

/// So many lines, or `all`.
pub fn tail(text: &str) -> Result<Tail, String> {
    match text {
        "all" => Ok(Tail(None)),
        number => match number.parse() {
            Ok(number) => Ok(Tail(Some(number))),
            Err(_) => Err("give a number of lines, or all".to_owned()),
        },
    }
}

/// How long something is good for; `None` is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ttl(pub Option<Duration>);

/// How long something is good for, or `never` for no end.
pub fn ttl(text: &str) -> Result<Ttl, String> {
    match text {
        "never" => Ok(Ttl(None)),
        text => match duration(text)? {
            Duration::ZERO => Err("it would be of no use; give a longer time, or never for no end".into()),
            ttl => Ok(Ttl(Some(ttl))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_or_how_long_ago() {
        let now = Timestamp(1_795_184_280_120);
        assert_eq!(since_at("10m", now), Ok(Timestamp(now.0 - 600_000)));
        assert_eq!(since_at("100y", now), Ok(Timestamp(0)));
        assert_eq!(since_at("2026-11-20T14:18:00.120Z", now), Ok(now));
        assert_eq!(since_at("2026-11-20T15:18:00.12+01:00", now), Ok(now));
        for bad in ["", "10", "yesterday", "2026-11-20", "2026-11-20T14:18:00", "1960-01-01T00:00:00Z"] {
            assert!(since_at(bad, now).unwrap_err().starts_with("give how long ago"), "{bad}");
        }
    }

    #[test]
    fn a_number_of_lines_and_a_time_to_live_may_be_without_bound() {
        assert_eq!(
            (tail("0"), tail("12"), tail("all")),
            (Ok(Tail(Some(0))), Ok(Tail(Some(12))), Ok(Tail(None)))
        );
        assert!(tail("-1").is_err() && tail("").is_err() && tail("ALL").is_err());
        let day = Duration::from_secs(86_400);
        assert_eq!((ttl("24h"), ttl("never")), (Ok(Ttl(Some(day))), Ok(Ttl(None))));
        assert!(ttl("0s").is_err() && ttl("").is_err() && ttl("forever").is_err());
    }
}
