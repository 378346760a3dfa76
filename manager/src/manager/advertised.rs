//! The address that a manager advertised at its last start: the file `advertised-address` in its directory, one line.

use std::path::Path;

use warren_bootstrap::member_identity::is_not_found;
use warren_security::{FileError, files};
use warren_types::ManagerAddress;

/// The file's name in the manager's directory.
const FILE: &str = "advertised-address";

/// The last advertised address. `None` if it cannot be read: then it is registered again.
pub(super) fn load(dir: &Path) -> Option<ManagerAddress> {
    let path = dir.join(FILE);
    let read = match files::read_private(&path) {
        Ok(text) => {
            text.trim_end().parse().map_err(|error: warren_types::ParseManagerAddressError| error.to_string())
        }
        Err(error) if is_not_found(&error) => return None,
        Err(error) => Err(error.to_string()),
    };
    read.inspect_err(|error| tracing::warn!(path = %path.display(), error, "unusable file")).ok()
}

/// Writes the address; durable when this returns.
pub(super) fn save(dir: &Path, address: &ManagerAddress) -> Result<(), FileError> {
    files::write_private(&dir.join(FILE), format!("{address}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_address_is_loaded_and_damaged_file_ignored() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()), None);
        for text in ["10.0.0.7:8080", "[fd00::7]:8081"] {
            let address: ManagerAddress = text.parse().unwrap();
            for _ in 0..2 {
                save(dir.path(), &address).unwrap();
                assert_eq!(load(dir.path()), Some(address.clone()));
            }
        }
        files::write_private(&dir.path().join(FILE), b"10.0.0").unwrap();
        assert_eq!(load(dir.path()), None);
    }
}
