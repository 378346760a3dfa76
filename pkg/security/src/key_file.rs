//! A symmetric key as one line of text in a file of its own. While it is replaced, the file has two lines.
//!
//! | form   | line                                                                                        |
//! |--------|---------------------------------------------------------------------------------------------|
//! | plain  | `<mark> 1 <key, 64 hexadecimal digits> <fingerprint, 16 of them>`                           |
//! | sealed | `<mark> 2 <nonce, ciphertext and tag, 120 digits> <fingerprint, 16> <name of the other key, 16>` |
//!
//! The mark says what the key is for. The fingerprint finds a damaged line, and names the key where it must not be
//! shown. A sealed key is encrypted under another key by AES-256-GCM; `warren sealed key` and the mark are
//! authenticated with it.

use std::fmt::{self, Write};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use aes_gcm::aead::Generate;
use sha2::{Digest, Sha256};
use warren_types::{SecretObjectKeyId, UnlockKeyId};
use zeroize::Zeroizing;

use crate::cipher::{Cipher, KEY, NONCE, TAG};
use crate::files::{FileError, read_private};
use crate::hex;

/// The format version of a plain line.
const PLAIN: u32 = 1;
/// The format version of a sealed line, the latest that this program reads.
const SEALED: u32 = 2;
/// Bytes of a sealed key.
const SEALED_KEY: usize = NONCE + KEY + TAG;
const AAD: &[u8] = b"warren sealed key";

/// Why a key cannot be had from its file. The file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// It does not hold what was written there.
    #[error("{path} is damaged: {what}; restore it from a backup of this manager")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A later version wrote it.
    #[error(
        "{path} has format version {found}, and this version of Warren reads up to {supported}: \
         install the version that wrote it"
    )]
    UnsupportedFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The latest that is read.
        supported: u32,
    },
    /// The keyring does not need the member key that this process uses, but the other one.
    #[error(
        "{path} needs another member key than the one in use, so neither is removed: restart the manager"
    )]
    MemberKeyInDoubt {
        /// The keyring.
        path: PathBuf,
    },
    /// The key in it is sealed, and there is no other key to open it.
    #[error(
        "{path} is locked: run `warren manager unlock` on this machine with the unlock key of the cluster"
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It is locked with another unlock key.
    #[error(
        "{path} is locked with the unlock key {wanted}, and the key that was given is {found}: give the one that was \
         the cluster's when this manager ran last"
    )]
    WrongUnlockKey {
        /// The file.
        path: PathBuf,
        /// What locks it.
        wanted: UnlockKeyId,
        /// What was given.
        found: UnlockKeyId,
    },
}

/// The first bytes of a hash of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyFingerprint(pub(crate) [u8; 8]);

/// 16 lower-case hexadecimal digits.
impl fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::digits(&self.0).try_for_each(|digit| f.write_char(digit))
    }
}

impl FromStr for KeyFingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 8];
        let parsed = (text.len() == 2 * bytes.len()).then(|| hex::parse(text.as_bytes(), &mut bytes));
        match parsed {
            Some(Ok(())) => Ok(Self(bytes)),
            _ => Err(format!("{text:?} is not a fingerprint of 16 hexadecimal digits")),
        }
    }
}

impl From<UnlockKeyId> for KeyFingerprint {
    fn from(UnlockKeyId(id): UnlockKeyId) -> Self {
        Self(id.to_be_bytes())
    }
}

