//! Where a manager said at its last start that it is reached: the file `advertised` in its directory, one line.

use std::path::Path;

use warren_security::{FileError, files};
use warren_types::ManagerAddress;

use crate::recovery::seat::is_missing;

/// The file's name in the manager's directory.
const FILE: &str = "advertised";

/// What was said last. Nothing where that cannot be read: then it is said again.
pub(super) fn last(dir: &Path) -> Option<ManagerAddress> {
    let path = dir.join(FILE);
    let read = match files::read_private(&path) {
        Ok(text) => {
            text.trim_end().parse().map_err(|error: warren_types::ParseAddressError| error.to_string())
        }
        Err(error) if is_missing(&error) => return None,
        Err(error) => Err(error.to_string()),
    };
    read.inspect_err(|error| tracing::warn!(path = %path.display(), error, "cannot be used")).ok()
}

/// Writes it down; durable when this returns.
pub(super) fn keep(dir: &Path, address: &ManagerAddress) -> Result<(), FileError> {
    files::write_private(&dir.join(FILE), format!("{address}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_last_is_read_and_what_is_damaged_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(last(dir.path()), None);
        for text in ["10.0.0.7:8080", "[fd00::7]:8081"] {
            let address: ManagerAddress = text.parse().unwrap();
            for _ in 0..2 {
                keep(dir.path(), &address).unwrap();
                assert_eq!(last(dir.path()), Some(address.clone()));
            }
        }
        files::write_private(&dir.path().join(FILE), b"10.0.0").unwrap();
        assert_eq!(last(dir.path()), None);
    }
}
