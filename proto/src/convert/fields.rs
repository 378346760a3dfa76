//! Reads the fields of one message and collects all violations, not only the first.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use warren_types::{Violation, Violations};

/// The violations of the fields read so far. Each read returns `None` after adding one.
#[derive(Default)]
pub(super) struct FieldReader(Violations);

impl FieldReader {
    /// A value in its canonical text form.
    pub fn parse<T: FromStr<Err: Display>>(&mut self, path: &str, text: &str) -> Option<T> {
        self.record(path, text.parse())
    }

    /// A text that is absent when empty.
    #[expect(clippy::option_option, reason = "outside: could it be read; inside: was it given")]
    pub fn parse_optional<T: FromStr<Err: Display>>(&mut self, path: &str, text: &str) -> Option<Option<T>> {
        if text.is_empty() { Some(None) } else { self.parse(path, text).map(Some) }
    }

    /// Texts in a list, each with its index in its path.
    pub fn parse_list<T: FromStr<Err: Display>>(&mut self, path: &str, texts: &[String]) -> Option<Vec<T>> {
        let read = texts.iter().enumerate().map(|(i, text)| self.parse(&format!("{path}[{i}]"), text));
        // Collected first, so that every invalid item is reported.
        read.collect::<Vec<_>>().into_iter().collect()
    }

    /// A value whose check returns the violation's message.
    pub fn record<T>(&mut self, path: &str, read: Result<T, impl Display>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(why) => self.add_violation(path, why),
        }
    }

    /// A required message.
    pub fn required<M, T: TryFrom<M, Error = Violations>>(
        &mut self,
        path: &str,
        wire: Option<M>,
    ) -> Option<T> {
        match wire {
            Some(wire) => self.nest(path, T::try_from(wire)),
            None => self.add_violation(path, "is missing"),
        }
    }

    /// A list of messages, each with its index in its path.
    pub fn list<M, T: TryFrom<M, Error = Violations>>(&mut self, path: &str, wire: Vec<M>) -> Option<Vec<T>> {
        let read = wire.into_iter().enumerate();
        let read = read.map(|(i, wire)| self.nest(&format!("{path}[{i}]"), T::try_from(wire)));
        read.collect::<Vec<_>>().into_iter().collect()
    }

    /// The result of another conversion for the field at `path`.
    pub fn nest<T>(&mut self, path: &str, read: Result<T, Violations>) -> Option<T> {
        read.map_err(|inner| self.0.nest(path, inner)).ok()
    }

    /// Adds a violation of the field at `path`.
    pub fn add_violation<T>(&mut self, path: &str, message: impl Display) -> Option<T> {
        self.0.add(path, message);
        None
    }

    /// The value built from the fields, or all their violations.
    pub fn finish<T>(self, built: Option<T>) -> Result<T, Violations> {
        let built = self.0.into_result(built)?;
        Ok(built.expect("a field that could not be read was noted"))
    }
}

/// An enum value that this version does not know, or that was not set.
pub(super) fn unknown_enum_value(number: i32, expected: &str) -> Violations {
    let message = match number {
        0 => format!("is missing; give {expected}"),
        _ => format!("value {number} is not known to this version; give {expected}"),
    };
    Violation::new("", message).into()
}

/// Whole milliseconds, rounded up, so that no period becomes zero.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The text of the value; empty for none. The inverse is [`FieldReader::parse_optional`].
pub(super) fn optional_text(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}
