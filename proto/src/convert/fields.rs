//! Reads the fields of one message and keeps everything that is wrong with them, not only the first.

use std::fmt::Display;
use std::str::FromStr;

use warren_types::{Violation, Violations};

/// What was wrong with the fields read so far. Each read answers `None` after noting why.
#[derive(Default)]
pub(super) struct Fields(Violations);

impl Fields {
    /// A text that is the value's one spelling.
    pub fn parse<T: FromStr<Err: Display>>(&mut self, path: &str, text: &str) -> Option<T> {
        self.note(path, text.parse())
    }

    /// A text that is absent when empty.
    #[expect(clippy::option_option, reason = "outside: could it be read; inside: was it given")]
    pub fn parse_optional<T: FromStr<Err: Display>>(&mut self, path: &str, text: &str) -> Option<Option<T>> {
        if text.is_empty() { Some(None) } else { self.parse(path, text).map(Some) }
    }

    /// Texts in a list, each with its place in its path.
    pub fn parse_list<T: FromStr<Err: Display>>(&mut self, path: &str, texts: &[String]) -> Option<Vec<T>> {
        let read = texts.iter().enumerate().map(|(i, text)| self.parse(&format!("{path}[{i}]"), text));
        // Collected before it is judged, so that every bad place is noted.
        read.collect::<Vec<_>>().into_iter().collect()
    }

    /// A value whose check says in words what is wrong.
    pub fn note<T>(&mut self, path: &str, read: Result<T, impl Display>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(why) => self.wrong(path, why),
        }
    }

    /// A message that must be there.
    pub fn required<M, T: TryFrom<M, Error = Violations>>(
        &mut self,
        path: &str,
        wire: Option<M>,
    ) -> Option<T> {
        match wire {
            Some(wire) => self.nest(path, T::try_from(wire)),
            None => self.wrong(path, "is missing"),
        }
    }

    /// A list of messages, each with its place in its path.
    pub fn list<M, T: TryFrom<M, Error = Violations>>(&mut self, path: &str, wire: Vec<M>) -> Option<Vec<T>> {
        let read = wire.into_iter().enumerate();
        let read = read.map(|(i, wire)| self.nest(&format!("{path}[{i}]"), T::try_from(wire)));
        read.collect::<Vec<_>>().into_iter().collect()
    }

    /// What another conversion answered for the field at `path`.
    pub fn nest<T>(&mut self, path: &str, read: Result<T, Violations>) -> Option<T> {
        read.map_err(|inner| self.0.nest(path, inner)).ok()
    }

    /// Notes a fault of the field at `path`.
    pub fn wrong<T>(&mut self, path: &str, message: impl Display) -> Option<T> {
        self.0.add(path, message);
        None
    }

    /// The value built from the fields, or everything that was wrong with them.
    pub fn finish<T>(self, built: Option<T>) -> Result<T, Violations> {
        let built = self.0.into_result(built)?;
        Ok(built.expect("a field that could not be read was noted"))
    }
}

/// The number of an enum value that this version does not know, or that was not given.
pub(super) fn unknown_value(number: i32, wanted: &str) -> Violations {
    let message = match number {
        0 => format!("is missing; give {wanted}"),
        _ => format!("value {number} is not known to this version; give {wanted}"),
    };
    Violation::new("", message).into()
}

/// The text of what is there; empty for nothing. The other way is [`Fields::parse_optional`].
pub(super) fn text(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}
