//! Values that documents contain as text, and texts in errors.

/// The start of a text that is not valid: errors repeat that, not a megabyte of it.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Serialises a type by its `Display` and deserialises it by its `FromStr`.
macro_rules! serde_as_text {
    ($($type:ty),+ $(,)?) => { $(
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as ::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }
    )+ };
}

pub(crate) use serde_as_text;

/// Durations: `1h30m`, `500ms`.
pub(crate) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&text(*duration))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        humantime::parse_duration(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }

    /// Without spaces: `1m30s`.
    pub fn text(duration: Duration) -> String {
        humantime::format_duration(duration).to_string().replace(' ', "")
    }
}

/// Permission bits in octal: `0400`.
pub(crate) mod octal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(mode: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        match mode {
            Some(mode) => serializer.collect_str(&format_args!("{mode:04o}")),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| u32::from_str_radix(&text, 8)).transpose().map_err(de::Error::custom)
    }
}

/// A limit as a number, or `unlimited` for `None`.
pub(crate) mod bound {
    use serde::{Deserialize, Deserializer, Serializer, de};

    const UNLIMITED: &str = "unlimited";

    pub fn serialize<S: Serializer>(bound: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match bound {
            Some(bound) => serializer.collect_str(bound),
            None => serializer.serialize_str(UNLIMITED),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            UNLIMITED => Ok(None),
            number => number.parse().map(Some).map_err(de::Error::custom),
        }
    }
}
