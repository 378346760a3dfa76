//! The secret object key: with it managers seal secrets, configs and credentials before they propose them,
//! so that no log, snapshot or state holds their bytes.
//!
//! It is one line of text in a file of its own (`crate::key_file`). Two keys are derived from it by HKDF-SHA256: one
//! seals by AES-256-GCM, one makes fingerprints by HMAC-SHA256.
//!
//! | sealed     | content                                                      |
//! |------------|--------------------------------------------------------------|
//! | header     | format version u8                                            |
//! | body       | random nonce of 12 bytes, ciphertext, tag of 16              |
//!
//! Authenticated with it: `warren secret object`, the format version and the id of the secret object. The number of the
//! version is not, since `apply` allocates it; the fingerprint says whether these are the expected bytes.

use std::fmt;
use std::path::Path;

use ring::{hkdf, hmac};
use warren_types::{SealedData, SecretObjectId};
use zeroize::Zeroizing;

use crate::cipher::{Cipher, KEY};
use crate::files::FileError;
use crate::key_file::{KeyFileError, KeyFingerprint, KeyPurpose, StoredKey};

/// The format version that this program writes, and the only one it reads.
const FORMAT: u8 = 1;
const AAD: &[u8] = b"warren secret object";
pub(crate) const PURPOSE: KeyPurpose =
    KeyPurpose { magic: "warren-secret-object-key", fingerprint_context: b"warren secret object key" };

/// Why a secret object cannot be opened. Says nothing of what is in it.
#[derive(Debug, thiserror::Error)]
pub enum SecretObjectKeyError {
    /// A later version sealed it.
    #[error("it was sealed by another version of Warren: expected format {FORMAT}, found {0}")]
    Format(u8),
    /// It does not open.
    #[error(
        "it does not open with the secret object key {0}: it is damaged, or was sealed with another key; restore the \
         manager's secret-objects.key from the backup that the log is from"
    )]
    Refused(KeyFingerprint),
}

/// Seals and opens secret objects. `Debug` shows its fingerprint only.
pub struct SecretObjectKey {
    file: StoredKey,
    cipher: Cipher,
    fingerprint_key: hmac::Key,
    fingerprint: KeyFingerprint,
}

impl fmt::Debug for SecretObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretObjectKey({})", self.fingerprint)
    }
}

impl SecretObjectKey {
    /// The key in the file; `None` when there is no file.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn load(path: &Path) -> Result<Option<Self>, KeyFileError> {
        Ok(StoredKey::load(&PURPOSE, path)?.map(Self::new))
    }

    /// A new key, which is in no file yet.
    pub fn generate() -> Self {
        Self::new(StoredKey::generate(&PURPOSE))
    }

    /// A new key; it is durable in the file, which only its owner can read, when this returns.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn create(path: &Path) -> Result<Self, FileError> {
        Ok(Self::new(StoredKey::create(&PURPOSE, path)?))
    }

    /// The key in what [`Self::reveal`] returned; `from` says where that came from, for the error.
    ///
    /// # Errors
    /// [`KeyFileError`], but for those of files.
    pub fn parse(from: &Path, line: &str) -> Result<Self, KeyFileError> {
        StoredKey::parse(&PURPOSE, from, line).map(Self::new)
    }

    /// Writes the key to a file, which only its owner can read and which is durable when this returns.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        self.file.save(path)
    }

    /// The line that its file holds, for another manager of the cluster or for a backup. What is done with it must keep
    /// it from logs, errors and command lines.
    pub fn reveal(&self) -> Zeroizing<String> {
        self.file.line()
    }

    pub(crate) fn stored(&self) -> &StoredKey {
        &self.file
    }

    /// Names the key where it must not be shown.
    pub fn key_fingerprint(&self) -> KeyFingerprint {
        self.fingerprint
    }

    pub(crate) fn new(key: StoredKey) -> Self {
        let source = hkdf::Salt::new(hkdf::HKDF_SHA256, PURPOSE.magic.as_bytes()).extract(key.bytes());
        let derived = "so short a key can be derived";
        let sealing = source.expand(&[b"seal"], hkdf::HKDF_SHA256).expect(derived);
        let mut bytes = Zeroizing::new([0; KEY]);
        sealing.fill(&mut bytes[..]).expect(derived);
        let prints = source.expand(&[b"fingerprint"], hmac::HMAC_SHA256).expect(derived);
        let fingerprint = key.fingerprint();
        Self { file: key, cipher: Cipher::new(&bytes), fingerprint_key: prints.into(), fingerprint }
    }

    /// Seals the bytes of a version of the secret object `id`. They are fewer than 4 GiB.
    pub fn seal(&self, id: SecretObjectId, plain: &[u8]) -> SealedData {
        let mut sealed = vec![FORMAT];
        sealed.append(&mut self.cipher.seal_at_random(&aad(id), plain));
        let size = u32::try_from(plain.len()).expect("secret objects are bounded far below 4 GiB");
        SealedData { size, fingerprint: self.fingerprint(id, plain), sealed }
    }

    /// The bytes of a version of the secret object `id`.
    ///
    /// # Errors
    /// [`SecretObjectKeyError`].
    pub fn open(
        &self,
        id: SecretObjectId,
        data: &SealedData,
    ) -> Result<Zeroizing<Vec<u8>>, SecretObjectKeyError> {
        let refused = || SecretObjectKeyError::Refused(self.fingerprint);
        let body = match data.sealed.split_first() {
            None => return Err(refused()),
            Some((&FORMAT, body)) => body,
            Some((other, _)) => return Err(SecretObjectKeyError::Format(*other)),
        };
        let plain = self.cipher.open_at_random(&aad(id), body).ok_or_else(refused)?;
        if self.fingerprint(id, &plain) != data.fingerprint {
            return Err(refused());
        }
        Ok(plain)
    }

    /// A keyed hash of the bytes as a version of the secret object `id`: equal for equal bytes. Without the key it does
    /// not help to guess them.
    pub fn fingerprint(&self, id: SecretObjectId, plain: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.fingerprint_key);
        context.update(&id.0.0.to_be_bytes());
        context.update(plain);
        context.sign().as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
    }
}

fn aad(id: SecretObjectId) -> Vec<u8> {
    [AAD, &[FORMAT], &id.0.0.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests;
