//! Id and owner of a container.

use std::fmt;

use crate::error::Error;

/// containerd rejects longer identifiers.
const MAX_ID: usize = 76;

/// Container id: letters and digits, with single `.`, `_` or `-` between them, at most 76 bytes. Safe as a
/// path component.
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
            false => Err(Error::invalid_field(
                "id",
                format!(
                    "{text:?} is not made of letters and digits with single . _ - between, at most {MAX_ID}"
                ),
            )),
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The task that a container belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerOwner {
    /// Id of the task.
    pub task: String,
    /// Number of starts of this task's container by the worker.
    pub attempt: u32,
    /// Hash of all fields whose change requires a new container.
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
