//! A symmetric key as one line of text in a file of its own.
//!
//! `<mark> <format version> <key, 64 hexadecimal digits> <fingerprint, 16 of them>`
//!
//! The mark says what the key is for. The fingerprint finds a damaged line, and names the key where it must not be
//! shown.

use std::fmt::{self, Write};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use aes_gcm::aead::Generate;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::cipher::KEY;
use crate::files::{FileError, read_private, write_private};
use crate::hex;

/// The format version of the files that this program writes, and the latest it reads.
const FORMAT: u32 = 1;

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

    /// The key in the file; `None` when there is no file.
    pub(crate) fn load(purpose: &'static KeyPurpose, path: &Path) -> Result<Option<Self>, KeyFileError> {
        match read_private(path) {
            Ok(text) => Self::parse(purpose, path, &text).map(Some),
            Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The key in a line that stands, or stood, in the file `path`.
    pub(crate) fn parse(purpose: &'static KeyPurpose, path: &Path, text: &str) -> Result<Self, KeyFileError> {
        parse(purpose, path, text)
    }

    /// A new key, which is in no file yet.
    pub(crate) fn generate(purpose: &'static KeyPurpose) -> Self {
        Self::new(purpose, Generate::generate())
    }

    /// A new key; it is durable in the file when this returns.
    pub(crate) fn create(purpose: &'static KeyPurpose, path: &Path) -> Result<Self, FileError> {
        let key = Self::generate(purpose);
        key.save(path)?;
        Ok(key)
    }

    /// Writes the key to its file; it is durable there when this returns.
    pub(crate) fn save(&self, path: &Path) -> Result<(), FileError> {
        write_private(path, self.line().as_bytes())
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
        let written = write!(line, "{} {FORMAT} ", self.purpose.magic).and_then(|()| {
            hex::digits(&self.bytes[..]).try_for_each(|digit| line.write_char(digit))?;
            writeln!(line, " {}", self.fingerprint())
        });
        written.expect("a string takes everything");
        line
    }
}

fn parse(purpose: &'static KeyPurpose, path: &Path, text: &str) -> Result<StoredKey, KeyFileError> {
    let damaged = |what: &str| KeyFileError::Damaged { path: path.to_owned(), what: what.into() };
    let mut words = text.split_ascii_whitespace();
    if words.next() != Some(purpose.magic) {
        return Err(damaged(&format!("it does not begin with `{}`", purpose.magic)));
    }
    match words.next().and_then(|version| version.parse().ok()) {
        None => return Err(damaged("it has no format version")),
        Some(found) if found > FORMAT => {
            return Err(KeyFileError::UnsupportedFormat { path: path.to_owned(), found, supported: FORMAT });
        }
        Some(_) => {}
    }
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
