//! The secret object key: with it managers seal secrets, configs and credentials before they propose them,
//! so that no log, snapshot or state holds their bytes.
//!
//! It is one line of text in a file of its own (`crate::key_file`). Two keys are derived from it by HKDF-SHA256: one
//! seals by AES-256-GCM, one makes fingerprints by HMAC-SHA256. While it is replaced, the file has two lines: both keys
//! open, and the first one seals.
//!
//! | sealed     | content                                                      |
//! |------------|--------------------------------------------------------------|
//! | header     | format version u8, fingerprint of the key in 8 bytes         |
//! | body       | random nonce of 12 bytes, ciphertext, tag of 16              |
//!
//! Authenticated with it: `warren secret object`, the format version and the id of the secret object. The number of the
//! version is not, since `apply` allocates it; the fingerprint says whether these are the expected bytes. Format 1 has
//! no fingerprint of the key.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::{hkdf, hmac};
use warren_types::{NAMED_KEY_FORMAT, SealedData, SecretObjectId, SecretObjectKeyId};
use zeroize::Zeroizing;

use crate::cipher::{Cipher, KEY};
use crate::files::{self, FileError};
use crate::key_file::{KeyFileError, KeyFingerprint, KeyPurpose, StoredKey};

/// The format version that this program writes, and the latest it reads.
const FORMAT: u8 = NAMED_KEY_FORMAT;
const UNNAMED_KEY_FORMAT: u8 = 1;
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

/// Seals and opens secret objects. While the key is replaced, it is two keys. `Debug` shows fingerprints only.
pub struct SecretObjectKey(
    /// The first one seals. Never empty.
    ArcSwap<Vec<Arc<DerivedKeys>>>,
);

/// One key, and what is derived from it.
struct DerivedKeys {
    file: StoredKey,
    cipher: Cipher,
    fingerprint_key: hmac::Key,
    fingerprint: KeyFingerprint,
}

impl fmt::Debug for SecretObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fingerprints: Vec<String> = self.0.load().iter().map(|key| key.fingerprint.to_string()).collect();
        write!(f, "SecretObjectKey({})", fingerprints.join(", "))
    }
}

impl SecretObjectKey {
    /// The key in the file; `None` when there is no file.
    #[cfg(test)]
    pub(crate) fn load(path: &Path) -> Result<Option<Self>, KeyFileError> {
        Ok(Self::of(StoredKey::load(&PURPOSE, path)?))
    }

    /// A new key, which is in no file yet.
    pub fn generate() -> Self {
        Self::of_one(StoredKey::generate(&PURPOSE))
    }

