//! The key pair of this node for packets between nodes. The private half never leaves the node.

use std::io::ErrorKind;
use std::path::Path;

use warren_network::WireGuardPrivateKey;
use warren_security::files::{FileError, read_private, write_private};
use warren_types::WireGuardKey;

/// Name of the file in the directory of the worker.
pub(crate) const FILE: &str = "wireguard.key";

/// The key of the node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WireGuardKeyError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// No key can be made.
    #[error("this system has no random numbers for the key of packets between nodes")]
    NoRandomness,
}

/// The key in the file. A new one is made if the file is missing or has no key: other nodes follow when a manager tells
/// them.
pub(crate) fn ensure_wireguard_key(path: &Path) -> Result<WireGuardPrivateKey, WireGuardKeyError> {
    match read_private(path) {
        Ok(text) => match text.trim().parse() {
            Ok(key) => return Ok(key),
            Err(error) => tracing::warn!(%error, path = %path.display(), "making a new key"),
        },
        Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let key = WireGuardPrivateKey::generate().ok_or(WireGuardKeyError::NoRandomness)?;
    write_private(path, key.to_hex().as_bytes())?;
    Ok(key)
}

/// The half that other nodes know.
pub(crate) fn public_half(key: &WireGuardPrivateKey) -> WireGuardKey {
    WireGuardKey(key.public_key().0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn key_is_made_once_and_again_without_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let first = ensure_wireguard_key(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(ensure_wireguard_key(&path).unwrap(), first);
        std::fs::remove_file(&path).unwrap();
        let second = ensure_wireguard_key(&path).unwrap();
        assert_ne!(public_half(&second), public_half(&first));
        std::fs::write(&path, "no key").unwrap();
        assert_ne!(ensure_wireguard_key(&path).unwrap(), second);
        assert!(ensure_wireguard_key(&dir.path().join("none/wireguard.key")).is_err());
    }
}