impl From<KeyFingerprint> for UnlockKeyId {
    fn from(KeyFingerprint(bytes): KeyFingerprint) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

impl From<SecretObjectKeyId> for KeyFingerprint {
    fn from(SecretObjectKeyId(id): SecretObjectKeyId) -> Self {
        Self(id.to_be_bytes())
    }
}

impl From<KeyFingerprint> for SecretObjectKeyId {
    fn from(KeyFingerprint(bytes): KeyFingerprint) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

impl fmt::Debug for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// What a key is for, as its file says it.
pub(crate) struct KeyPurpose {
    /// The first word of the line.
    pub magic: &'static str,
    /// What else is hashed with a key, so that no other use of the hash gives its fingerprint.
    pub fingerprint_context: &'static [u8],
}

/// A key and what it is for; wiped from memory when it is dropped.
pub(crate) struct StoredKey {
    purpose: &'static KeyPurpose,
    bytes: Zeroizing<[u8; KEY]>,
}

impl StoredKey {
    pub(crate) fn new(purpose: &'static KeyPurpose, bytes: [u8; KEY]) -> Self {
        Self { purpose, bytes: Zeroizing::new(bytes) }
    }

    /// The keys in the file; none when there is no file.
    #[cfg(test)]
    pub(crate) fn load(purpose: &'static KeyPurpose, path: &Path) -> Result<Vec<Self>, KeyFileError> {
        KeyLine::load(purpose, path)?.into_iter().map(|line| line.into_plain(path)).collect()
    }

    /// The keys in a text that stands, or stood, in the file `path`.
    pub(crate) fn parse(
        purpose: &'static KeyPurpose,
        path: &Path,
        text: &str,
    ) -> Result<Vec<Self>, KeyFileError> {
        parse(purpose, path, text)?.into_iter().map(|line| line.into_plain(path)).collect()
    }

    /// A new key, which is in no file yet.
    pub(crate) fn generate(purpose: &'static KeyPurpose) -> Self {
        Self::new(purpose, Generate::generate())
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY] {
        &self.bytes
    }

    pub(crate) fn fingerprint(&self) -> KeyFingerprint {
        let hash = Sha256::new()
            .chain_update(self.purpose.fingerprint_context)
            .chain_update(&self.bytes[..])
            .finalize();
        KeyFingerprint(*hash.first_chunk().expect("a hash has 32 bytes"))
    }