    /// A new key; it is durable in the file, which only its owner can read, when this returns.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let key = Self::generate();
        key.save(path)?;
        Ok(key)
    }

    /// The key in what [`Self::reveal`] returned; `from` says where that came from, for the error.
    ///
    /// # Errors
    /// [`KeyFileError`], but for those of files.
    pub fn parse(from: &Path, lines: &str) -> Result<Self, KeyFileError> {
        let missing = || KeyFileError::Damaged { path: from.to_owned(), what: "it is empty".to_owned() };
        Self::of(StoredKey::parse(&PURPOSE, from, lines)?).ok_or_else(missing)
    }

    /// Writes the key to a file, which only its owner can read and which is durable when this returns.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        files::write_private(path, self.reveal().as_bytes())
    }

    /// The lines that its file holds, for another manager of the cluster or for a backup. What is done with them must
    /// keep them from logs, errors and command lines.
    pub fn reveal(&self) -> Zeroizing<String> {
        let keys = self.0.load();
        let lines: Vec<_> = keys.iter().map(|key| key.file.line()).collect();
        // Never grows, so that no copy is left behind in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(lines.iter().map(|line| line.len()).sum()));
        lines.iter().for_each(|line| text.push_str(line));
        text
    }

    /// What `read` makes of each key; the first one seals.
    pub(crate) fn stored<T>(&self, read: impl Fn(&StoredKey) -> T) -> Vec<T> {
        self.0.load().iter().map(|key| read(&key.file)).collect()
    }

    /// The keys of a file; `None` if there are none.
    pub(crate) fn of(keys: Vec<StoredKey>) -> Option<Self> {
        let keys: Vec<_> = keys.into_iter().map(|key| Arc::new(DerivedKeys::new(key))).collect();
        (!keys.is_empty()).then(|| Self(ArcSwap::from_pointee(keys)))
    }

    fn of_one(key: StoredKey) -> Self {
        Self(ArcSwap::from_pointee(vec![Arc::new(DerivedKeys::new(key))]))
    }

    /// Names the key that seals where it must not be shown.
    pub fn key_fingerprint(&self) -> KeyFingerprint {
        self.0.load()[0].fingerprint
    }

    /// The same of all keys that it is.
    pub fn key_fingerprints(&self) -> Vec<KeyFingerprint> {
        self.0.load().iter().map(|key| key.fingerprint).collect()
    }

    /// Whether it is the key that sealed this data, as far as the data says so.
    pub fn has_key_of(&self, data: &SealedData) -> bool {
        let named = data.key().map(KeyFingerprint::from);
        named.is_none_or(|named| self.0.load().iter().any(|key| key.fingerprint == named))
    }

    /// The same keys, which stay when this one is replaced.
    pub fn snapshot(&self) -> Self {
        Self(ArcSwap::new(self.0.load_full()))
    }

    /// The same keys, and those of `next`, which open.
    pub fn with(&self, next: &Self) -> Self {
        let mut keys = self.0.load().to_vec();
        for key in next.0.load().iter() {
            if !keys.iter().any(|known| known.fingerprint == key.fingerprint) {
                keys.push(key.clone());
            }
        }
        Self(ArcSwap::from_pointee(keys))
    }

    /// The same keys, of which this one seals; `None` if it is none of them.
    pub fn sealing_with(&self, id: SecretObjectKeyId) -> Option<Self> {
        let mut keys = self.0.load().to_vec();
        let place = keys.iter().position(|key| SecretObjectKeyId::from(key.fingerprint) == id)?;
        keys[..=place].rotate_right(1);
        Some(Self(ArcSwap::from_pointee(keys)))
    }

    /// The key that seals, without others.
    pub fn alone(&self) -> Self {
        Self(ArcSwap::from_pointee(vec![self.0.load()[0].clone()]))
    }

    /// Seals and opens with the keys of `other` from now on.
    pub fn replace(&self, other: &Self) {
        self.0.store(other.0.load_full());
    }

    /// Seals the bytes of a version of the secret object `id`. They are fewer than 4 GiB.
    pub fn seal(&self, id: SecretObjectId, plain: &[u8]) -> SealedData {
        self.0.load()[0].seal(id, plain)
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
        let keys = self.0.load();
        let (opened, named) = match data.sealed.split_first() {
            Some((&UNNAMED_KEY_FORMAT, body)) => {
                (keys.iter().find_map(|key| key.open(id, (UNNAMED_KEY_FORMAT, body), data)), None)
            }
            Some((&FORMAT, rest)) => {
                let named = data.key().map(KeyFingerprint::from);
                let key = keys.iter().find(|key| Some(key.fingerprint) == named);
                let body = rest.get(size_of::<SecretObjectKeyId>()..);
                let opened = key.zip(body).and_then(|(key, body)| key.open(id, (FORMAT, body), data));
                (opened, key.map(|key| key.fingerprint))
            }
            Some((other, _)) => return Err(SecretObjectKeyError::Format(*other)),
            None => (None, None),
        };
        opened.ok_or_else(|| SecretObjectKeyError::Refused(named.unwrap_or(keys[0].fingerprint)))
    }

    /// A keyed hash of the bytes as a version of the secret object `id`: equal for equal bytes. Without the key it does
    /// not help to guess them.
    pub fn fingerprint(&self, id: SecretObjectId, plain: &[u8]) -> [u8; 32] {
        self.0.load()[0].fingerprint(id, plain)
    }
}

impl DerivedKeys {
    fn new(key: StoredKey) -> Self {
        let source = hkdf::Salt::new(hkdf::HKDF_SHA256, PURPOSE.magic.as_bytes()).extract(key.bytes());
        let derived = "so short a key can be derived";
        let sealing = source.expand(&[b"seal"], hkdf::HKDF_SHA256).expect(derived);
        let mut bytes = Zeroizing::new([0; KEY]);
        sealing.fill(&mut bytes[..]).expect(derived);
        let prints = source.expand(&[b"fingerprint"], hmac::HMAC_SHA256).expect(derived);
        let fingerprint = key.fingerprint();
        Self { file: key, cipher: Cipher::new(&bytes), fingerprint_key: prints.into(), fingerprint }
    }

    fn seal(&self, id: SecretObjectId, plain: &[u8]) -> SealedData {
        let mut sealed = vec![FORMAT];
        sealed.extend_from_slice(&self.fingerprint.0);
        sealed.append(&mut self.cipher.seal_at_random(&aad(FORMAT, id), plain));
        let size = u32::try_from(plain.len()).expect("secret objects are bounded far below 4 GiB");
        SealedData { size, fingerprint: self.fingerprint(id, plain), sealed }
    }

    fn open(
        &self,
        id: SecretObjectId,
        (format, body): (u8, &[u8]),
        data: &SealedData,
    ) -> Option<Zeroizing<Vec<u8>>> {
        let plain = self.cipher.open_at_random(&aad(format, id), body)?;
        (self.fingerprint(id, &plain) == data.fingerprint).then_some(plain)
    }

    fn fingerprint(&self, id: SecretObjectId, plain: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.fingerprint_key);
        context.update(&id.0.0.to_be_bytes());
        context.update(plain);
        context.sign().as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
    }
}

fn aad(format: u8, id: SecretObjectId) -> Vec<u8> {
    [AAD, &[format], &id.0.0.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests;
