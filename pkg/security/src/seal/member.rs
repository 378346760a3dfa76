//! The member key: what wraps the data keys of one manager, in a file of its own. While the manager locks its keys, it
//! is sealed by the unlock key of the cluster, and seals the other keys.

use std::path::Path;

use zeroize::Zeroizing;

use crate::cipher::Cipher;
use crate::key_file::{KeyFileError, KeyFingerprint, KeyLine, KeyPurpose, SealedKey, StoredKey};
use crate::unlock_key::UnlockKey;

const PURPOSE: KeyPurpose =
    KeyPurpose { magic: "warren-member-key", fingerprint_context: b"warren member key" };

pub(super) struct MemberKey(StoredKey);

impl MemberKey {
    /// The lines of the file; none when there is no file.
    pub(super) fn load_lines(path: &Path) -> Result<Vec<KeyLine>, KeyFileError> {
        KeyLine::load(&PURPOSE, path)
    }

    /// The key of such a line.
    pub(super) fn of(key: StoredKey) -> Self {
        Self(key)
    }

    /// A new key, which is in no file yet.
    pub(super) fn generate() -> Self {
        Self(StoredKey::generate(&PURPOSE))
    }

    /// The key as it stands in its file while it is not locked.
    pub(super) fn line(&self) -> Zeroizing<String> {
        self.0.line()
    }

    /// The key as it stands in its file while it is locked.
    pub(super) fn lock(&self, key: &UnlockKey) -> SealedKey {
        SealedKey::seal(&self.0, &key.cipher(), key.id().into())
    }

    pub(super) fn cipher(&self) -> Cipher {
        Cipher::new(self.0.bytes())
    }

    pub(super) fn fingerprint(&self) -> KeyFingerprint {
        self.0.fingerprint()
    }

    /// A key that a test chose.
    #[cfg(test)]
    pub(super) fn new(key: [u8; crate::cipher::KEY]) -> Self {
        Self(StoredKey::new(&PURPOSE, key))
    }
}
