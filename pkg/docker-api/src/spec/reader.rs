//! Reads the fields of a spec, and collects what is wrong with their paths.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use warren_client::SeccompConfig;
use warren_types::Violations;

use crate::model::Pairs;

/// Nanoseconds of a millisecond, in which Warren counts.
const NANOS_PER_MILLI: i64 = 1_000_000;

/// A volume as a mount describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedVolume {
    pub name: String,
    pub driver: String,
    pub options: Pairs,
    pub labels: Pairs,
}

/// What was found in a spec.
#[derive(Debug, Default)]
pub struct SpecReader {
    pub wrong: Violations,
    pub warnings: Vec<String>,
    pub volumes: Vec<MountedVolume>,
    pub profiles: Vec<SeccompConfig>,
}

impl SpecReader {
    /// A field that is wrong or not supported.
    pub fn refuse(&mut self, path: impl Into<String>, message: impl Display) {
        self.wrong.add(path, message);
    }

    /// The same, if the field is set.
    pub fn refuse_if(&mut self, is_set: bool, path: impl Into<String>, message: impl Display) {
        if is_set {
            self.refuse(path, message);
        }
    }

    /// A field that has no effect.
    pub fn warn(&mut self, path: &str, message: impl Display) {
        self.warnings.push(format!("{path}: {message}"));
    }

    /// A field of which only one value is possible; empty is the same.
    pub fn only(&mut self, path: impl Into<String>, text: Option<String>, value: &str) {
        if let Some(text) = text.filter(|text| !text.is_empty() && text != value) {
            self.refuse(
                path,
                format!("{text:?} is not supported by this version; give {value}, or leave it out"),
            );
        }
    }

    /// The value of a text; `None` if it is wrong.
    pub fn parse<T: FromStr<Err: Display>>(&mut self, path: impl Into<String>, text: &str) -> Option<T> {
        text.parse().map_err(|error| self.refuse(path, error)).ok()
    }

    /// The value of a text, the default if it is missing, empty or wrong.
    pub fn parse_or_default<T: FromStr<Err: Display> + Default>(
        &mut self,
        path: impl Into<String>,
        text: Option<&str>,
    ) -> T {
        let text = text.filter(|text| !text.is_empty());
        text.and_then(|text| self.parse(path, text)).unwrap_or_default()
    }

    /// A number of nanoseconds; `None` if it is missing or wrong.
    pub fn duration(&mut self, path: impl Into<String>, nanos: Option<i64>) -> Option<Duration> {
        let nanos = nanos?;
        match u64::try_from(nanos) {
            Ok(_) if nanos % NANOS_PER_MILLI != 0 => {
                self.refuse(path, format!("{nanos} ns are not whole milliseconds"));
                None
            }
            Ok(nanos) => Some(Duration::from_nanos(nanos)),
            Err(_) => {
                self.refuse(path, format!("{nanos} is negative; give a number of nanoseconds"));
                None
            }
        }
    }

    /// The same; `None` also for zero, which many clients send for a field that was not set.
    pub fn positive_duration(&mut self, path: impl Into<String>, nanos: Option<i64>) -> Option<Duration> {
        self.duration(path, nanos.filter(|nanos| *nanos != 0))
    }

    /// A number in the range of its type; `None` if it is missing, zero or wrong.
    pub fn positive<T: TryFrom<i64>>(&mut self, path: impl Into<String>, number: Option<i64>) -> Option<T> {
        let number = number.filter(|number| *number != 0)?;
        let converted = T::try_from(number);
        self.refuse_if(converted.is_err(), path, format!("{number} is out of range"));
        converted.ok()
    }
}

/// Nanoseconds as Docker has them.
pub fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// A text; `None` if it is empty.
pub fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}
