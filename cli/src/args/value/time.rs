//! Parsers for times, durations and numbers of lines.

use std::time::Duration;

use warren_client::EventStart;
use warren_types::Timestamp;

use super::duration;

/// An RFC 3339 time, or a duration before now.
pub fn since(text: &str) -> Result<Timestamp, String> {
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    since_at(text, Timestamp(now))
}

fn since_at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        return Ok(Timestamp(now.0.saturating_sub(ago)));
    }
    let wrong = || "give a duration before now, like 10m, or a time like 2026-11-20T14:30:00Z".to_owned();
    let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    u64::try_from(time.as_millisecond()).map(Timestamp).map_err(|_| wrong())
}

/// Where events begin: a time, or how long ago; or an index in the log, with or without the number of an event.
pub fn event_start(text: &str) -> Result<EventStart, String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (index, number) = match text.split_once('.') {
        Some((index, number)) => (index, Some(number)),
        None => (text, None),
    };
    if !is_number(index) || number.is_some_and(|number| !is_number(number)) {
        let wrong = |_| "give a time like 10m or 2026-11-20T14:30:00Z, or an index like 812".to_owned();
        return since(text).map(|at| EventStart::Since(at.0)).map_err(wrong);
    }
    let large = |_| format!("{text} is larger than any index");
    let number = number.map(|number| number.parse().map_err(large)).transpose()?;
    Ok(EventStart::After { index: index.parse().map_err(large)?, number })
}

/// Number of last lines; `None` is all. A newtype, since clap takes an `Option` for an optional flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailLines(pub Option<u64>);

/// A number of lines, or `all`.
pub fn tail(text: &str) -> Result<TailLines, String> {
    match text {
        "all" => Ok(TailLines(None)),
        number => match number.parse() {
            Ok(number) => Ok(TailLines(Some(number))),
            Err(_) => Err("give a number of lines, or all".to_owned()),
        },
    }
}

/// Lifetime of a token; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenTtl(pub Option<Duration>);

/// A lifetime, or `never` for an unlimited one.
pub fn ttl(text: &str) -> Result<TokenTtl, String> {
    match text {
        "never" => Ok(TokenTtl(None)),
        text => match duration(text)? {
            Duration::ZERO => Err("the lifetime is zero; give a longer one, or never".into()),
            ttl => Ok(TokenTtl(Some(ttl))),
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
            assert!(since_at(bad, now).unwrap_err().starts_with("give a duration before now"), "{bad}");
        }
    }

    #[test]
    fn events_begin_at_a_time_or_an_index() {
        let after = |index, number| Ok(EventStart::After { index, number });
        assert_eq!((event_start("812"), event_start("812.3")), (after(812, None), after(812, Some(3))));
        assert_eq!(event_start("2026-11-20T14:18:00Z"), Ok(EventStart::Since(1_795_184_280_000)));
        assert!(matches!(event_start("10m"), Ok(EventStart::Since(_))));
        for bad in ["", "812.", ".3", "yesterday", "99999999999999999999"] {
            assert!(event_start(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_number_of_lines_and_a_time_to_live_may_be_without_bound() {
        assert_eq!(
            (tail("0"), tail("12"), tail("all")),
            (Ok(TailLines(Some(0))), Ok(TailLines(Some(12))), Ok(TailLines(None)))
        );
        assert!(tail("-1").is_err() && tail("").is_err() && tail("ALL").is_err());
        let day = Duration::from_secs(86_400);
        assert_eq!((ttl("24h"), ttl("never")), (Ok(TokenTtl(Some(day))), Ok(TokenTtl(None))));
        assert!(ttl("0s").is_err() && ttl("").is_err() && ttl("forever").is_err());
    }
}
