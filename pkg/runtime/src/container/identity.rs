//! What a container is called, and whose it is.

use std::fmt;

use crate::error::Error;

/// containerd refuses longer identifiers.
const MAX_ID: usize = 76;

/// A container's name: letters and digits, with single `.`, `_` or `-` between them, at most 76. Safe in a
/// path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(String);

impl ContainerId {
    /// Parses an id.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] with the field `id`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let separated = text.split(['.', '_', '-']);
        let valid = separated
            .into_iter()
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()));
        match valid && text.len() <= MAX_ID {
            true => Ok(Self(text.to_owned())),
            false => Err(Error::invalid(
                "id",
                format!(
                    "{text:?} is not made of letters and digits with single . _ - between, at most {MAX_ID}"
                ),
            )),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose container it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The task's id.
    pub task: String,
    /// How often the worker has started this task's container.
    pub attempt: u32,
    /// A hash of everything that, when changed, makes it another container.
    pub spec_hash: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_safe_in_paths() {
        for good in ["a", "web.1", "a-b_c.d", "0"] {
            assert_eq!(ContainerId::parse(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(77);
        for bad in ["", ".", "..", "a/b", "a..b", "-a", "a-", "a b", "ä", &long] {
            assert!(ContainerId::parse(bad).is_err(), "{bad}");
        }
    }
}
