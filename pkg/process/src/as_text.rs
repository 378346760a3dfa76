//! For `#[serde(with = "...")]`: an optional value as the text that people write for it.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serializer, de};

/// Writes the value's text.
///
/// # Errors
/// Those of `to`.
pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.collect_str(value),
        None => to.serialize_none(),
    }
}

/// Reads a value from its text.
///
/// # Errors
/// Those of `from`, and what is wrong with the text.
pub fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    String::deserialize(from)?.parse().map(Some).map_err(de::Error::custom)
}