    pub(crate) fn line(&self) -> Zeroizing<String> {
        // Room for all of it: growing would leave a copy in freed memory.
        let mut line = Zeroizing::new(String::with_capacity(128));
        let written = write!(line, "{} {PLAIN} ", self.purpose.magic).and_then(|()| {
            hex::digits(&self.bytes[..]).try_for_each(|digit| line.write_char(digit))?;
            writeln!(line, " {}", self.fingerprint())
        });
        written.expect("a string takes everything");
        line
    }
}

/// A line as it stands in a file.
pub(crate) enum KeyLine {
    Plain(StoredKey),
    Sealed(SealedKey),
}

/// A key that is sealed by another one.
pub(crate) struct SealedKey {
    purpose: &'static KeyPurpose,
    sealed: [u8; SEALED_KEY],
    fingerprint: KeyFingerprint,
    /// Names the other key.
    sealed_by: KeyFingerprint,
}

impl KeyLine {
    /// The lines of the file; none when there is no file.
    pub(crate) fn load(purpose: &'static KeyPurpose, path: &Path) -> Result<Vec<Self>, KeyFileError> {
        match read_private(path) {
            Ok(text) => parse(purpose, path, &text),
            Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn into_plain(self, path: &Path) -> Result<StoredKey, KeyFileError> {
        match self {
            Self::Plain(key) => Ok(key),
            Self::Sealed(_) => Err(KeyFileError::Locked { path: path.to_owned() }),
        }
    }
}

impl SealedKey {
    pub(crate) fn seal(key: &StoredKey, cipher: &Cipher, sealed_by: KeyFingerprint) -> Self {
        let sealed = cipher.seal_at_random(&aad(key.purpose), key.bytes());
        let sealed: [u8; SEALED_KEY] = sealed.try_into().expect("it has a nonce, the key and a tag");
        Self { purpose: key.purpose, sealed, fingerprint: key.fingerprint(), sealed_by }
    }

    /// The key; `None` if the cipher is not that of the key that sealed it, or the line is damaged.
    pub(crate) fn open(&self, cipher: &Cipher) -> Option<StoredKey> {
        let plain = cipher.open_at_random(&aad(self.purpose), &self.sealed)?;
        let mut bytes = Zeroizing::new([0; KEY]);
        bytes.copy_from_slice(&plain);
        let key = StoredKey { purpose: self.purpose, bytes };
        (key.fingerprint() == self.fingerprint).then_some(key)
    }

    /// Names the key that sealed it.
    pub(crate) fn sealed_by(&self) -> KeyFingerprint {
        self.sealed_by
    }

    pub(crate) fn line(&self) -> String {
        let mut line = format!("{} {SEALED} ", self.purpose.magic);
        line.extend(hex::digits(&self.sealed));
        line + &format!(" {} {}\n", self.fingerprint, self.sealed_by)
    }
}

fn aad(purpose: &KeyPurpose) -> Vec<u8> {
    [AAD, purpose.magic.as_bytes()].concat()
}

/// The lines of a text, of which there is at least one.
fn parse(purpose: &'static KeyPurpose, path: &Path, text: &str) -> Result<Vec<KeyLine>, KeyFileError> {
    let lines = if text.is_empty() { vec![""] } else { text.lines().collect() };
    lines.into_iter().map(|line| parse_line(purpose, path, line)).collect()
}

fn parse_line(purpose: &'static KeyPurpose, path: &Path, text: &str) -> Result<KeyLine, KeyFileError> {
    let damaged = |what: &str| KeyFileError::Damaged { path: path.to_owned(), what: what.into() };
    let mut words = text.split_ascii_whitespace();
    if words.next() != Some(purpose.magic) {
        return Err(damaged(&format!("it does not begin with `{}`", purpose.magic)));
    }
    match words.next().and_then(|version| version.parse().ok()) {
        None => Err(damaged("it has no format version")),
        Some(SEALED) => parse_sealed(purpose, words, damaged).map(KeyLine::Sealed),
        Some(found) if found > SEALED => {
            Err(KeyFileError::UnsupportedFormat { path: path.to_owned(), found, supported: SEALED })
        }
        Some(_) => parse_plain(purpose, words, damaged).map(KeyLine::Plain),
    }
}

fn parse_plain<'a>(
    purpose: &'static KeyPurpose,
    mut words: impl Iterator<Item = &'a str>,
    damaged: impl Fn(&str) -> KeyFileError,
) -> Result<StoredKey, KeyFileError> {
    let (Some(digits), Some(sum), None) = (words.next(), words.next(), words.next()) else {
        return Err(damaged("expected a key and its fingerprint"));
    };
    let wrong = || damaged("the key is not of 64 hexadecimal digits");
    let mut bytes = Zeroizing::new([0; KEY]);
    if digits.len() != 2 * KEY {
        return Err(wrong());
    }
    hex::parse(digits.as_bytes(), &mut bytes[..]).map_err(|_| wrong())?;
    let key = StoredKey { purpose, bytes };
    if key.fingerprint().to_string() != sum {
        return Err(damaged("the key and its fingerprint do not match"));
    }
    Ok(key)
}

fn parse_sealed<'a>(
    purpose: &'static KeyPurpose,
    mut words: impl Iterator<Item = &'a str>,
    damaged: impl Fn(&str) -> KeyFileError,
) -> Result<SealedKey, KeyFileError> {
    let (Some(digits), Some(sum), Some(by), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(damaged("expected a sealed key, its fingerprint and the name of the key that sealed it"));
    };
    let wrong = || damaged("the sealed key is not of 120 hexadecimal digits");
    let mut sealed = [0; SEALED_KEY];
    if digits.len() != 2 * SEALED_KEY {
        return Err(wrong());
    }
    hex::parse(digits.as_bytes(), &mut sealed).map_err(|_| wrong())?;
    let fingerprint = |text: &str| text.parse::<KeyFingerprint>().map_err(|why| damaged(&why));
    Ok(SealedKey { purpose, sealed, fingerprint: fingerprint(sum)?, sealed_by: fingerprint(by)? })
}
