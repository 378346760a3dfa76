//! The member key: what wraps the data keys of one manager, in a file of its own.

use std::path::Path;

use crate::cipher::Cipher;
use crate::files::FileError;
use crate::key_file::{KeyFileError, KeyFingerprint, KeyPurpose, StoredKey};

const PURPOSE: KeyPurpose =
    KeyPurpose { magic: "warren-member-key", fingerprint_context: b"warren member key" };

pub(super) struct MemberKey(StoredKey);

impl MemberKey {
    /// The key in the file; `None` when there is no file.
    pub(super) fn load(path: &Path) -> Result<Option<Self>, KeyFileError> {
        Ok(StoredKey::load(&PURPOSE, path)?.map(Self))
    }

    /// A new key, which is in no file yet.
    pub(super) fn generate() -> Self {
        Self(StoredKey::generate(&PURPOSE))
    }

    /// Writes the key to its file; it is durable there when this returns.
    pub(super) fn save(&self, path: &Path) -> Result<(), FileError> {
        self.0.save(path)
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

    #[cfg(test)]
    pub(super) fn line(&self) -> zeroize::Zeroizing<String> {
        self.0.line()
    }
}
